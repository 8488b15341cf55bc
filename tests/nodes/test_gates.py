"""The gates' nodes and the state: what is decided, and in which words."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.bands import Band, Measure, Split
from harness.judge.quick import Quick
from harness.judge.search import Tuned
from harness.records import Build, Check, Comparison, Interval, Outcome, Suite, Timing, Verdict
from harness.store import Store
from harness.timing.comparison import compare
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.agents import drafter
from nodes.approve import edit_plan
from nodes.compile import compile
from nodes.contest import contest, most_promising
from nodes.measure import measure
from nodes.options import ROLES
from nodes.roles import Attempt, DraftAnswer, Plan, Usage
from nodes.select import attempt_of, select, unfit
from nodes.state import Draft, Incumbent, Spent, State, Stop, merge_attempts
from nodes.stops import light_fraction, next_stop
from nodes.tune import tune
from nodes.verify import verify
from tests.graph.doubles import settings

WORKLOAD = Workload(axes={"n": 8}, dtype="float32")


STORE = Store(Path(tempfile.mkdtemp()))


def interval(median: float) -> Interval:
    return Interval(median=median, low=median, high=median)


def verdict(
    speedup: float,
    comparison: str = "FASTER",
    gain: tuple[float, str] | None = None,
    slower: float | None = None,
    light: float = 50,
) -> Verdict:
    timing = Timing(
        workload=WORKLOAD, cache="cold", baseline_us=100, time_us=100 / speedup, speedup=interval(slower or speedup),
        comparison=Comparison.SLOWER if slower else Comparison(comparison), light_us=light, samples=3,
    )  # fmt: skip
    against = Suite(speedup=interval(gain[0]), comparison=Comparison(gain[1])) if gain else None
    return Verdict(
        candidate="c" * 64, kernel="k", device="d", outcome=Outcome.PASSED,
        checks=(Check(workload="w", name="ordinary", passed=True),), timings=(timing,),
        suite=Suite(speedup=interval(speedup), comparison=Comparison(comparison)), suite_incumbent=against,
    )  # fmt: skip


def draft(name: str, found: Verdict | None, **more: Any) -> Draft:
    plan = Plan(id=name, title=name, steps=("s",))
    return Draft(plan=plan, candidate=name[0] * 64 if found else "", verdict=found, **more)


def chosen(drafts: list[Draft], **changes: Any) -> dict[str, Any]:
    state = State(
        settings=settings(light_fraction=1.5, **changes), drafts=drafts, round=1, stale_rounds=0, attempts=[],
        spent=Spent(), incumbent=Incumbent(candidate="0" * 64, verdict=verdict(1.0, "SAME")),
    )  # fmt: skip
    read = SimpleNamespace(
        probes=lambda build, calls: {"compiler": {"most spills": "16"}, "ncu": {"unavailable": "no"}}
    )
    return select(state, SimpleNamespace(context=SimpleNamespace(evaluator=read, store=STORE)))  # type: ignore[arg-type]


# --- select --------------------------------------------------------------------------------------------------------


def test_against_an_incumbent_its_comparison_counts_and_not_the_baselines() -> None:
    update = chosen(
        [draft("a", verdict(2.0, gain=(1.01, "SAME"))), draft("b", verdict(1.5, gain=(1.1, "FASTER")))], width=2
    )
    assert [a.accepted for a in update["attempts"]] == [False, True]
    assert update["attempts"][0].reason == "not clearly faster than the best so far: SAME"
    assert update["incumbent"].candidate == "b" * 64 and update["stale_rounds"] == 0


@pytest.mark.parametrize("comparison", ["SAME", "SLOWER", "UNCLEAR"])
def test_what_is_not_clearly_faster_never_becomes_the_incumbent(comparison: str) -> None:
    update = chosen([draft("a", verdict(1.5, comparison))])
    assert "incumbent" not in update and update["stale_rounds"] == 1


def test_one_slower_workload_disqualifies() -> None:
    update = chosen([draft("a", verdict(1.5, slower=0.91))])
    assert "incumbent" not in update
    assert update["attempts"][0].reason == "slower than the baseline on float32 n=8, cold: 0.910x"


def test_an_attempt_keeps_what_was_measured_and_over_whom() -> None:
    gain = Interval(median=1.123456, low=1.111111, high=1.133333)
    found = verdict(1.5, gain=(1.2, "FASTER"))
    found = found.model_copy(
        update={
            "suite": Suite(speedup=Interval(median=1.5, low=1.4, high=1.6), comparison=Comparison.FASTER),
            "timings": (found.timings[0].model_copy(update={"against_incumbent": gain}),),
        }
    )
    more = {"tuned": {"BLOCK": 64}, "tuning": "3 tried", "repairs": 1, "seconds": 7.0, "turns": 2, "tools": {"try": 4}}
    (attempt,) = chosen([draft("a", found, spec_doubt="which axis?", **more)])["attempts"]
    assert attempt.accepted and attempt.outcome is Outcome.PASSED and attempt.reason == ""
    assert (attempt.round, attempt.plan.id, attempt.candidate) == (1, "a", "a" * 64)
    assert (attempt.speedup, attempt.speedup_low, attempt.speedup_high) == (1.5, 1.4, 1.6)
    assert attempt.comparison is attempt.against_incumbent is Comparison.FASTER
    assert (attempt.gain, attempt.over) == (1.2, "0" * 64)
    assert attempt.gains == (Interval(median=1.1235, low=1.1111, high=1.1333),)
    assert {name: getattr(attempt, name) for name in more} == more and attempt.spec_doubt == "which axis?"
    first = verdict(1.5)  # against the baseline, which is the incumbent: its gains are the speedups
    assert chosen([draft("a", first)])["attempts"][0].gains == (first.timings[0].speedup,)
    some = (*found.timings, *verdict(1.5).timings)  # of one no gain is known
    assert chosen([draft("a", found.model_copy(update={"timings": some}))])["attempts"][0].gains == ()


def slower_at(**speedups: float) -> Verdict:
    """1.5x over the suite, and SLOWER in these cache states."""
    found = verdict(1.5, gain=(1.2, "FASTER"))
    timings = [
        found.timings[0].model_copy(update={"cache": c, "speedup": interval(s), "comparison": Comparison.SLOWER})
        for c, s in speedups.items()
    ]
    return found.model_copy(update={"timings": tuple(timings)})


def test_the_slowest_of_several_workloads_is_named_and_what_the_incumbent_loses_already_is_not_counted() -> None:
    said = chosen([draft("a", slower_at(cold=0.91, hot=0.85))])["attempts"][0].reason
    assert said == "slower than the baseline on float32 n=8, hot: 0.850x"
    before = Incumbent(candidate="0" * 64, verdict=slower_at(hot=0.8))
    assert unfit(draft("a", slower_at(hot=0.85)), before) == ""
    assert unfit(draft("a", slower_at(cold=0.91, hot=0.85)), before).endswith("n=8, cold: 0.910x")


def test_every_draft_becomes_one_attempt_whatever_happened() -> None:
    failed = Verdict(candidate="f" * 64, kernel="k", device="d", outcome=Outcome.TIMEOUT, reason="20 s")
    unmeasured = verdict(1.5).model_copy(update={"suite": None, "timings": ()})
    update = chosen(
        [
            draft("a", verdict(1.5)),
            draft("f", failed, repairs=2),
            draft("n", None, refused="no idea"),
            draft("p", None, refused="refused by the person", by_person=True),
            draft("u", unmeasured),
        ],
        width=5,
    )
    assert [(a.plan.id, a.outcome, a.reason, a.accepted) for a in update["attempts"]] == [
        ("a", "PASSED", "", True),
        ("f", "TIMEOUT", "20 s", False),
        ("n", "NO_CANDIDATE", "no idea", False),
        ("p", "REFUSED", "refused by the person", False),
        ("u", "PASSED", "passed, but was not measured", False),
    ]
    assert [a.speedup for a in update["attempts"]] == [1.5, None, None, None, None]
    assert update["drafts"] == []


@given(st.lists(st.tuples(st.floats(0.5, 3), st.sampled_from(Comparison)), max_size=5))
def test_the_winner_is_the_largest_gain_among_the_faster(found: list[tuple[float, Comparison]]) -> None:
    drafts = [draft(f"{i}", verdict(s, gain=(s, c.value))) for i, (s, c) in enumerate(found)]
    attempts = chosen(drafts, width=5)["attempts"]
    accepted = [a for a in attempts if a.accepted]
    faster = [s for s, c in found if c is Comparison.FASTER]
    assert len(attempts) == len(found) and len(accepted) == bool(faster)
    if faster:
        assert accepted[0].gain == max(faster)


# --- stops ---------------------------------------------------------------------------------------------------------


def at(*, light: float = 0.5, **changes: Any) -> State:
    fields = {"round": 1, "stale_rounds": 0, "spent": Spent()} | {
        key: changes.pop(key) for key in ("round", "stale_rounds", "spent") if key in changes
    }
    incumbent = Incumbent(candidate="c", verdict=verdict(1.0, light=100 * light))
    return State(settings=settings(**changes), incumbent=incumbent, **fields)  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("state", "stop"),
    [
        (at(), None),
        (at(round=3), Stop.ROUNDS),
        (at(stale_rounds=2), Stop.PLATEAU),
        (at(round=3, stale_rounds=2), Stop.ROUNDS),
        (at(rounds=9, patience=None, stale_rounds=3), None),
        (at(rounds=9, patience=None, stale_rounds=4), Stop.PLATEAU),
        (at(rounds=4, patience=None, stale_rounds=2), None),
        (at(rounds=4, patience=None, stale_rounds=3), Stop.PLATEAU),
        (at(light=0.98, round=3), Stop.LIGHT),
        (at(seconds=5, spent=Spent(seconds=5)), Stop.SECONDS),
        (at(seconds=5, spent=Spent(seconds=4.9)), None),
        (at(tokens=10, spent=Spent(usage={"coder": Usage(tokens_in=9, tokens_out=1)})), None),
        (at(tokens=10, fallback="none", spent=Spent(usage={"coder": Usage(tokens_in=9, tokens_out=1)})), Stop.TOKENS),
        (at(money_usd=1, fallback="none", spent=Spent(usage={"coder": Usage(money_usd=1.0)})), Stop.MONEY),
        (at(money_usd=1, fallback="none", spent=Spent(usage={"coder": Usage(money_usd=None)})), None),
    ],
)
def test_the_end_of_a_run_has_a_name(state: State, stop: Stop | None) -> None:
    assert next_stop(state) is stop


@pytest.mark.parametrize(("cold", "hot", "share"), [(50, 99, 0.5), (99, 50, 0.5), (None, 99, 0.99), (None, None, None)])
def test_the_limit_is_reached_in_both_cache_states_or_not(
    cold: int | None, hot: int | None, share: float | None
) -> None:
    timed = {"cold": cold, "hot": hot}
    timings = tuple(verdict(1.0, light=us).timings[0].model_copy(update={"cache": c}) for c, us in timed.items())
    found = light_fraction(verdict(1.0).model_copy(update={"timings": timings}))
    assert found == (None if share is None else pytest.approx(share))


def timed(time_us: float, incumbent_us: float | None) -> Verdict:
    found = verdict(100 / time_us, gain=(1.0, "UNCLEAR"))
    beside = {"incumbent_us": incumbent_us, "incumbent_speedup": interval(100 / incumbent_us) if incumbent_us else None}
    return found.model_copy(update={"timings": (found.timings[0].model_copy(update=beside),)})


def test_an_incumbent_is_shown_with_its_times_of_the_last_contest() -> None:
    """Its own may be of a busy minute: 3.6x stayed on show where every later comparison had measured 11.9x."""
    update = chosen([draft("a", timed(40, 25)), draft("b", timed(30, 20))], source="9" * 64, width=2)
    seen = update["incumbent"]
    assert seen.candidate == "0" * 64 and seen.verdict.timings[0].time_us == 100, "its verdict is what it was"
    assert [(t.time_us, t.speedup.median, t.comparison) for t in seen.timings] == [(20, 5, "FASTER")]
    itself = chosen([draft("a", timed(110, None))], source="0" * 64)["incumbent"]
    assert [(t.time_us, t.speedup.median, t.comparison) for t in itself.timings] == [(100, 1, "SAME")]
    assert "incumbent" not in chosen([draft("a", None, refused="no idea")])


def test_a_rejected_candidate_leaves_its_evidence() -> None:
    build = Build(candidate="a" * 64, backend="cuda", ok=True)
    tried = [
        draft("a", verdict(1.0, "SAME"), build=build),
        draft("b", None, build=build.model_copy(update={"ok": False})),
    ]
    one, other = chosen(tried, width=2, policy=dict.fromkeys(ROLES, "chat"))["attempts"]
    assert not any(attempt.evidence for attempt in chosen(tried, width=2)["attempts"]), "nobody reads it"
    assert one.evidence == {"compiler": {"most spills": "16"}} and other.evidence == {} and not one.accepted


# --- comparison -------------------------------------------------------------------------------------------------------

BEST = "i" * 64


def unclear(name: str, gain: float, **more: Any) -> Attempt:
    plan = Plan(id=name, title=name, steps=("s",))
    told = {
        "outcome": Outcome.PASSED,
        "against_incumbent": Comparison.UNCLEAR,
        "over": BEST,
        "gain": gain,
        "speedup": 1.0,
    }
    return Attempt(round=1, plan=plan, candidate=name * 64, **{**told, **more})


def contested(attempts: list[Attempt], **more: Any) -> State:
    incumbent = Incumbent(candidate=BEST, verdict=verdict(1.2), seen=verdict(1.3).timings)
    return State(
        settings=settings(device="cpu", light_fraction=1.5), round=1, stale_rounds=1, attempts=attempts, spent=Spent(),
        incumbent=incumbent, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "chosen"),
    [
        ([unclear("a", 1.05), unclear("b", 1.2), unclear("c", 1.1)], "b"),
        ([unclear("a", 1.03)], ""),  # not beyond a CPU's margin
        ([unclear("a", 1.031)], "a"),
        ([unclear("a", 1.2, against_incumbent=Comparison.SAME)], ""),
        ([unclear("a", 1.2, outcome=Outcome.INCORRECT)], ""),
        ([unclear("a", 1.2, contested=BEST)], ""),
        ([unclear("a", 1.2, contested="e" * 64)], "a"),
        ([unclear("a", 1.2, contested=BEST, contests=3, gain_low=1.02)], "a"),  # 6 decide
        ([unclear("a", 1.2, contested=BEST, contests=3, gain_low=0.8)], ""),  # 25 would
        ([unclear("a", 1.2, contested=BEST, contests=12, gain_low=1.02)], ""),
        ([unclear("a", 1.87, gain_low=1.86)], ""),  # decided, and withheld: more samples say the same
        ([unclear("a", 1.87, gain_low=1.02)], "a"),
        ([unclear("i", 1.2)], ""),  # it is the incumbent by now
        ([unclear("a", 9.0, over="e" * 64, speedup=1.2)], ""),  # over another one; of the baseline both make 1.2
        ([unclear("a", 1.0, over="e" * 64, speedup=1.3)], "a"),
        ([unclear("a", 1.0, over="e" * 64, speedup=None)], ""),
        ([], ""),
    ],
)
def test_of_what_is_unclear_that_is_contested_which_promises_most(attempts: list[Attempt], chosen: str) -> None:
    found = most_promising(contested(attempts))
    assert (found.candidate[0] if found else "") == chosen


def test_who_is_wrong_when_contested_again_leaves_the_incumbent_as_it_was_shown() -> None:
    wrong = Verdict(candidate="a" * 64, kernel="k", device="d", outcome=Outcome.CHEATED, reason="its clock")
    asked: list[Any] = []

    def timed(found: Any, **how: Any) -> Verdict:
        asked.append(how)
        return wrong

    evaluator = SimpleNamespace(build=lambda name: name, verify=lambda build: build, measure=timed)
    context = SimpleNamespace(
        evaluator=evaluator, say=lambda *_: None, kernel=SimpleNamespace(spec=None), reference=lambda: ""
    )
    before = contested([unclear("a", 1.2)])
    update = contest(before, SimpleNamespace(context=context, store=None))  # type: ignore[arg-type]
    assert set(update) == {"attempts"}, "neither the incumbent nor its times nor the rounds without one"
    (after,) = update["attempts"]
    assert (after.outcome, after.contested, after.accepted) == (Outcome.CHEATED, BEST, False)
    assert after.reason == "its clock, with 3 times the samples"
    assert asked == [{"baseline": before["settings"].source, "incumbent": BEST, "contests": 3}]
    assert most_promising({**before, **update}) is None


def test_who_is_faster_when_contested_again_is_the_incumbent_and_the_rounds_without_one_begin_anew() -> None:
    faster = verdict(1.5, gain=(1.25, "FASTER"))
    evaluator = SimpleNamespace(build=lambda name: name, verify=lambda build: build, measure=lambda *_, **__: faster)
    context = SimpleNamespace(
        evaluator=evaluator, say=lambda *_: None, kernel=SimpleNamespace(spec=None), reference=lambda: ""
    )
    update = contest(contested([unclear("a", 1.2)]), SimpleNamespace(context=context, store=None))  # type: ignore[arg-type]
    assert set(update) == {"attempts", "incumbent", "stale_rounds"} and update["stale_rounds"] == 0
    assert (update["incumbent"].candidate, update["incumbent"].verdict) == ("a" * 64, faster)
    assert update["attempts"][0].accepted and update["attempts"][0].reason == "FASTER with 3 times the samples"


def test_what_has_ended_a_run_already_stays_its_end() -> None:
    context = SimpleNamespace(
        evaluator=None, say=lambda *_: None, kernel=SimpleNamespace(spec=None), reference=lambda: ""
    )
    ended = {**contested([]), "stop": Stop.BASELINE}
    assert contest(ended, SimpleNamespace(context=context, store=None)) == {"stop": Stop.BASELINE}  # type: ignore[arg-type]


# --- compile and verify --------------------------------------------------------------------------------------------


class Builder:
    """Builds what is named good; `most` is how many it was asked for at once."""

    width = 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = self.most = 0
        self.lock = threading.Lock()

    def build(self, candidate: str) -> Build:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.asked.append(f"build {candidate[0]}")
        time.sleep(0.001)  # whoever else may build begins meanwhile; who may not never does
        with self.lock:
            self.now -= 1
        return Build(candidate=candidate, backend="cpu", ok=candidate[0] == "g")

    def verify(self, build: Build) -> Verdict:
        self.asked.append(f"verify {build.candidate[0]}")
        outcome = Outcome.PASSED if build.ok else Outcome.COMPILE_ERROR
        checks = (Check(workload="w", name="ordinary", passed=True),) if build.ok else ()
        reason = "" if build.ok else "line 1"
        return Verdict(candidate=build.candidate, kernel="k", device="d", outcome=outcome, reason=reason, checks=checks)


def through(gate: Any, drafts: list[Draft], evaluator: Builder) -> list[Draft]:
    state = State(settings=settings(width=1), drafts=drafts)
    found = gate(state, SimpleNamespace(context=SimpleNamespace(evaluator=evaluator)))
    assert set(found) == {"drafts"}
    return found["drafts"]


def named(candidate: str, **more: Any) -> Draft:
    return Draft(plan=Plan(id=candidate, title="t", steps=("s",)), candidate=candidate * 64, seconds=5.0, **more)


def test_only_what_has_a_source_and_no_build_is_built_and_a_failed_build_is_a_verdict() -> None:
    evaluator, built = Builder(), Build(candidate="g" * 64, backend="cpu", ok=True)
    judged = Verdict(candidate="c" * 64, kernel="k", device="d", outcome=Outcome.TIMEOUT, reason="20 s")
    left = [
        named("r", refused="no idea"), named("").model_copy(update={"candidate": ""}), named("g", build=built),
        named("c", build=built.model_copy(update={"ok": False}), verdict=judged),
    ]  # fmt: skip
    good, bad, *others = through(compile, [named("g"), named("b"), *left], evaluator)
    assert others == left and sorted(evaluator.asked) == ["build b", "build g", "verify b"]
    assert good.build is not None and good.build.ok and good.verdict is None
    assert bad.verdict is not None and bad.verdict.outcome is Outcome.COMPILE_ERROR
    assert all(5.0 < draft.seconds < 605.0 for draft in (good, bad)), "what it took comes on top"
    many = Builder()
    through(compile, [named("g") for _ in range(6)], many)
    assert many.most == 1, "as many side by side as drafts may be"


def test_only_what_was_built_and_has_no_verdict_is_verified() -> None:
    evaluator, built = Builder(), Build(candidate="g" * 64, backend="cpu", ok=True)
    left = [named("n"), named("g", build=built, verdict=verdict(1.0))]
    found, *others = through(verify, [named("g", build=built), *left], evaluator)
    assert others == left and evaluator.asked == ["verify g"]
    assert found.verdict is not None and found.verdict.passed and 5.0 < found.seconds < 605.0


# --- measure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "again", "kept"),
    [
        (1, {}, {"a": 1.5, "b": 1.4}),
        (2, {"a": 1.45}, {"a": 1.45, "b": 1.4}),
        (2, {"a": 1.2, "b": 1.38}, {"a": 1.2, "b": 1.38}),
        (2, {"a": 1.0, "b": 1.3}, {"a": 1.0, "b": 1.3}),
    ],
    ids=["one device", "confirmed", "the second best then", "no gain at all the second time"],
)
def test_the_best_of_several_devices_is_timed_once_more(
    width: int, again: dict[str, float], kept: dict[str, float]
) -> None:
    """On one device its times were taken in turn already."""
    first, calls = {"a": 1.5, "b": 1.4}, []

    def timed(found: Verdict, *, baseline: str, incumbent: str | None, again: bool) -> Verdict:
        calls.append((found.candidate[0], again))
        speedup = more[found.candidate[0]] if again else first[found.candidate[0]]
        return verdict(speedup, "FASTER" if speedup > 1 else "SAME").model_copy(update={"candidate": found.candidate})

    more = again
    bare = {"timings": (), "suite": None, "suite_incumbent": None}
    drafts = [draft(name, verdict(1.0).model_copy(update=bare | {"candidate": name * 64})) for name in first]
    state = State(
        settings=settings(), drafts=drafts, incumbent=Incumbent(candidate="s" * 64, verdict=verdict(1.0, "SAME"))
    )
    context = SimpleNamespace(evaluator=SimpleNamespace(measure=timed, width=width))
    found = measure(state, SimpleNamespace(context=context))["drafts"]  # type: ignore[arg-type]
    assert {one.plan.id: one.verdict.suite.speedup.median for one in found} == kept
    assert {name for name, once_more in calls if once_more} == set(again)


def test_all_that_may_be_the_best_are_timed_once_more_side_by_side() -> None:
    """In turn they took longer than the whole round's first times (two workers of a CPU)."""
    speeds, together = {"a": 1.5, "b": 1.49, "c": 1.2}, threading.Barrier(2, timeout=60)

    def timed(found: Verdict, *, baseline: str, incumbent: str | None, again: bool) -> Verdict:
        if again:
            together.wait()
        speedup = speeds[found.candidate[0]] - (0.2 if again else 0.0)
        suite = Suite(
            speedup=Interval(median=speedup, low=speedup - 0.02, high=speedup + 0.02), comparison=Comparison.FASTER
        )
        return verdict(speedup, "FASTER").model_copy(update={"candidate": found.candidate, "suite": suite})

    bare = {"timings": (), "suite": None, "suite_incumbent": None}
    drafts = [draft(name, verdict(1.0).model_copy(update=bare | {"candidate": name * 64})) for name in speeds]
    state = State(
        settings=settings(), drafts=drafts, incumbent=Incumbent(candidate="s" * 64, verdict=verdict(1.0, "SAME"))
    )
    context = SimpleNamespace(evaluator=SimpleNamespace(measure=timed, width=3))
    found = measure(state, SimpleNamespace(context=context))["drafts"]  # type: ignore[arg-type]
    assert {one.plan.id: round(one.verdict.suite.speedup.median, 2) for one in found} == {"a": 1.3, "b": 1.29, "c": 1.2}


