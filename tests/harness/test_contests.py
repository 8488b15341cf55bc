"""Who is timed again, who is accused and what is said beside the times: on paper, with comparisons that are scripted.

Part of it happens on a GPU alone, and decides there as it does here.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness import device
from harness.evaluate import Evaluator
from harness.judge import comparisons, series
from harness.judge.comparisons import ALONE_BLOCKS, OtherContexts
from harness.judge.draws import _launch
from harness.judge.many_calls import _is_clean, _leaks
from harness.judge.series import ComparisonRequest
from harness.processes.worker import WorkerFailure
from harness.records import Build, Check, Comparison, DeviceFacts, Interval, Outcome, Timing, Verdict
from harness.store import Store
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import ArmFailure
from kernels import catalog
from kernels.spec import Workload

KERNEL = catalog.load("silu_and_mul")
WORKLOAD = Workload(axes={"tokens": 4, "hidden": 64}, dtype="float32")
CASE: series.Case = (WORKLOAD, "hot", "plain")
COLD: series.Case = (WORKLOAD, "cold", "plain")


def build(name: str) -> Build:
    return Build(candidate=name, backend="cuda", ok=True, artefact=f"{name}.so")


def timing(baseline_us: float, **more: Any) -> Timing:
    one = Interval(median=1, low=1, high=1)
    return Timing(
        workload=WORKLOAD, cache="cold", baseline_us=baseline_us, time_us=1, speedup=one, comparison=Comparison.SAME,
        samples=8, **more,
    )  # fmt: skip


def test_weights_decide_the_suite_and_it_says_so(tmp_path) -> None:
    """Many fast calls gain, a rare slow one loses more than they do: the geometric mean would hide it."""
    session = Paper(Store(tmp_path))
    ratios, one = [[2.0] * 20, [0.6] * 20], Interval(median=1, low=1, high=1)

    def timed(time_us: float, weight: float | None) -> Timing:
        return Timing(
            workload=WORKLOAD.model_copy(update={"weight": weight}), cache="cold", baseline_us=1, time_us=time_us, speedup=one,
            comparison=Comparison.SAME, samples=20,
        )  # fmt: skip

    plain = comparisons.suite_of(session, ratios, [timed(1.0, None), timed(1000.0, None)])
    weighted = comparisons.suite_of(session, ratios, [timed(1.0, 10), timed(1000.0, 1)])
    assert plain is not None and plain.comparison is Comparison.FASTER and not plain.weighted
    assert weighted is not None and weighted.comparison is Comparison.SLOWER and weighted.weighted


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are timed as they stand."""
    monkeypatch.setattr(series.random, "sample", lambda of, _count: list(of))


class Paper:
    """As much of a EvaluationSession as comparisons need; `times_us` are a comparison's, one after another, by side."""

    def __init__(self, store: Store, on: str = "cuda", **times_us: list[Any]) -> None:
        self.device, self.store, self.spec, self.kernel = on, store, KERNEL.spec, KERNEL
        self.left = {name: list(times) for name, times in times_us.items()}
        self.said: list[str] = []
        self.dropped: list[str] = []
        self.asked: list[tuple[Any, ...]] = []
        self.clocks: list[dict[str, str]] = []
        self.measured: dict[str, str] = {}
        self.light, self.takes_s = 0.1, 1.0
        self.turned, self.made = False, list[str]()
        self.pool = SimpleNamespace(
            drop=self.dropped.append, match=lambda *_: None, settle=lambda: None, begin=lambda _builds: None, get=lambda one: SimpleNamespace(name=one.candidate),
            guarding_memory=lambda candidate: nullcontext(),
        )  # fmt: skip

    def say(self, text: str) -> None:
        self.said.append(text)

    def build(self, name: str) -> Build:
        return build(name)

    def chance_evidence(self, *_: Any) -> None:
        return None

    def make_arm(self, name: str, _build: Build) -> Any:
        self.made.append(name)
        return SimpleNamespace(name=name)

    def open_comparison(self, *case: Any) -> Any:
        self.asked.append(case)
        return SimpleNamespace()

    def moved_bytes(self, workload: Workload) -> int:
        return 4096

    def sol_us(self, *_case: Any, again: bool = False) -> float:
        return self.light

    def compile_ahead(self, one: Build, workloads: tuple[Workload, ...]) -> None:
        """Nothing here is Triton's."""

    def suite(self, held_out: bool = False) -> tuple[Workload, ...]:
        large = WORKLOAD.model_copy(update={"axes": {"tokens": 4096, "hidden": 64}})
        return WORKLOAD, WORKLOAD.model_copy(update={"timed": False}), large

    def caches(self, workload: Workload) -> tuple[str, ...]:
        return ("cold", "hot") if workload.axes["tokens"] == 4 else ("cold",)

    def run(
        self, _contest: Any, sides: list[Any], *, check: tuple[str, ...] = (), blocks: Any = None, **_: Any
    ) -> ComparisonTimes:
        us: dict[str, float] = {}
        for side in sides:
            time_us = self.left[side.name].pop(0)
            if isinstance(time_us, Exception):
                raise time_us
            us[side.name] = time_us
        self.blocks = blocks
        each = {name: time_us if isinstance(time_us, list) else [time_us] * 8 for name, time_us in us.items()}
        us = {name: statistics.median(times) for name, times in each.items()}
        ratios = {name: [us["baseline"] / time_us for time_us in times] for name, times in each.items()}
        checks = {name: [Check(workload="w", name=name, passed=True)] if name in check else [] for name in us}
        count = len(ratios["baseline"])
        raw = {name: [us[name] * 1e-6] * count for name in us}
        return ComparisonTimes(us, ratios, checks, count, dict.fromkeys(us, True), raw, seconds=self.takes_s)


