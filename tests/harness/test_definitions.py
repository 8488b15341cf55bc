"""A definition with its workloads is judged as a problem is: its reference runs in the box, its stored inputs go together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.problems import pytorch
from harness.records import Outcome
from harness.store import Store
from harness.timing.mixtures import copies_together, group_persistent
from kernels.catalog import KernelError
from kernels.spec import Size, Spec, Tensor, Workload
from tests.kernels.definitions import REFERENCE, flashinfer, sol

NEW = """
import torch


class ModelNew(torch.nn.Module):
    def forward(self, X, ids, table, eps):
        rows = table[ids.long()].float() + X.float()
        return (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)).to(X.dtype), rows.sum(-1)
"""


@pytest.mark.parametrize("made", [flashinfer, sol])
def test_a_right_module_passes_and_a_wrong_one_does_not(made: Callable, tmp_path: Path):
    path = made(tmp_path)
    with Evaluator(pytorch.load(str(path), "cpu"), "cpu", Store(tmp_path / "store")) as evaluator:
        store = evaluator.store
        verdict = evaluator.verify(evaluator.build(store.put(NEW)))
        assert verdict.passed, verdict.reason
        assert "the reference is the problem's Model in fp64" in verdict.notes[0]
        assert evaluator.verify(evaluator.build(store.put(NEW)), held_out=True).passed
        for change, outcome in (("ids.long()", Outcome.INCORRECT), ("rows.sum(-1)", Outcome.WRONG_DTYPE)):
            wrong = NEW.replace(change, {"ids.long()": "ids.long().flip(0)"}.get(change, f"{change}.double()"))
            assert evaluator.verify(evaluator.build(store.put(wrong))).outcome == outcome


def test_inputs_that_one_function_draws_stay_together_while_they_are_timed():
    tensors = [
        Tensor(name=n, role="input", shape=("n",), dtype="int32", values=(f"given:t_{n}",)) for n in ("starts", "ids")
    ]
    table = Tensor(name="table", role="input", shape=("n",), constant=True)
    spec = Spec(
        name="s", summary="s", axes=("n",), dtypes=("float32",), problem=True,
        arguments=(tensors[0], table, tensors[1], Tensor(name="out", role="output", shape=("n",)), Size(name="n")),
        workloads=(Workload(axes={"n": 8}, dtype="float32"),),
    )  # fmt: skip
    assert [[one.name for one in group] for group in group_persistent(spec)] == [["starts", "ids"], ["table"]]
    assert copies_together(spec, {"starts": 3, "ids": 5, "table": 7}) == {"starts": 3, "ids": 3, "table": 7}


@pytest.mark.gpu
@pytest.mark.parametrize("made", [flashinfer, sol])
def test_a_gpu_judges_the_same(made: Callable, tmp_path: Path):
    """Inputs that go together come from the box to the device; every timed call has some that match."""
    with Evaluator(pytorch.load(str(made(tmp_path)), "cuda"), "cuda", Store(tmp_path / "store")) as evaluator:
        store = evaluator.store
        baseline = evaluator.verify(evaluator.build(store.put(evaluator.kernel.text)))
        assert baseline.passed, baseline.reason
        timed = evaluator.measure(baseline, baseline=baseline.candidate)
        assert timed.passed and len({timing.workload.label for timing in timed.timings}) == 3
        wrong = NEW.replace("ids.long()", "ids.long().flip(0)")
        assert evaluator.verify(evaluator.build(store.put(wrong))).outcome == Outcome.INCORRECT


def test_a_reference_of_theirs_never_runs_in_this_process(tmp_path: Path):
    mark = tmp_path / "mark"
    body = f"import os\nimport pathlib\nos.environ['SEEN'] = 'yes'\npathlib.Path({str(mark)!r}).write_text('here')\n"
    path = flashinfer(tmp_path / "set", change=lambda definition, _w: definition.update(reference=body + REFERENCE))
    with pytest.raises(KernelError, match="cannot be imported"), closing(pytorch.load(str(path), "cpu")):
        pass
    assert not mark.exists()


def test_a_file_that_is_no_definition_says_what_is_one(tmp_path: Path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(KernelError, match="it must be a definition of flashinfer-bench"):
        pytorch.load(str(tmp_path / "x.json"), "cpu")