# --- tune ----------------------------------------------------------------------------------------------------------


def test_the_search_gets_no_more_seconds_than_the_run_has_left(tmp_path: Path) -> None:
    asked: list[float] = []

    def search(candidate: str, *, seconds: float) -> Tuned:
        asked.append(seconds)
        return Tuned(candidate=candidate, values={"BLOCK": 64})

    context = SimpleNamespace(evaluator=SimpleNamespace(tune=search, width=1))
    state = State(
        settings=settings(seconds=10.0, tune_seconds=8.0), spent=Spent(seconds=7.0), drafts=[draft("a", verdict(1.5))]
    )
    update = tune(state, SimpleNamespace(context=context))  # type: ignore[arg-type]
    assert asked == [3.0] and update["drafts"][0].tuned == {"BLOCK": 64}
    assert update["drafts"][0].tuning == "", "nothing was tried, so there is nothing to say"


def test_only_what_passed_and_was_not_searched_before_is_searched() -> None:
    """The time is what the run allows, and no less than none."""
    asked: list[tuple[str, float]] = []

    def search(candidate: str, *, seconds: float) -> Tuned:
        asked.append((candidate[0], seconds))
        return Tuned(candidate=candidate, tried=3, reason="none faster")

    failed = Verdict(candidate="f" * 64, kernel="k", device="d", outcome=Outcome.TIMEOUT, reason="20 s")
    drafts = [
        draft("a", verdict(1.5)), draft("f", failed), draft("n", None), draft("t", verdict(1.5), tuned={"BLOCK": 32}),
    ]  # fmt: skip

    def tuned(**limits: float) -> list[Draft]:
        context = SimpleNamespace(evaluator=SimpleNamespace(tune=search, width=1))
        state = State(settings=settings(tune_seconds=8.0, **limits), spent=Spent(seconds=7.0), drafts=drafts)
        return tune(state, SimpleNamespace(context=context))["drafts"]  # type: ignore[arg-type]

    after = tuned()
    assert after[1:] == drafts[1:] and after[0].tuning == "none faster"
    tuned(seconds=100.0)
    tuned(seconds=6.0)
    assert asked == [("a", 8.0), ("a", 8.0), ("a", 0.0)]


