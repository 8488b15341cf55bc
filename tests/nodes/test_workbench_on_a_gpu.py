"""The workbench over nvcc, a GPU and Nsight Compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from nodes.workbench.arguments import CheckArguments, CompileArguments, ProfileArguments, TimeArguments
from nodes.workbench.bench import Workbench
from tests.graph.test_coding import outside_of_marks

pytestmark = pytest.mark.gpu


def test_every_tool_on_a_kernel_of_the_catalog(tmp_path: Path) -> None:
    store, kernel = Store(tmp_path / "store"), catalog.load("silu_and_mul")
    text = kernel.baseline("cuda")[1].read_text()
    baseline = store.put(text)
    with Evaluator(kernel, "cuda", store, dtypes=("bfloat16",)) as evaluator:
        bench = Workbench(evaluator, store, kernel.spec, baseline=baseline, incumbent=baseline)
        compiled = bench.do(CompileArguments(source=f"{text}\n// mine\n"), "")
        assert compiled.outcome is Outcome.PASSED, compiled.text
        assert "registers" in compiled.text and "occupancy by registers at most" in compiled.text
        mine = compiled.candidate
        assert bench.do(CheckArguments(), mine).outcome is Outcome.PASSED
        timed = bench.do(TimeArguments(), mine)
        assert timed.gain is not None and 0.8 < timed.gain < 1.25, timed.text  # a binary beside itself
        profiled = bench.do(ProfileArguments(), mine).text
        assert "probe ncu" in profiled and "probe sass" in profiled and "global loads" in profiled
        name = next(line for line in profiled.splitlines() if line.startswith("_Z"))
        listed = bench.do(ProfileArguments(function=name), mine).text
        assert "LDG" in listed and "instructions 1 to " in listed
        for said in (compiled.text, timed.text, profiled, listed):
            assert "_Z" not in outside_of_marks(said)
