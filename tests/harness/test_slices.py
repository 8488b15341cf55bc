"""Workloads beyond the memory that a whole reference takes are judged in slices of their leading axis."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.checks import fitting, slices
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog
from kernels.spec import Workload

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
SMALL, LARGE, MEMORY = 1 << 12, (1 << 21) + 40, 32 << 20
SPEC = """from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="flip", summary="out = 255 - x", axes=("n",), dtypes=("uint8",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",)), Tensor(name="out", role="output", shape=("n",)), Size(name="n"),
    ),
    workloads=(
        Workload(axes={"n": %d}, dtype="uint8"), Workload(axes={"n": %d}, dtype="uint8", timed=False),
    ),
)
"""
TEXT = """#include <cstdint>
extern "C" void flip_uint8(const uint8_t* x, uint8_t* out, int64_t n) {
    %s
    for (int64_t i = 0; i < n; ++i) out[i] = 255 - x[i];
}
"""


def opened(folder: Path, reference: str = "255 - x", **more: Any) -> Evaluator:
    folder.mkdir()
    (folder / "spec.py").write_text(SPEC % (SMALL, LARGE))
    (folder / "reference.py").write_text(f"def reference(x):\n    return {{'out': {reference}}}\n")
    (folder / "baseline.cpp").write_text(TEXT % "")
    return Evaluator(catalog.load(str(folder)), "cpu", Store((folder / "store").resolve()), memory_bytes=MEMORY, **more)


@pytest.mark.parametrize(("stops", "outcome"), [("", "PASSED"), ("if (n > (1 << 21)) n = 1 << 21;", "INCORRECT")])
def test_what_is_too_large_for_one_reference_is_judged_wholly(stops: str, outcome: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with opened(tmp_path / "flip", say=lines.append) as evaluator:
        assert not any("left out" in notice for notice in evaluator.notices)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(TEXT % stops)))
        assert verdict.outcome == outcome, verdict.reason
        count = -(-LARGE // slices.rows_at_once(evaluator.spec, evaluator.suite()[1], "n", MEMORY, "cpu"))
        said = [verdict.reason] if stops else [check.name for check in verdict.checks]
        assert count > 8 and any(f"in {count} slices" in one for one in said), said
        told = [line for line in lines if line.endswith("ordinary: 50 %")]
        assert told and all(str(LARGE) in line for line in told), lines


def test_rows_that_follow_from_others_are_not_judged_apart(tmp_path: Path) -> None:
    with opened(tmp_path / "flip", "255 - x - x.max()") as evaluator:
        assert any("left out, too large" in notice for notice in evaluator.notices)
        assert [workload.axes["n"] for workload in evaluator.suite()] == [SMALL]


def test_a_slice_on_a_cpu_fits_its_caches_and_is_no_less_than_what_all_need(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(SPEC % (SMALL, 1 << 31), scope)
    spec, memory = scope["SPEC"], 24 << 30
    workload = spec.workloads[1]
    rows = slices.rows_at_once(spec, workload, "n", memory, "cpu")
    assert 1 << 17 < rows <= slices.CPU_SLICE_BYTES // fitting.estimate_bytes(spec, at(workload, 1))
    assert slices.rows_at_once(spec, workload, "n", memory, "cuda") > 1 << 25
    table = spec.arguments[0].model_copy(update={"name": "table", "shape": (str(1 << 24),)})
    beside = spec.model_copy(update={"arguments": (table, *spec.arguments)})
    assert slices.rows_at_once(beside, workload, "n", memory, "cpu") > 1 << 22


def at(workload: Workload, n: int) -> Workload:
    return workload.model_copy(update={"axes": {"n": n}})