SOURCE = "#define STEP 1  // tune: 1 2\n" + 'extern "C" void k(float* y, int64_t n) { y[0] = STEP; }\n'
BY_SIZE = Split(
    measure=Measure(sizes=("n",)), bands=(Band(below=64, values={"STEP": 2}), Band(below=None, values={"STEP": 1}))
)


@pytest.mark.parametrize(
    ("source", "wrong", "tuned"),
    [
        (SOURCE, (), {"STEP": 1, "STEP_SMALL": 2}),
        (SOURCE, ("SMALL_BELOW",), {"STEP": 2}),
        (SOURCE, ("SMALL_BELOW", "STEP 2"), {}),
        (SOURCE.replace("k(", "other("), (), {"STEP": 2}),
    ],
    ids=["by size", "by size it is wrong", "all that was picked is wrong", "it cannot be written"],
)
def test_the_host_chooses_by_size_where_that_source_is_right(
    tmp_path: Path, source: str, wrong: tuple[str, ...], tuned: dict[str, int]
) -> None:
    store = Store(tmp_path)
    said: list[str] = []
    begun = draft("a", verdict(1.0), seconds=7.0).model_copy(update={"candidate": store.put(source)})
    picked = Tuned(candidate=store.put(source.replace("STEP 1", "STEP 2")), values={"STEP": 2}, split=BY_SIZE,
                   tried=2, reason="2 of 23 variants tried, the best 1.100x")  # fmt: skip
    spec = Spec(
        name="k", summary="k", axes=("n",), dtypes=("float32",), workloads=(WORKLOAD,),
        arguments=(Tensor(name="y", role="output", shape=("n",)), Size(name="n")),
    )  # fmt: skip

    def judged(candidate: str) -> Verdict:
        bad = any(mark in store.get(candidate) for mark in wrong)
        right = verdict(1.0).model_copy(update={"candidate": candidate})
        return right.failed(Outcome.INCORRECT, "it is wrong") if bad else right

    evaluator = SimpleNamespace(
        store=store, spec=spec, device="cpu", say=said.append, build=lambda candidate: candidate, verify=judged,
        tune=lambda candidate, seconds: picked, width=1,
    )  # fmt: skip
    first = Incumbent(candidate=settings().source, verdict=verdict(1.0, "SAME"))
    state = State(settings=settings(), spent=Spent(), drafts=[begun], incumbent=first)
    (ended,) = tune(state, SimpleNamespace(context=SimpleNamespace(evaluator=evaluator)))["drafts"]  # type: ignore[arg-type]
    assert ended.tuned == tuned
    assert ended.tuning.startswith("2 of 23 variants tried") and ("numbers stay" in ended.tuning) == (not tuned)
    assert (ended.candidate == begun.candidate) == (not tuned)
    if tuned:
        assert ended.build == ended.verdict.candidate == ended.candidate, "all of one source"
    else:
        assert (ended.build, ended.verdict) == (begun.build, begun.verdict)
    assert 7.0 < ended.seconds < 7.0 + 600
    unwritten = [text for text in said if text.startswith("one choice of numbers for all sizes: ")]
    assert unwritten == said and len(said) == (source != SOURCE)


