"""A short comparison on paper: who is accused on a busy machine, and how long it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from harness.judge import quick
from harness.judge.comparisons import ComparisonRequest
from harness.records import Outcome
from harness.store import Store
from harness.timing import load
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import ArmFailure
from tests.harness.test_contests import WORKLOAD, Paper, build

MATCH = ComparisonRequest(build("mine"), {"baseline": "base", "incumbent": "best"})
DOUBTED = ArmFailure("candidate", Outcome.CHEATED, "its clock says 2.00x")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.LoadWatch, "share", lambda _self: 0.5)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.LoadWatch, "share", lambda _self: 0.0)


def held(session: Paper, seconds: float = 0.0) -> quick.Quick:
    return quick.compare_briefly(session, MATCH, [(WORKLOAD, "hot")], seconds)  # type: ignore[arg-type]


def test_whose_clock_is_doubted_is_timed_again_in_fresh_processes(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0] * 2, incumbent=[8.0] * 2, candidate=[DOUBTED, 4.0])
    found = held(session)
    assert found.outcome is None and found.timings[0].speedup.median == 2.5
    assert found.pairs == ({"baseline": (2.5,) * 8, "incumbent": (2.0,) * 8},)
    assert sorted(session.dropped) == ["base", "best", "mine"]


def test_nobody_is_accused_on_a_busy_machine(tmp_path: Any, busy: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0] * 3, incumbent=[8.0] * 3, candidate=[DOUBTED] * 3)
    found = held(session)
    assert found.outcome is None and not found.timings and "50%" in found.reason and WORKLOAD.label in found.reason


def test_on_a_quiet_one_who_is_doubted_each_time_is_with_the_workload(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0] * 3, incumbent=[8.0] * 3, candidate=[DOUBTED] * 3)
    found = held(session)
    assert found.outcome is Outcome.CHEATED and WORKLOAD.label in found.reason


def test_a_rival_that_fails_ends_no_run_but_the_baseline_does(tmp_path: Any, idle: None) -> None:
    gone = ArmFailure("incumbent", Outcome.RUNTIME_ERROR, "gone")
    found = held(Paper(Store(tmp_path), "cpu", baseline=[10.0] * 3, incumbent=[gone] * 3, candidate=[]))
    assert found.outcome is None and not found.timings and "gone" in found.reason
    gone = ArmFailure("baseline", Outcome.RUNTIME_ERROR, "gone")
    with pytest.raises(RuntimeError, match="the baseline failed"):
        held(Paper(Store(tmp_path), "cpu", baseline=[gone] * 3, incumbent=[], candidate=[]))


class Noisy(Paper):
    """Of its first pass half of the samples say half as fast, of all others every one says twice as fast."""

    def run(self, contest: Any, sides: list[Any], **how: Any) -> ComparisonTimes:
        found = super().run(contest, sides, **how)
        if len(self.left["candidate"]) == 8:
            found.ratios["candidate"] = [0.5, 2.0] * 4
        return found


def test_it_goes_on_until_it_says_something(tmp_path: Any, idle: None) -> None:
    session = Noisy(Store(tmp_path), "cpu", baseline=[10.0] * 9, incumbent=[10.0] * 9, candidate=[5.0] * 9)
    found = held(session, seconds=60)
    assert found.timings[0].samples == 24 and len(found.pairs[0]["incumbent"]) == 24
    assert len(session.left["candidate"]) == 6, "the third pass decides, and there is no fourth"
    session = Noisy(Store(tmp_path), "cpu", baseline=[10.0] * 9, incumbent=[10.0] * 9, candidate=[5.0] * 9)
    assert held(session).timings[0].samples == 8, "one pass where no seconds are given"


def test_load_stands_in_the_timing(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0], incumbent=[8.0], candidate=[4.0])
    assert held(session).timings[0].others == 0.0