MATCH = ComparisonRequest(build("mine"), {"baseline": "base"})


# --- how often -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on", "mine", "bound"), [("plain", 8.0, 6.0), ("pdl", 8.0, None), ("pdl", 4.0, 6.0)])
def test_beside_other_neighbours_the_bound_is_asked_for_where_the_candidate_could_be_below_half_of_it(
    tmp_path: Any, on: Any, mine: float, bound: float | None
) -> None:
    session = Paper(Store(tmp_path), baseline=[10.0], candidate=[mine])
    session.light = 6.0
    (found,) = comparisons.time_cases(session, MATCH, [(*CASE[:2], on)])  # type: ignore[arg-type]
    assert found.timing.light_us == bound
    session = Paper(Store(tmp_path), baseline=[10.0], candidate=[2.0])
    session.light = 6.0
    with pytest.raises(ArmFailure, match="moving its bytes takes 6"):
        comparisons.time_cases(session, MATCH, [(*CASE[:2], on)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mine", "samples", "median"),
    [
        ([10 / 1.04, 10.0], 16, (1.04 + 1) / 2),
        ([10 * 1.04, 10.0], 16, None),
        ([10 / 1.16], 8, 1.16),
        ([10.0], 8, 1.0),
        ([10 / 1.06] * 2, 16, 1.06),
        ([10 / 1.04] * 3, 24, 1.04),
        ([10 / 0.65, 10.0], 16, None),
        ([10 / 0.65] * 2, 16, 0.65),
        ([10 * 1.04, 10 * 1.04, 10.0], 24, 1 / 1.04),
    ],
    ids=[
        "a little faster",
        "a little slower",
        "much faster",
        "the same",
        "twice the same",
        "thrice the same",
        "far slower in two processes",
        "far slower in all",
        "not at the third",
    ],
)
def test_what_is_faster_or_slower_by_little_is_timed_again_in_fresh_processes(
    tmp_path: Any, mine: list[float], samples: int, median: float | None
) -> None:
    session = Paper(Store(tmp_path), baseline=[10.0] * 3, candidate=mine)
    (found,) = comparisons.time_cases(session, MATCH, [CASE])  # type: ignore[arg-type]
    assert found.timing.samples == len(found.speedups) == samples and not session.left["candidate"]
    assert session.dropped == ["base", "mine"] * (samples // 8 - 1)
    assert session.blocks == ((8, 8) if samples > 8 else None), "all count alike"
    if samples == 24:
        assert found.timing.time_us == pytest.approx(sum(mine) / 3, rel=1e-9)
    if median is not None:
        assert found.timing.speedup.median == pytest.approx(median, rel=1e-6)
    assert [check.name for check in found.checks] == ["candidate"] * (samples // 8)


@pytest.mark.parametrize(("third", "said"), [(10.3, "SLOWER"), (9.9, "UNCLEAR")])
def test_slower_is_what_each_pair_of_processes_shows(tmp_path: Any, third: float, said: str) -> None:
    """A process may be slower than another of the same text for as long as it lives: by samples of all three this was 3 % of 2.1 us."""
    usual = [10.2, 10.22, 10.25, 10.28, 10.32, 10.35, 10.38, 10.4]
    candidate = [usual * 3, usual * 3, [time * third / 10.3 for time in usual * 3]]
    session = Paper(Store(tmp_path), baseline=[[10.0] * 24] * 3, candidate=candidate)
    (found,) = comparisons.time_cases(session, MATCH, [CASE])  # type: ignore[arg-type]
    assert (len(found.lengths), str(found.timing.comparison)) == (3, said)
    assert found.timing.speedup.median < 0.98


@pytest.mark.parametrize(
    ("spread", "again"),
    [
        ([9.0, 9.5, 9.5, 9.5, 9.6, 9.6, 9.7, 10.5], True),  # 5 % faster, by an interval that reaches below 1
        ([9.0, 9.9, 9.95, 9.95, 9.95, 10.0, 10.1, 10.5], False),  # within the margin
        ([9.5, 10.0, 10.3, 10.4, 10.4, 10.5, 10.6, 11.0], False),  # slower, if anything
    ],
)
def test_what_seems_faster_and_is_unclear_is_timed_once_more(tmp_path: Any, spread: list[float], again: bool) -> None:
    session = Paper(Store(tmp_path), baseline=[10.0] * 3, candidate=[spread] * 3)
    (found,) = comparisons.time_cases(session, MATCH, [CASE])  # type: ignore[arg-type]
    if again:  # and then, FASTER by little, a third time
        assert found.timing.comparison == "FASTER" and len(session.dropped) == 4 and found.timing.samples == 24
    else:
        assert found.timing.comparison == "UNCLEAR" and not session.dropped and found.timing.samples == 8


NOISY = [8.6, 9.0, 9.5, 9.52, 9.55, 9.6, 10.0, 10.5]
"""Times beside 10: 5 % faster, by an interval that reaches below 1."""


@pytest.mark.parametrize(
    ("device", "takes_s", "wide", "series", "said"),
    [
        ("cpu", 1.0, NOISY, 4, "FASTER"),  # it goes on in fresh processes until it is found
        ("cpu", 60.0, NOISY, 2, "UNCLEAR"),  # but not longer than it may
        ("cuda", 1.0, NOISY, 4, "FASTER"),
        ("cuda", 60.0, NOISY, 2, "UNCLEAR"),
        ("cpu", 1.0, [time * 1.05 for time in NOISY], 1, "UNCLEAR"),  # beside itself it does not
    ],
)
def test_what_nearly_says_faster_goes_on_for_a_time(
    tmp_path: Any, device: str, takes_s: float, wide: list[float], series: int, said: str
) -> None:
    narrow = [9.45, 9.5, 9.5, 9.5, 9.5, 9.5, 9.5, 9.55] * 4
    session = Paper(
        Store(tmp_path),
        on=device,
        baseline=[10.0, 10.0, [10.0] * 32, [10.0] * 32],
        candidate=[wide, wide, narrow, narrow],
    )
    session.takes_s = takes_s
    (found,) = comparisons.time_cases(session, MATCH, [CASE])  # type: ignore[arg-type]
    done = 4 - len(session.left["candidate"])
    assert (found.timing.comparison, len(session.dropped)) == (said, 2 * (done - 1))
    assert done == series or (said == "FASTER" and 2 < done <= series)


class Busy(Paper):
    """Of a machine's CPU others take a part."""

    def run(self, *args: Any, **how: Any) -> ComparisonTimes:
        return replace(super().run(*args, **how), others=0.3, by_series=True)


@pytest.mark.parametrize(
    ("candidate", "series", "said"),
    [
        ([8.0, 8.1, 8.05], 3, "FASTER"),  # three pairs of processes agree
        ([8.0, 10.0, 10.0, 10.0], 2, "UNCLEAR"),  # one was lucky: 1.22x of a kernel beside itself
        ([14.0, 10.0], 2, "UNCLEAR"),
        ([14.0, 18.0, 10.0], 3, "UNCLEAR"),  # two were unlucky, and all samples together say SLOWER
        ([14.0, 14.1, 14.2], 3, "SLOWER"),
        ([4.0], 1, "FASTER"),  # by more than chance
    ],
)
def test_on_a_cpu_that_others_use_pairs_of_processes_must_agree(
    tmp_path: Any, candidate: list[float], series: int, said: str
) -> None:
    """Samples of one pair of processes are alike: 1 FASTER and 3 SLOWER of 114 comparisons of a kernel with itself, beside eleven other jobs."""
    session = Busy(Store(tmp_path), on="cpu", baseline=[10.0] * 9, candidate=[*candidate, *[10.0] * 6])
    (found,) = comparisons.time_cases(session, MATCH, [COLD])  # type: ignore[arg-type]
    assert str(found.timing.comparison) == said and len(found.lengths) >= series
    suite = comparisons.suite_of(session, [found.speedups], [found.timing], [found.lengths])  # type: ignore[arg-type]
    assert suite is not None and str(suite.comparison) == said


@pytest.mark.usefixtures("in_order")
def test_a_suite_that_says_faster_on_a_busy_cpu_is_timed_by_three_pairs_of_processes(tmp_path: Any) -> None:
    """No case says it alone, and all are of the same two processes."""
    lucky = [8.8, 9.0, 9.2, 9.3, 9.4, 9.6, 9.7, 10.1]
    session = Busy(
        Store(tmp_path),
        on="cpu",
        baseline=[10.0] * 12,
        candidate=[lucky] * 4 + [lucky] * 4 + [[t * 1.03 for t in lucky]] * 4,
    )
    session.takes_s = 60.0
    cases: list[series.Case] = [(WORKLOAD, cache, on) for cache in ("cold", "hot") for on in ("plain", "pdl")]
    found = comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    ratios, timings = [one.speedups for one in found], [one.timing for one in found]
    plain = comparisons.suite_of(session, ratios, timings)  # type: ignore[arg-type]
    suite = comparisons.suite_of(session, ratios, timings, [one.lengths for one in found])  # type: ignore[arg-type]
    assert plain is not None and plain.comparison == "FASTER"
    assert {len(one.lengths) for one in found} == {3} and suite is not None and suite.comparison == "UNCLEAR"


@pytest.mark.usefixtures("in_order")
def test_whether_a_suite_may_be_chance_is_asked_by_its_calls_weights(tmp_path: Any) -> None:
    """All cases alike say nothing, and those that make up nearly all calls say FASTER: the other one is of these processes, too."""
    lucky, other = [8.8, 9.0, 9.2, 9.3, 9.4, 9.4, 9.5, 10.1], [9.8, 10.2, 10.4, 10.5, 10.5, 10.6, 10.7, 10.9]
    session = Busy(Store(tmp_path), on="cpu", baseline=[10.0] * 6, candidate=[lucky, other, lucky, lucky, other, other])
    cases: list[series.Case] = [
        (WORKLOAD.model_copy(update={"weight": weight}), "cold", on) for weight, on in ((1e3, "plain"), (1.0, "pdl"))
    ]
    session.takes_s = 60.0
    found = comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert {len(one.lengths) for one in found} == {3}


def test_as_many_contests_as_were_asked_for_count_as_one(tmp_path: Any) -> None:
    """And who is begun first takes turns."""
    session = Paper(Store(tmp_path), baseline=[10.0] * 3, candidate=[9.8] * 3)
    (found,) = comparisons.time_cases(session, MATCH, [CASE], 3)  # type: ignore[arg-type]
    assert session.made == ["baseline", "candidate", "candidate", "baseline", "baseline", "candidate"]
    assert found.timing.samples == 24 and session.left == {"baseline": [], "candidate": []}
    assert session.dropped == ["base", "mine"] * 2


@pytest.mark.usefixtures("in_order")
def test_cases_that_say_little_are_all_timed_again_in_the_same_fresh_processes(tmp_path: Any) -> None:
    """To end two processes and to begin two takes longer on a GPU than five comparisons."""
    session = Paper(Store(tmp_path), baseline=[10.0] * 6, candidate=[9.5, 10.0, 10.0, 10.6, 9.5, 10.0])
    cases: list[series.Case] = [(WORKLOAD, cache, on) for cache in ("cold", "hot") for on in ("plain", "pdl")]
    found = comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert session.asked == [*cases, cases[0], cases[3]] and session.dropped == ["base", "mine"]
    assert [(one.timing.cache, one.timing.company, len(one.speedups)) for one in found] == [
        ("cold", "plain", 16), ("cold", "pdl", 8), ("hot", "plain", 8), ("hot", "pdl", 16),
    ]  # fmt: skip


@pytest.mark.usefixtures("in_order")
def test_what_is_far_faster_in_one_state_of_the_cache_is_timed_again(tmp_path: Any) -> None:
    session = Paper(Store(tmp_path), baseline=[10.0] * 6, candidate=[6.5, 10.0, 5.0, 4.9, 10.0])
    large = session.suite()[2]
    cases: list[series.Case] = [(one, cache, "plain") for one in (WORKLOAD, large) for cache in ("cold", "hot")]
    found = comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert session.asked == [*cases, cases[0]]
    assert [one.timing.comparison for one in found] == ["UNCLEAR", "SAME", "FASTER", "FASTER"]


@pytest.mark.usefixtures("in_order")
def test_what_gains_more_than_twice_in_each_state_of_the_cache_is_timed_once(tmp_path: Any) -> None:
    """Chance has said a third; of 5x and 3x it does not make anything else than FASTER."""
    cases: list[series.Case] = [(WORKLOAD, cache, "plain") for cache in ("cold", "hot")]
    session = Paper(Store(tmp_path), baseline=[10.0] * 2, candidate=[2.0, 3.3])
    found = comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert session.asked == cases and [one.timing.comparison for one in found] == ["FASTER", "FASTER"]
    session = Paper(Store(tmp_path), baseline=[10.0] * 3, candidate=[5.1, 3.3, 5.1])
    comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert session.asked == [*cases, cases[0]], "1.96x where it is cold"


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize(("on", "hot_us", "again"), [("cuda", 7.9, [0]), ("cuda", 8.1, [0, 1]), ("cpu", 7.9, [0, 1])])
def test_what_gains_a_quarter_in_a_hot_cache_is_no_chance_on_a_gpu(
    tmp_path: Any, on: str, hot_us: float, again: list[int]
) -> None:
    """Where it was hot chance has said 11 % once; where it was cold, a third."""
    cases: list[series.Case] = [(WORKLOAD, cache, "plain") for cache in ("cold", "hot")]
    session = Paper(Store(tmp_path), on, baseline=[10.0] * 4, candidate=[6.5, hot_us] * 2)
    comparisons.time_cases(session, MATCH, cases)  # type: ignore[arg-type]
    assert session.asked == [*cases, *(cases[at] for at in again)]


def test_a_rival_that_fails_gets_a_fresh_process_twice_and_the_candidate_none(tmp_path: Any) -> None:
    fault, late = ArmFailure("baseline", Outcome.TIMEOUT, "20 s"), ArmFailure("candidate", Outcome.CHEATED, "early")
    session = Paper(Store(tmp_path), baseline=[fault, fault, 10.0], candidate=[5.0])
    assert series.compare_fairly(session, MATCH, CASE).ratios["candidate"] == [2.0] * 8  # type: ignore[arg-type]
    assert session.dropped == ["base", "base"] and all("again: baseline: 20 s" in said for said in session.said[1:])
    for script in ({"baseline": [fault] * 3, "candidate": []}, {"baseline": [10.0], "candidate": [late]}):
        with pytest.raises(ArmFailure) as met:
            series.compare_fairly(Paper(Store(tmp_path), **script), MATCH, CASE)  # type: ignore[arg-type]
        assert met.value in (fault, late)


def test_beside_an_incumbent_a_candidate_is_compared_with_both(tmp_path: Any) -> None:
    request = ComparisonRequest(build("mine"), {"baseline": "base", "incumbent": "best"})
    session = Paper(Store(tmp_path), baseline=[12.0], incumbent=[6.0], candidate=[4.0])
    (found,) = comparisons.time_cases(session, request, [CASE])  # type: ignore[arg-type]
    assert found.speedups == [3.0] * 8 and found.against == [1.5] * 8
    assert found.timing.against_incumbent.median == 1.5 and found.timing.incumbent_speedup.median == 2.0
    assert (found.timing.baseline_us, found.timing.incumbent_us, found.timing.time_us) == (12.0, 6.0, 4.0)


# --- the baseline by itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alone", "tries", "accused"),
    [([9.2], 1, False), ([8.0, 9.2], 2, False), ([8.0, 8.1, 8.9], 3, True), ([9.0, 9.0, 9.0], 3, True)],
    ids=["as fast", "one of two speeds", "slowed", "slowed by a ninth"],
)
def test_who_slows_the_baseline_down_is_accused(tmp_path: Any, alone: list[float], tries: int, accused: bool) -> None:
    """Ten microseconds beside it; without it the slowest of three fresh processes decides."""
    session = Paper(Store(tmp_path), baseline=alone)
    found = comparisons._compare_alone(session, MATCH, timing(10.0))  # type: ignore[arg-type]
    said = f"the baseline takes 10.00 us beside it and {max(alone):.2f} us without it"
    assert found.says.startswith(said) if accused else found is None
    assert session.dropped == ["mine", *["base"] * (tries - (not accused))] and session.left == {"baseline": []}
    assert session.blocks == (ALONE_BLOCKS, ALONE_BLOCKS) and session.asked == [(WORKLOAD, "cold")]


def test_on_a_cpu_the_baseline_is_timed_beside_the_candidate_again_before_it_counts_as_slowed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 us may have been anybody's doing: only what comes again counts, the smallest of it, and nobody is accused."""
    once = Paper(Store(tmp_path), "cpu", baseline=[8.0, 8.2, 8.0], candidate=[4.0])
    assert comparisons._compare_alone(once, MATCH, timing(10.0)) is None  # type: ignore[arg-type]
    times = [8.0, 10.0, 8.0, 9.6, 8.0, 9.8]
    always = Paper(Store(tmp_path), "cpu", baseline=times, candidate=[4.0] * 3)
    assert comparisons._compare_alone(always, MATCH, timing(10.0)).by == pytest.approx(9.6 / 8)  # type: ignore[arg-type,union-attr]
    twice = Paper(Store(tmp_path), "cpu", baseline=[10.0, *times] * 2, candidate=[4.0] * 8)
    (found,), suite, _ = comparisons._not_slowed(twice, MATCH, [COLD], 1, ())  # type: ignore[arg-type]
    assert found.timing.speedup.median == pytest.approx(2.5 / 1.2) and suite.comparison is Comparison.FASTER


def test_who_slows_the_baseline_down_once_is_timed_again_and_only_that_counts(tmp_path: Any) -> None:
    """Beside it 10 us, alone 8; then 8 and 8: the candidate is 2x as fast, not 2.5x. Who does it again is accused, or counts as alone."""
    slow, fair = [10.0, 8.0, 8.0, 8.0], [8.0, 8.0]
    session = Paper(Store(tmp_path), baseline=[*slow, *fair], candidate=[4.0, 4.0])
    ended: list[list[str]] = []
    (found,), suite, _ = comparisons._not_slowed(  # type: ignore[arg-type]
        session, MATCH, [COLD], 1, (), lambda: ended.append(list(session.dropped))
    )
    assert ended[0] == [] and len(ended) == 2, "its process lives when it is looked at"
    assert found.timing.speedup.median == 2.0 and suite is not None and suite.comparison is Comparison.FASTER
    assert "timing again: the baseline takes 10.00 us beside it" in session.said[-2]
    with pytest.raises(ArmFailure, match="10.00 us beside it and 8.00 us without it") as met:
        comparisons._not_slowed(Paper(Store(tmp_path), baseline=slow * 2, candidate=[4.0] * 2), MATCH, [COLD], 1, ())  # type: ignore[arg-type]
    assert (met.value.arm, met.value.outcome) == ("candidate", Outcome.CHEATED)
    little = [10.0, 9.0, 9.0, 9.0] * 2
    (found,), suite, _ = comparisons._not_slowed(  # type: ignore[arg-type]
        Paper(Store(tmp_path), baseline=little, candidate=[4.0] * 2), MATCH, [COLD], 1, ()
    )
    assert found.timing.baseline_us == 9.0 and found.timing.speedup.median == 9 / 4 and found.speedups == [9 / 4] * 8
    assert (
        suite is not None and suite.speedup.median == pytest.approx(9 / 4) and "counted as alone" in found.timing.note
    )


# --- what is said beside the times -----------------------------------------------------------------------------------


def test_throttled_clocks_are_a_warning_on_a_gpu_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cool = {"clocks.sm": "1980", "clocks_event_reasons.active": "0x0000000000000000"}
    hot = {"clocks.sm": "1200", "clocks_event_reasons.active": "0x0000000000000040"}
    monkeypatch.setattr(device, "is_throttled", lambda reasons: reasons == hot["clocks_event_reasons.active"])
    monkeypatch.setattr(device, "ranges", lambda found: f"{len(found)} readings")
    monkeypatch.setattr(comparisons.clocks, "describe_lock", lambda: "")
    session, left = Paper(Store(tmp_path)), [cool, hot, {}]
    monkeypatch.setattr(device, "clocks", lambda: left.pop(0))
    assert comparisons._look_at_clocks(session) == []  # type: ignore[arg-type]
    (said,) = comparisons._look_at_clocks(session)  # type: ignore[arg-type]
    assert "held back" in said and "0x0000000000000040" in said
    assert comparisons._look_at_clocks(session) == [], "nothing was found out"  # type: ignore[arg-type]
    assert session.clocks == [cool, hot]
    assert session.measured["clocks"] == "2 readings, at the end of each of 2 timings"
    monkeypatch.setattr(comparisons.clocks, "describe_lock", lambda: "held at 1500 MHz")
    monkeypatch.setattr(device, "cpu_clocks", lambda: {"MHz": "2000"})
    cpu = Paper(Store(tmp_path), "cpu")
    assert comparisons._look_at_clocks(cpu) == []  # type: ignore[arg-type]
    assert cpu.measured["clocks"] == "1 readings, at the end of each of 1 timings; held at 1500 MHz"


def test_other_processes_are_noted_the_worst_of_them_first(tmp_path: Any) -> None:
    session = Paper(Store(tmp_path))
    session.others = 0.0  # type: ignore[attr-defined]
    for share, said in ((0.1, []), (0.5, ["half was taken"]), (0.2, [])):
        watch = SimpleNamespace(share=lambda share=share: share, warnings=lambda said=said: said)
        assert comparisons._look_at_load(session, watch) == said  # type: ignore[arg-type]
    assert "50%" in session.measured["load"].replace(" %", "%")


def test_what_triton_needs_at_a_size_is_compiled_before_it_is_timed_there(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[Workload, ...]]] = []

    def compile_ahead(_self: Any, one: Build, workloads: tuple[Workload, ...]) -> None:
        asked.append((one.candidate, workloads))
        if one.candidate == "late":
            raise WorkerFailure(Outcome.TIMEOUT, "while Triton compiled its kernels: no answer within 300 s")

    monkeypatch.setattr(Paper, "compile_ahead", compile_ahead)
    series.compare_case(Paper(Store(tmp_path), baseline=[10.0], candidate=[10.0]), MATCH, CASE)  # type: ignore[arg-type]
    assert asked == [("base", (WORKLOAD,)), ("mine", (WORKLOAD,))]
    late = ComparisonRequest(build("late"), {"baseline": "base"})
    with pytest.raises(ArmFailure, match="while Triton compiled") as found:
        series.compare_case(Paper(Store(tmp_path)), late, CASE)  # type: ignore[arg-type]
    assert (found.value.arm, found.value.outcome) == ("candidate", Outcome.TIMEOUT)


def test_other_companies_are_timed_hot_and_said_each_by_itself(tmp_path: Any) -> None:
    session = Paper(Store(tmp_path), baseline=[10.0, 12.0], candidate=[5.0, 12.0])
    found = comparisons.measure_other_contexts(session, MATCH)  # type: ignore[arg-type]
    assert session.asked == [(WORKLOAD, "hot", "pdl"), (WORKLOAD, "hot", "alone")]
    assert [(t.company, t.cache, t.time_us) for t in found.timings] == [("pdl", "hot", 5.0), ("alone", "hot", 12.0)]
    assert {on: (suite.speedup.median, suite.comparison) for on, suite in found.suites.items()} == {
        "pdl": (pytest.approx(2.0), Comparison.FASTER), "alone": (pytest.approx(1.0), Comparison.SAME),
    }  # fmt: skip


def verdict(name: str = "mine") -> Verdict:
    passed = (Check(workload="w", name="ordinary", passed=True),)
    return Verdict(
        candidate=name, kernel="k", device="d", outcome=Outcome.PASSED, checks=passed, build=build(name), timings=(timing(9),)
    )  # fmt: skip


class Asked(Evaluator):
    """Of a device that nobody looks at."""

    def __init__(self, folder: Any, on: Any) -> None:
        facts = DeviceFacts(device=on, name="d", architecture="a", units=1, last_level_cache_bytes=1 << 20)
        super().__init__(KERNEL, on, Store(folder), facts=facts, memory_bytes=80 << 30)


@pytest.mark.parametrize(("on", "name", "asked"), [("cuda", "mine", 1), ("cpu", "mine", 0), ("cuda", "base", 0)])
def test_other_companies_are_for_a_winner_on_a_gpu_and_asked_for_once(
    tmp_path: Any, on: str, name: str, asked: int
) -> None:
    one, told = Asked(tmp_path, on), list[Any]()
    elsewhere = OtherContexts(timings=(timing(7, company="pdl"),), suites={})
    one._judge = lambda what: told.append(what) or elsewhere  # type: ignore[method-assign, assignment, func-returns-value]
    for _ in range(2):
        found = one.measure_other_contexts(verdict(name), baseline="base")
        assert found.elsewhere == (elsewhere.timings if asked else ()) and found.timings == verdict().timings
    assert [(what.build, what.baseline) for what in told] == [(build("mine"), "base")] * asked
    failed = verdict(name).failed(Outcome.TIMEOUT, "20 s")
    assert one.measure_other_contexts(failed, baseline="base") is failed
    one.close()


def test_who_fails_in_other_company_has_failed_and_a_baseline_that_does_is_our_fault(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Asked(tmp_path, "cuda")

    def fails(side: str) -> None:
        def contested(*_asked: Any) -> None:
            raise ArmFailure(side, Outcome.CHEATED, "it skipped work")

        monkeypatch.setattr(comparisons, "measure_other_contexts", contested)

    fails("candidate")
    found = one.measure_other_contexts(verdict(), baseline="base")
    assert (found.outcome, found.reason) == (Outcome.CHEATED, "in other company: it skipped work")
    assert not found.timings and found.checks == verdict().checks
    fails("baseline")
    with pytest.raises(RuntimeError, match="the baseline failed in other company: it skipped work"):
        one.measure_other_contexts(verdict(), baseline="base")
    one.close()


def test_what_the_launch_path_takes_is_asked_of_both_on_a_gpu(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    message = lambda **more: {"dtype": "float32", **more}  # noqa: E731
    bench = SimpleNamespace(message=message, write=lambda slot, inputs: asked.append((slot, inputs)))
    monkeypatch.setattr("harness.judge.draws.map_buffers", lambda *_: bench)
    monkeypatch.setattr("harness.judge.draws.make_case", lambda *_: SimpleNamespace(inputs="of its own"))
    seconds = {"mine": 2e-6, "base": 5e-6}

    def worker(one: Build) -> Any:
        return SimpleNamespace(request=lambda message: asked.append(message) or {"seconds": seconds[one.candidate]})

    session = Paper(Store(tmp_path))
    session.pool.get, session.extra_values = worker, {}  # type: ignore[attr-defined]
    found = _launch(session, build("mine"), build("base"), WORKLOAD)  # type: ignore[arg-type]
    assert found is not None and (found.time_us, found.baseline_us) == (pytest.approx(2.0), pytest.approx(5.0))
    one = {"op": "host", "dtype": "float32", "repeat": 200}
    assert asked == [(0, "of its own"), one] * 2, "what lies there else was drawn for another size"
    assert _launch(Paper(Store(tmp_path), "cpu"), build("mine"), build("base"), WORKLOAD) is None  # type: ignore[arg-type]


def test_a_baseline_has_its_own_times_of_the_contests_that_another_was_timed_in():
    passed = Verdict(
        candidate="b",
        kernel="k",
        device="d",
        outcome=Outcome.PASSED,
        checks=(Check(workload="w", name="n", passed=True),),
    )
    beside = passed.model_copy(update={"timings": (timing(40, incumbent_us=3.0, note="of the other"),)})
    (own,) = (found := comparisons.time_baseline_beside(passed, beside)).timings
    assert (own.time_us, own.baseline_us, own.speedup, own.comparison) == (
        40,
        40,
        comparisons.EXACTLY_ONE,
        Comparison.SAME,
    )
    assert own.incumbent_us is None and own.note == "" and own.samples == 8
    assert found.candidate == "b" and found.suite is not None and found.suite.comparison is Comparison.SAME


@pytest.mark.parametrize(
    ("series", "leaks"),
    [
        ([(256 << 20, 1000)], False),
        ([(256 << 20, 1000), (512 << 20, 2000), (256 << 20, 1000)], True),
        ([(-90 << 20, 1000), (256 << 20, 1000), (250 << 20, 1000), (900 << 20, 1000), (260 << 20, 1000)], True),
        ([(4 << 30, 481), (9 << 30, 481), (20 << 30, 481)], False),
        ([(4 << 30, 481), (0, 481)], False),
        ([(64 << 20, 5000)] * 3, False),
    ],
    ids=[
        "at first",
        "as much a call",
        "while others give back and take",
        "another amount, so of somebody else",
        "once",
        "little",
    ],
)
def test_who_leaks_takes_as_much_for_each_call(series: list[tuple[int, int]], leaks: bool) -> None:
    """A GPU's memory is everybody's: an honest kernel was refused because a neighbour took 4 GiB, and then more; and 256 KiB a call were not
    seen behind a process whose memory was given back meanwhile."""
    assert _leaks(series, shared=True) is leaks
    assert _leaks(series, shared=False) is (sum(taken > 100 << 20 for taken, _ in series) > 1)
    assert not _is_clean(-90 << 20, 1000) and _is_clean(-(1 << 20), 1000) and not _is_clean(256 << 20, 1000)


def test_everything_is_compiled_and_started_before_the_arena_of_a_comparison_is_filled(tmp_path: Any) -> None:
    """What is compiled ahead is called there: a candidate was CHEATED since its Triton baseline was compiled for behind its guards."""
    session, done = Paper(Store(tmp_path), baseline=[10.0], candidate=[10.0]), list[str]()
    make_arm, open_comparison = session.make_arm, session.open_comparison
    session.compile_ahead = lambda *_: done.append("compile")  # type: ignore[method-assign]
    session.make_arm = lambda *given: done.append("start") or make_arm(*given)  # type: ignore[method-assign, func-returns-value]
    session.open_comparison = lambda *given: done.append("fill") or open_comparison(*given)  # type: ignore[method-assign, func-returns-value]
    series.compare_case(session, MATCH, CASE)  # type: ignore[arg-type]
    assert done[-1] == "fill" and done.count("fill") == 1 and {"compile", "start"} <= set(done)