# --- what loses is screened ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "lost"),
    [
        ([0.6, 0.5], True),
        ([0.6, 0.95], True),  # near in one case, far in the mean
        ([0.5, 0.999], True),  # one case's interval holds 1, as a busy machine's do
        ([0.75, 0.95], False),  # a search of its integers may bring as much
        ([0.6, 1.4], False),  # wins in one case: two forms in a file may be worth it
        ([0.6], False),  # one case is missing
        ([], False),  # the candidate failed: its verdict is the gate's to give
    ],
)
def test_what_loses_much_and_gains_nowhere_is_neither_searched_over_nor_timed_in_full(
    gains: list[float], lost: bool
) -> None:
    timed: list[str] = []

    def compare_briefly(build: Any, rivals: dict[str, str], cases: Any) -> Quick:
        assert rivals == {"baseline": settings().source, "incumbent": "1" * 64} and len(cases) == 2
        (known,) = verdict(2.0).timings
        wide = [Interval(median=gain, low=gain / 1.02, high=gain * 1.02) for gain in gains]
        timings = tuple(known.model_copy(update={"against_incumbent": gain}) for gain in wide)
        return Quick(timings=timings, pairs=tuple({"incumbent": ((gain,) * 5,)} for gain in gains))

    def search(candidate: str, *, seconds: float) -> Tuned:
        timed.append("tune")
        return Tuned(candidate=candidate)

    def measured(found: Verdict, **_: Any) -> Verdict:
        timed.append("measure")
        return found

    evaluator = SimpleNamespace(
        width=1, compare_briefly=compare_briefly, tune=search, measure=measured, suite=lambda: (WORKLOAD,),
        caches=lambda _: ("cold", "hot"),
    )  # fmt: skip
    context = SimpleNamespace(
        context=SimpleNamespace(evaluator=evaluator, store=Store(Path(tempfile.mkdtemp())), say=lambda kind, text: None)
    )
    passed = verdict(2.0).model_copy(update={"timings": (), "suite": None})
    begun = draft("a", passed, build=Build(candidate="a" * 64, backend="cpu", ok=True))
    state = State(
        settings=settings(), spent=Spent(), drafts=[begun],
        incumbent=Incumbent(candidate="1" * 64, verdict=verdict(4.0), round=1),
    )  # fmt: skip
    state["drafts"] = tune(state, context)["drafts"]  # type: ignore[arg-type]
    (ended,) = measure(state, context)["drafts"]  # type: ignore[arg-type]
    assert timed == ([] if lost else ["tune", "measure"])
    attempt = attempt_of(ended, 2, None, state["incumbent"])
    assert (attempt.outcome, attempt.speedup) == (Outcome.PASSED, None), "no figure of a verdict's comes of it"
    assert attempt.brief_speedup == (pytest.approx(2.0) if lost else None)
    assert ("short comparison" in attempt.reason) == lost


