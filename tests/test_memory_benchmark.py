"""benchmarks/memory.py: its pairs are of one family and can be run, and what it counts."""

from __future__ import annotations

import pytest

from benchmarks.memory import PAIRS, best, family_of, first_round_at, place
from harness.records import Interval
from harness.report.result import AttemptRow, PlanRow, Result
from kernels import catalog


@pytest.mark.parametrize(("on", "pair"), [(on, pair) for on, pairs in PAIRS.items() for pair in pairs])
def test_a_pair_is_of_one_family_and_has_something_to_time_on_its_device(on: str, pair: str) -> None:
    kernels = [catalog.load(place(name)) for name in pair.split(":")]
    assert len({family_of(kernel) for kernel in kernels}) == 1 and len(PAIRS[on]) == 8
    for kernel in kernels:
        assert kernel.baselines(on) and any(workload.timed for workload in kernel.spec.suite(on))


def result(*speedups: float | None) -> Result:
    """Of a run whose rounds were kept with these speedups, None where nothing was."""
    rows = [
        AttemptRow(
            round=number, plan=PlanRow(id="p", title="t"), outcome="PASSED" if speedup else "INCORRECT",
            accepted=speedup is not None, speedup=Interval(median=speedup, low=speedup, high=speedup) if speedup else None,
        )
        for number, speedup in enumerate(speedups, start=1)
    ]  # fmt: skip
    return Result.model_construct(attempts=tuple(rows), rounds=len(rows))


def test_what_is_counted_is_the_first_round_that_is_fast_enough() -> None:
    slow, quick = result(None, 1.2, None, 1.5), result(1.48)
    assert best(slow) == 1.5 and best(quick) == 1.48 and best(result(None)) == 1.0
    assert (first_round_at(slow, 1.45), first_round_at(quick, 1.45)) == (4, 1)
    assert first_round_at(quick, 1.6) == 2 and first_round_at(slow, 1.0) == 0
