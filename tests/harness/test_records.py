"""The types refuse lies."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness.records import Check, Comparison, Interval, Outcome, Suite, Timing, Verdict
from kernels.spec import Workload

CHECK = Check(workload="w", name="ordinary", passed=True)
TIMING = Timing(
    workload=Workload(axes={"n": 1}, dtype="float32"),
    cache="cold",
    baseline_us=2.0,
    time_us=1.0,
    speedup=Interval(median=2, low=1.9, high=2.1),
    comparison=Comparison.FASTER,
    samples=8,
    light_us=0.5,
)


def verdict(**fields) -> Verdict:
    return Verdict(**{"candidate": "0" * 64, "kernel": "k", "device": "d", "checks": (CHECK,), **fields})


def test_passed_needs_checks():
    with pytest.raises(ValidationError, match="without a single check"):
        verdict(outcome=Outcome.PASSED, checks=())


def test_passed_refuses_a_failed_check():
    with pytest.raises(ValidationError, match="failed checks: guards"):
        verdict(outcome=Outcome.PASSED, checks=(CHECK, Check(workload="w", name="guards", passed=False)))


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.PASSED])
def test_only_passed_has_timings(outcome):
    suite = Suite(speedup=TIMING.speedup, comparison=Comparison.FASTER)
    with pytest.raises(ValidationError, match="only a PASSED candidate has a time"):
        verdict(outcome=outcome, reason="why", timings=(TIMING,))
    with pytest.raises(ValidationError, match="only a PASSED candidate has a time"):
        verdict(outcome=outcome, reason="why", suite=suite)


def test_a_failure_needs_a_reason():
    with pytest.raises(ValidationError, match="without a reason"):
        verdict(outcome=Outcome.INCORRECT)


def test_records_are_frozen_and_survive_json():
    passed = verdict(outcome=Outcome.PASSED, timings=(TIMING,))
    with pytest.raises(ValidationError):
        passed.outcome = Outcome.CHEATED
    assert Verdict.model_validate_json(passed.model_dump_json()) == passed
    assert passed.timings[0].light_fraction == 0.5


def test_no_time_is_zero():
    with pytest.raises(ValidationError):
        TIMING.model_validate({**TIMING.model_dump(), "time_us": 0.0})