@pytest.mark.parametrize(
    ("gains", "lost", "offered"),
    [
        ([0.4, 0.3], True, False),
        ([0.4, 0.7], False, False),  # a search of its integers may bring as much
        ([1.4, 1.2], False, True),
        ([1.4, 0.9], False, False),  # slower somewhere
        ([1.4, 0.98], False, True),
        ([1.01, 1.0], False, False),  # by no more than noise
        ([1.4], False, False),
    ],
)
def test_the_first_candidate_is_a_file_as_soon_as_a_short_comparison_shows_it_faster(
    gains: list[float], lost: bool, offered: bool
) -> None:
    offers: list[str] = []
    said: list[tuple[str, str]] = []

    def compare_briefly(build: Any, rivals: dict[str, str], cases: Any) -> Quick:
        assert rivals == {"baseline": settings().source}
        (known,) = verdict(2.0).timings
        timings = [
            known.model_copy(update={"speedup": interval(gain), "comparison": compare(interval(gain), 0.03)})
            for gain in gains
        ]
        return Quick(timings=tuple(timings), pairs=tuple({"baseline": ((gain,) * 5,)} for gain in gains))

    evaluator = SimpleNamespace(
        device="cpu", width=1, compare_briefly=compare_briefly, tune=lambda candidate, *, seconds: Tuned(candidate=candidate),
        suite=lambda: (WORKLOAD,), caches=lambda _: ("cold", "hot"),
    )  # fmt: skip
    context = SimpleNamespace(
        evaluator=evaluator,
        store=Store(Path(tempfile.mkdtemp())),
        say=lambda kind, text: said.append((kind, text)),
        offer=lambda candidate: offers.append(candidate) or "best.cpp",
    )
    begun = draft(
        "a",
        verdict(2.0).model_copy(update={"timings": (), "suite": None}),
        build=Build(candidate="a" * 64, backend="cpu", ok=True),
    )
    state = State(
        settings=settings(), spent=Spent(), drafts=[begun],
        incumbent=Incumbent(candidate=settings().source, verdict=verdict(1.0), round=0),
    )  # fmt: skip
    (ended,) = tune(state, SimpleNamespace(context=context))["drafts"]  # type: ignore[arg-type]
    assert bool(ended.lost) == lost and offers == [begun.candidate] * offered
    assert [kind for kind, _ in said] == ["screened"] * lost + ["first"] * offered
    assert not offered or "best.cpp" in said[0][1]


