"""The types refuse lies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness import records
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


def test_a_copy_refuses_what_a_new_verdict_refuses():
    passed = verdict(outcome=Outcome.PASSED, timings=(TIMING,))
    with pytest.raises(ValueError, match=r"see Verdict\.failed"):
        passed.model_copy(update={"outcome": Outcome.CHEATED, "reason": "why"})
    with pytest.raises(ValueError, match="without a single check"):
        passed.model_copy(update={"checks": ()})
    failed = verdict(outcome=Outcome.INCORRECT, reason="why")
    with pytest.raises(ValueError, match="only a PASSED candidate has a time"):
        failed.model_copy(update={"timings": (TIMING,)})
    assert passed.model_copy(update={"notes": ("seen",)}).notes == ("seen",)


def test_one_method_makes_a_failed_verdict_and_leaves_no_time():
    suite = Suite(speedup=TIMING.speedup, comparison=Comparison.FASTER)
    passed = verdict(
        outcome=Outcome.PASSED, timings=(TIMING,), elsewhere=(TIMING,), suite=suite, suites_elsewhere={"pdl": suite},
        suite_incumbent=suite, against={"default": suite}, notes=("kept",),
    )  # fmt: skip
    failed = passed.failed(Outcome.CHEATED, "why")
    assert (failed.outcome, failed.reason, failed.notes, failed.checks) == (Outcome.CHEATED, "why", ("kept",), (CHECK,))
    left = (failed.timings, failed.elsewhere, failed.suites_elsewhere, failed.against)
    assert not any(left) and failed.suite is None and failed.suite_incumbent is None
    with pytest.raises(ValueError, match="no failure"):
        passed.failed(Outcome.PASSED, "why")
    with pytest.raises(ValidationError, match="without a reason"):
        passed.failed(Outcome.CHEATED, "")


def test_a_verdict_begins_in_one_place():
    """From there on `failed` is the only way to a failed one: a copy refuses another outcome."""
    packages = ("harness", "nodes", "graph", "minibatch", "compiler")
    root = Path(records.__file__).parent.parent
    files = [path for package in packages for path in (root / package).rglob("*.py")]
    made = [path.name for path in files for _ in re.findall(r"\bVerdict\((?!Frozen)", path.read_text())]
    assert made == ["verification.py"]
