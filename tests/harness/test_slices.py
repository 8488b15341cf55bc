"""Workloads beyond the memory that a whole reference takes are judged in slices of their leading axis."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.checks import slices
from harness.evaluate import Evaluator
from harness.store import Store
from kernels import catalog

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


def opened(folder: Path, reference: str = "255 - x") -> Evaluator:
    folder.mkdir()
    (folder / "spec.py").write_text(SPEC % (SMALL, LARGE))
    (folder / "reference.py").write_text(f"def reference(x):\n    return {{'out': {reference}}}\n")
    (folder / "baseline.cpp").write_text(TEXT % "")
    return Evaluator(catalog.load(str(folder)), "cpu", Store((folder / "store").resolve()), memory_bytes=MEMORY)


@pytest.mark.parametrize(("stops", "outcome"), [("", "PASSED"), ("if (n > (1 << 21)) n = 1 << 21;", "INCORRECT")])
def test_what_is_too_large_for_one_reference_is_judged_wholly(stops: str, outcome: str, tmp_path: Path) -> None:
    with opened(tmp_path / "flip") as evaluator:
        assert not any("left out" in notice for notice in evaluator.notices)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(TEXT % stops)))
        assert verdict.outcome == outcome, verdict.reason
        count = -(-LARGE // slices.rows_at_once(evaluator.spec, evaluator.suite()[1], "n", MEMORY))
        said = [verdict.reason] if stops else [check.name for check in verdict.checks]
        assert count > 8 and any(f"in {count} slices" in one for one in said), said


def test_rows_that_follow_from_others_are_not_judged_apart(tmp_path: Path) -> None:
    with opened(tmp_path / "flip", "255 - x - x.max()") as evaluator:
        assert any("left out, too large" in notice for notice in evaluator.notices)
        assert [workload.axes["n"] for workload in evaluator.suite()] == [SMALL]
