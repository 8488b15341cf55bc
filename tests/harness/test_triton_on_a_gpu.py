"""Triton candidates on a GPU: compiled beforehand, for a kernel and for a problem, judged where no compiler may start."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.farside.triton_calls import CACHE, LATE
from harness.problems.pytorch import open_problem
from harness.protocol_kernelbench import evaluate
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from tests.harness.test_triton import SILU, SOFTMAX

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(512, 3000)]
"""
AUTOTUNED = SILU.replace(
    "@triton.jit",
    "@triton.autotune([triton.Config({'BLOCK': 512}), triton.Config({'BLOCK': 2048})], key=['width'])\n@triton.jit",
).replace(", BLOCK=1024)", ")")
# Its first call is the only one that was made before: the second compiles something else.
BY_CALL = (
    SOFTMAX.replace("class ModelNew(nn.Module):", "class ModelNew(nn.Module):\n    calls = 0\n")
    .replace("        out = torch.empty_like(x)\n", "        ModelNew.calls += 1\n        out = torch.empty_like(x)\n")
    .replace("BLOCK=triton.next", "BLOCK=2 ** ModelNew.calls * triton.next")
)


def test_a_kernel_s_candidate_is_compiled_before_it_is_judged(tmp_path: Path):
    kernel = catalog.load("silu_and_mul")
    kept = [w for w in kernel.spec.workloads if "cuda" in w.devices and w.axes["tokens"] * w.axes["hidden"] < 5e5]
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": tuple(kept)}))
    with Evaluator(kernel, "cuda", Store(tmp_path)) as evaluator:
        baseline = evaluator.store.put(kernel.baseline("cuda")[1].read_text())
        for text in (SILU, AUTOTUNED):
            build = evaluator.build(evaluator.store.put(text))
            for held_out in (False, True):
                verdict = evaluator.verify(build, held_out=held_out)
                assert verdict.passed, verdict.reason
            assert list((Path(build.artefact) / CACHE).glob("*/*.cubin"))
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(SILU)))
        measured = evaluator.measure(verdict, baseline=baseline)
        assert measured.timings, measured.reason
        wrong = evaluator.build(evaluator.store.put(SILU.replace("gate / (1", "gate / (1.01")))
        assert evaluator.verify(wrong).outcome is Outcome.INCORRECT


def test_a_problem_s_candidate_does_its_work_in_kernels_of_its_own(tmp_path: Path):
    (tmp_path / "softmax.py").write_text(PROBLEM)
    problem = open_problem(tmp_path / "softmax.py", "cuda")
    with Evaluator(problem, "cuda", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(SOFTMAX))
        for held_out in (False, True):
            verdict = evaluator.verify(build, held_out=held_out)
            assert verdict.passed, verdict.reason
        share = re.search(r"(\d+)% of its device time is in kernels of its own", " ".join(verdict.notes))
        assert share and int(share[1]) >= 90, verdict.notes  # but for a copy that eager's call had a little less of
        assert evaluator.measure(verdict, baseline=evaluator.store.put(problem.text)).suite
        assert evaluate(evaluator, problem, SOFTMAX).correctness


def test_what_no_call_before_compiled_is_not_compiled_while_it_is_judged(tmp_path: Path):
    (tmp_path / "softmax.py").write_text(PROBLEM)
    with Evaluator(open_problem(tmp_path / "softmax.py", "cuda"), "cuda", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(BY_CALL)))
    assert verdict.outcome is Outcome.RUNTIME_ERROR and LATE[:40] in verdict.reason


def test_a_wrong_configuration_is_found_whichever_the_tuner_took(tmp_path: Path):
    kernel = catalog.load("silu_and_mul")
    kept = [w for w in kernel.spec.workloads if "cuda" in w.devices and w.axes["tokens"] * w.axes["hidden"] < 5e5]
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": tuple(kept)}))
    with Evaluator(kernel, "cuda", Store(tmp_path)) as evaluator:
        for block in (512, 2048):
            text = AUTOTUNED.replace("gate / (1 +", f"gate / ((2 if BLOCK == {block} else 1) +")
            verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
            assert verdict.outcome is Outcome.INCORRECT, verdict
