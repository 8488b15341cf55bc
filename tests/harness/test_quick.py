"""A short comparison on paper: who is accused on a busy machine, and how many series decide."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from harness.judge import quick
from harness.judge.series import ComparisonRequest
from harness.records import Comparison, Outcome
from harness.store import Store
from harness.timing import comparison, load
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
    """One case, for so many seconds."""
    return quick.compare_briefly(session, MATCH, [(WORKLOAD, "hot")], seconds)  # type: ignore[arg-type]


def test_whose_clock_is_doubted_is_timed_again_in_fresh_processes(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0] * 2, incumbent=[8.0] * 2, candidate=[DOUBTED, 4.0])
    found = held(session)
    assert found.outcome is None and found.timings[0].speedup.median == 2.5
    assert found.pairs == ({"baseline": ((2.5,) * 8,), "incumbent": ((2.0,) * 8,)},)
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


def test_one_series_decides_nothing_and_three_that_agree_do(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0] * 9, incumbent=[10.0] * 9, candidate=[5.0] * 9)
    found = held(session)
    assert found.timings[0].speedup.low == 2.0, "samples of one series are alike"
    assert comparison.compare_series(found.pairs[0]["baseline"], 0.03) is Comparison.UNCLEAR
    (timing,) = held(session, seconds=60).timings
    assert timing.comparison is Comparison.FASTER and timing.samples == 24
    assert len(session.left["candidate"]) == 5, "the third series decides, and there is no fourth"
    assert session.dropped.count("mine") == 2, "each series begins in fresh processes"


def test_series_that_contradict_each_other_say_nothing_however_narrow_each_is() -> None:
    """On a busy machine five samples of equal code said 3.16x, five others 0.14x."""
    series = [[ratio] * 5 for ratio in (3.16, 0.14, 1.1, 0.9, 1.0, 1.05)]
    for known in range(1, len(series) + 1):
        assert comparison.compare_series(series[:known], 0.03) is Comparison.UNCLEAR
        assert comparison.series_needed(series[:known], 0.03) > 0
    assert comparison.series_interval(series).low < 1 < comparison.series_interval(series).high


@pytest.mark.parametrize(
    ("medians", "decided"), [([2.0, 2.1, 1.9], True), ([1.1, 0.9, 1.3], False), ([2.0, 2.0], False)]
)
def test_series_that_are_needed(medians: list[float], decided: bool) -> None:
    """As many as would decide if they differed as those before: two dozen of the middle ones do."""
    series = [[median] * 3 for median in medians]
    needed = comparison.series_needed(series, 0.03)
    assert (needed == 0) == decided == (comparison.compare_series(series, 0.03) is not Comparison.UNCLEAR)
    if len(series) > 2 and needed:
        assert comparison.compare_series(series * (1 + -(-needed // len(series))), 0.03) is not Comparison.UNCLEAR


def test_of_a_binary_beside_itself_few_series_say_anything() -> None:
    """Each series off by a factor of its own: of five samples as if independent one in two said FASTER or SLOWER."""
    rng, wrong, naive = random.Random(0), 0, 0
    for _ in range(400):
        series = []
        for _ in range(5):
            off = math.exp(rng.gauss(0, 0.5))
            series.append([off * math.exp(rng.gauss(0, 0.05)) for _ in range(3)])
        wrong += comparison.compare_series(series, 0.03) is not Comparison.UNCLEAR
        naive += comparison.compare(comparison.median_interval(series[0]), 0.03) is not Comparison.UNCLEAR
    assert wrong <= 8 and naive > 200, (wrong, naive)


def test_other_sources_take_their_turns_and_each_arm_shows_how_its_samples_lie(tmp_path: Any, idle: None) -> None:
    beside = ComparisonRequest(build("mine"), {"baseline": "base", "incumbent": "best", "other 2": "third"})
    times = {
        "baseline": [10.0],
        "incumbent": [8.0],
        "candidate": [[3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 9.0]],
        "other 2": [2.0],
    }
    session = Paper(Store(tmp_path), "cpu", **times)
    found = quick.compare_briefly(session, beside, [(WORKLOAD, "hot")])  # type: ignore[arg-type]
    assert set(found.pairs[0]) == {"baseline", "incumbent", "other 2"} and found.pairs[0]["other 2"][0][1] == 0.5
    spread = found.spreads[0]["candidate"]
    assert set(found.spreads[0]) == {"baseline", "incumbent", "candidate", "other 2"} and spread.cpu_us is None
    assert spread.least_us <= spread.lower_us <= spread.median_us <= spread.upper_us


def test_where_none_is_named_the_smallest_and_the_largest_are_timed_in_both_states(tmp_path: Any) -> None:
    session = Paper(Store(tmp_path), "cpu")
    session.moved_bytes = lambda workload: workload.axes["tokens"]  # type: ignore[method-assign]
    assert [(w.axes["tokens"], cache) for w, cache in quick.choose_cases(session)] == [
        (4, "cold"),
        (4, "hot"),
        (4096, "cold"),
    ]  # type: ignore[arg-type]


def test_load_stands_in_the_timing(tmp_path: Any, idle: None) -> None:
    session = Paper(Store(tmp_path), "cpu", baseline=[10.0], incumbent=[8.0], candidate=[4.0])
    assert held(session).timings[0].others == 0.0


def test_cpu_time_tells_a_source_that_waits_for_a_core_from_a_slow_one() -> None:
    us = {"baseline": 10.0, "candidate": 40.0}
    times = ComparisonTimes(
        us, {name: [10.0 / one] * 3 for name, one in us.items()}, {}, 3, {}, {name: [one * 1e-6] * 3 for name, one in us.items()},
        cpu={name: [8e-6, 9e-6, 30e-6] for name in us},
    )  # fmt: skip
    found = quick._spreads(ComparisonRequest(build("mine"), {"baseline": "base"}), [times])
    assert found["candidate"].cpu_us == pytest.approx(9.0) and found["candidate"].cpu_share == pytest.approx(0.225)
    assert found["candidate"].cpu_us == found["baseline"].cpu_us, "four times as long for the same work"