# --- state ---------------------------------------------------------------------------------------------------------

attempts = st.lists(
    st.builds(
        lambda round_, name: Attempt(round=round_, plan=Plan(id=name, title="t", steps=("s",)), outcome="NO_CANDIDATE"),
        st.integers(1, 4),
        st.sampled_from("abc"),
    ),
    max_size=8,
)


@given(attempts, attempts)
def test_a_node_that_runs_twice_adds_no_attempt_twice(left: list[Attempt], right: list[Attempt]) -> None:
    once = merge_attempts(left, right)
    assert merge_attempts(once, right) == once
    names = [(a.round, a.plan.id) for a in once]
    assert len(set(names)) == len(names) and set(names) == {(a.round, a.plan.id) for a in [*left, *right]}


def test_money_of_unknown_price_makes_the_sum_unknown() -> None:
    spent = Spent(usage={"coder": Usage(money_usd=None, tokens_in=5), "planner": Usage(money_usd=0.5, tokens_in=1)})
    assert spent.total.money_usd is None and spent.total.tokens_in == 6


def test_an_edited_plan_keeps_its_name() -> None:
    before = Plan(id="p", title="t", steps=("s",), base="b" * 64)
    assert edit_plan(before, "new\n\n one \ntwo\n") == before.model_copy(
        update={"title": "new", "steps": ("one", "two")}
    )
    with pytest.raises(ValueError, match="at least one step"):
        edit_plan(before, "only a title")


def test_a_problems_draft_is_built_beside_its_tests_without_the_variants_of_a_search_that_it_will_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafter, "draft_by_rules", lambda *_asked: DraftAnswer(source="text"))
    told: list[str] = []
    evaluator = SimpleNamespace(
        build=lambda candidate: told.append(f"build {candidate}"), build_ahead=lambda candidate: told.append("variants")
    )
    settings = SimpleNamespace(source="module", device="cuda", numerics="eager", draft="", kernel="problem.py")
    context = SimpleNamespace(
        evaluator=evaluator, policies={"drafter": SimpleNamespace(name="rules")},
        store=SimpleNamespace(get=lambda _name: "", put=lambda _text: "draft"),
    )  # fmt: skip
    with drafter.drafting({"settings": settings}, context):  # type: ignore[arg-type, typeddict-item]
        pass
    assert told == ["build draft"]


def test_the_variants_that_a_search_tries_first_are_built_while_the_candidate_is_on_a_gpus_host() -> None:
    ahead, told = threading.Event(), []

    def build(candidate: str) -> Build:
        told.append((candidate, ahead.wait(30)))
        return Build(candidate=candidate, backend="cuda", ok=True)

    for device in ("cuda", "cpu"):
        evaluator = SimpleNamespace(build=build, build_ahead=lambda candidate: ahead.set())
        if device == "cpu":
            evaluator.build_ahead = lambda candidate: told.append("never")
        runtime = SimpleNamespace(context=SimpleNamespace(evaluator=evaluator))
        state = {
            "drafts": [draft("a", None).model_copy(update={"candidate": "a" * 64})],
            "settings": SimpleNamespace(width=1, device=device),
        }
        (built,) = compile(state, runtime)["drafts"]  # type: ignore[arg-type]
        assert built.build.ok
    assert [done for _, done in told] == [True, True]
