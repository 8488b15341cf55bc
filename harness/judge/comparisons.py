"""How fast a candidate is beside its rivals: comparisons of every timed workload, each case once or, where it says little, again."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from harness import device
from harness.judge import module_checks, series, verification
from harness.judge.calls import collect_checks
from harness.judge.series import Case, ComparisonRequest
from harness.judge.session import CACHES, EvaluationSession
from harness.processes.spares import resting
from harness.processes.worker import WorkerFailure
from harness.records import Check, Comparison, Interval, Outcome, Suite, Timing, TimingContext, Verdict
from harness.timing import clocks, comparison, load, roofs, samples, speed_of_light
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import PROTOCOLS, Arm, ArmFailure
from kernels.spec import Frozen, Workload, expression

ELSEWHERE: tuple[TimingContext, ...] = ("pdl", "alone")
"""Timing contexts that are measured beside `plain`, the one that decides."""
ALONE_TRIES = 3
ALONE_BLOCKS = 5
"""Blocks of samples of a baseline that is timed alone: that it is slowed by a tenth shows in so few."""
SLOWED = 1.1
"""Time of the baseline beside the candidate's process over its time alone, from which on the candidate is slowing
it."""
SLOWED_TRIES, ACCUSED = 2, 1.2
"""Times that a slowed baseline is measured again, and the ratio from which on the candidate is accused of it. Eager
torch's losses of two 2 GB inputs took 11 % longer beside an honest draft than alone, each time (H200); nobody gains
by that, since the baseline counts as it is alone."""
NO_GRAPH = "cannot be captured in a CUDA graph; timed with plain launches"
BY_CPU = "its ratio is of CPU time, since other processes interrupted what the clock shows"
EXACTLY_ONE = Interval(median=1, low=1, high=1)


@dataclass(frozen=True)
class TimedCase:
    """One case of a match."""

    timing: Timing
    checks: list[Check]
    speedups: list[float]
    against: list[float]
    """Ratios of the incumbent's time to the candidate's; empty without an incumbent."""
    lengths: tuple[int, ...] = ()
    """Samples of each of its series."""
    by_series: bool = False
    """Whether series are what repeats (ComparisonTimes)."""


@dataclass(frozen=True)
class SlowedBaseline:
    """The baseline beside a candidate."""

    by: float
    """Ratio of the baseline's time beside the candidate to its time alone."""
    says: str


class OtherContexts(Frozen):
    """What was measured in other timing contexts; where the candidate failed there `outcome` and `reason`, and nothing else."""

    timings: tuple[Timing, ...] = ()
    suites: dict[TimingContext, Suite] = Field(default_factory=dict)
    outcome: Outcome | None = None
    reason: str = ""


@resting()
def measure_suite(
    session: EvaluationSession, request: ComparisonRequest, verdict: Verdict, *, held_out: bool, contests: int
) -> Verdict:
    """The PASSED verdict with the timings of a suite, or with what the candidate did while it was timed.

    Raises RuntimeError where a rival fails.
    """
    start, others = time.perf_counter(), load.LoadWatch()
    session.pool.match(request.build.candidate, request.rivals.values())
    if session.device == "cpu":
        series.begin_anew(session, request)
    order = session.suite(held_out=held_out)
    workloads = [workload for workload in order if workload.timed]
    if any(roofs.weighs(session.spec, workload) for workload in workloads):
        session.measure_facts()  # before there is a candidate's process whose memory is watched
    cases: list[Case] = [(one, cache, "plain") for one in workloads for cache in reversed(session.caches(one))]
    doubts = functools.cache(lambda: _doubts(session, request))

    def look() -> None:
        """On a GPU doubts are asked for before the candidate's process ends, which is watched for that."""
        try:
            if session.device == "cuda":
                doubts()
        except WorkerFailure as fault:
            raise ArmFailure(request.mine, fault.outcome, fault.reason) from None

    try:
        found, suite, late = _not_slowed(session, request, cases, contests, order, look)
        timings = [one.timing for one in found]
        session.baseline_us |= {timing.workload.label: timing.baseline_us for timing in timings}
        notes = [f"{t.workload.label}, {t.cache}: {t.note}" for t in timings if t.note]
        warnings = [*verdict.warnings, *notes, *_look_at_clocks(session), *_look_at_load(session, others)]
    except ArmFailure as fault:
        if fault.arm != request.mine:
            raise RuntimeError(f"the {fault.arm} failed while it was timed: {fault.reason}") from None
        session.pool.drop(verdict.candidate)
        return verdict.failed(fault.outcome, fault.reason)
    now = verdict.model_copy(
        update={
            "timings": tuple(sorted(timings, key=lambda t: (order.index(t.workload), CACHES.index(t.cache)))),
            "checks": (*verdict.checks, *(check for one in found for check in one.checks), *late),
            "suite": suite,
            "suite_incumbent": suite_of(
                session, [one.against for one in found if one.against], timings, _lengths(found)
            ),
            "warnings": tuple(dict.fromkeys(warnings)),
            "seconds": verdict.seconds + time.perf_counter() - start,
        }
    )
    try:
        return withhold_doubtful(session, request, now, doubts)
    except WorkerFailure as fault:
        session.pool.drop(verdict.candidate)
        return verdict.failed(fault.outcome, fault.reason)


def withhold_doubtful(
    session: EvaluationSession, request: ComparisonRequest, verdict: Verdict, doubts: Callable[[], str] | None = None
) -> Verdict:
    """The verdict without FASTER where its gain may not be its own, with a warning that says why; `doubts` says it, where it was asked
    already. Raises WorkerFailure."""
    doubts = doubts or functools.partial(_doubts, session, request)
    faster = [t for t in verdict.timings if t.comparison is Comparison.FASTER]
    suites = {name: getattr(verdict, name) for name in ("suite", "suite_incumbent")}
    ahead = {name: one for name, one in suites.items() if one is not None and one.comparison is Comparison.FASTER}
    if request.itself or not (faster or ahead):
        return verdict
    why = module_checks.UNFOLLOWED if module_checks.UNFOLLOWED in verdict.warnings else doubts()
    if not why:
        return verdict
    unclear = {"comparison": Comparison.UNCLEAR}
    timings = tuple(t.model_copy(update=unclear) if t in faster else t for t in verdict.timings)
    update: dict[str, Any] = {name: one.model_copy(update=unclear | {"withheld": why}) for name, one in ahead.items()}
    warnings = tuple(dict.fromkeys((*verdict.warnings, why)))
    return verdict.model_copy(update=update | {"timings": timings, "warnings": warnings})


ONLY_HOT = "it gains only where its inputs are in the cache"

BASELINE_COPIES = (
    "the baseline returns its outputs, and the copy of them into the spec's is in its time alone: a gain is not called FASTER; "
    "bring a function that writes into outputs it is given"
)

SHARES = (
    "it returns memory of an argument where the baseline returns memory of its own: whoever changes the one changes the other, and a gain is "
    "not called FASTER"
)


def _doubts(session: EvaluationSession, request: ComparisonRequest) -> str:
    """Raises WorkerFailure."""
    if why := session.rules.why_unclear():
        return why
    if session.rules.is_model(request.build.candidate):
        return ""
    theirs, own = (session.pool.returned(one) for one in (request.rivals["baseline"], request.build.candidate))
    if "copies" in theirs - own:
        return BASELINE_COPIES
    if "shares" in own - theirs:
        return SHARES
    workload = random.choice([one for one in session.suite() if one.timed])
    return session.rules.whose_gain(request.build, workload, random.choice(session.caches(workload)))


def _not_slowed(
    session: EvaluationSession,
    request: ComparisonRequest,
    cases: list[Case],
    contests: int,
    order: tuple[Workload, ...],
    look: Callable[[], None] = lambda: None,
) -> tuple[list[TimedCase], Suite | None, list[Check]]:
    """`time_cases`, its suite and the checks of the process that was timed, where the baseline is as fast without the candidate: else all of it again, in fresh processes.

    `look` at the candidate's process before it ends for that. Where it is slowed each time, by little the baseline counts as it is alone;
    by more it raises ArmFailure.
    """
    for tries in range(1, SLOWED_TRIES + 1):
        found = time_cases(session, request, cases, contests)
        late = _checked_again(session, request, order) if cases else []
        timings = [one.timing for one in found]
        suite = suite_of(session, [one.speedups for one in found], timings, _lengths(found))
        if suite is None or suite.comparison is not Comparison.FASTER or request.itself:
            break
        look()
        slowed = _compare_alone(session, request, random.choice([t for t in timings if t.cache == "cold"]))
        if slowed is None:
            break
        if tries < SLOWED_TRIES:
            session.say(f"timing again: {slowed.says}")
            series.begin_anew(session, request)
        elif slowed.by > ACCUSED and session.device == "cuda":  # on a CPU it may be anybody
            raise ArmFailure("candidate", Outcome.CHEATED, slowed.says)
        else:
            found = [_as_alone(session, one, slowed) for one in found]
            suite = suite_of(session, [one.speedups for one in found], [one.timing for one in found], _lengths(found))
    return found, suite, late


def _checked_again(
    session: EvaluationSession, request: ComparisonRequest, workloads: tuple[Workload, ...]
) -> list[Check]:
    """The process that was timed has made thousands of calls since it was checked. Raises ArmFailure where it is wrong now."""
    if request.itself or not workloads or session.rules.is_model(request.build.candidate):
        return []
    found, fault = collect_checks(verification.checks_of_an_old_process(session, request.build, workloads))
    if fault is not None:
        raise ArmFailure(request.mine, fault.outcome, fault.reason)
    return found


def _as_alone(session: EvaluationSession, one: TimedCase, slowed: SlowedBaseline) -> TimedCase:
    """The case with the baseline's time as it is without the candidate."""
    timing, gain = one.timing, one.timing.speedup
    gain = Interval(median=gain.median / slowed.by, low=gain.low / slowed.by, high=gain.high / slowed.by)
    said = series.conclude(session, gain)
    update = {
        "baseline_us": timing.baseline_us / slowed.by,
        "speedup": gain,
        "comparison": Comparison.UNCLEAR
        if said is Comparison.SLOWER
        else said,  # by what may be chance nobody is slower
        "note": "; ".join(filter(None, [timing.note, f"counted as alone: {slowed.says}"])),
    }
    return replace(one, timing=timing.model_copy(update=update), speedups=[ratio / slowed.by for ratio in one.speedups])


def time_baseline_beside(verdict: Verdict, other: Verdict) -> Verdict:
    """The PASSED verdict on a baseline, with its own times of the comparisons in which `other` was timed against it."""
    timings = [
        timing.model_copy(
            update={
                "time_us": timing.baseline_us, "speedup": EXACTLY_ONE, "comparison": Comparison.SAME, "note": "",
                "against_incumbent": None, "incumbent_us": None, "incumbent_speedup": None,
            }
        )
        for timing in other.timings
    ]  # fmt: skip
    same = Suite(speedup=EXACTLY_ONE, comparison=Comparison.SAME)
    return verdict.model_copy(update={"timings": tuple(timings), "suite": same})


@resting()
def measure_other_contexts(session: EvaluationSession, request: ComparisonRequest) -> OtherContexts:
    """The hot cases of the visible suite behind and before other neighbours: as few samples as there may be, since they decide nothing, and
    without long ones. Raises ArmFailure."""
    timings: list[Timing] = []
    suites: dict[TimingContext, Suite] = {}
    session.pool.match(request.build.candidate, request.rivals.values())
    for on in ELSEWHERE:
        cases: list[Case] = [(one, "hot", on) for one in session.suite() if one.timed and "hot" in session.caches(one)]
        least = PROTOCOLS[session.device].blocks[0]
        taken = [
            (case, series.compare_fairly(session, request, case, blocks=(least, least), confirm=False))
            for case in cases
        ]
        found = [_of_one_case(session, request, case, result) for case, result in taken]
        timings += [one.timing for one in found]
        if found:
            interval = comparison.geometric_mean([one.speedups for one in found])
            suites[on] = Suite(speedup=interval, comparison=series.conclude(session, interval))
    return OtherContexts(timings=tuple(timings), suites=suites)


def _lengths(found: list[TimedCase]) -> list[tuple[int, ...]]:
    """Of each case the samples of its series, where series are what repeats of one of them; else none."""
    return [one.lengths for one in found] if any(one.by_series for one in found) else []


def suite_of(
    session: EvaluationSession,
    ratios: list[list[float]],
    timings: list[Timing],
    lengths: Sequence[Sequence[int]] = (),
) -> Suite | None:
    """FASTER only where the cold cases are: a gain that only cached inputs bring is not one everywhere.

    `lengths`: of each case the samples of its series, where series are what repeats. All cases of one are of the same processes, so the
    interval is as wide as whole series differ.
    """
    if not ratios:
        return None
    interval = _mean(ratios, timings)
    said, why = series.conclude(session, interval), ""
    if lengths:
        each = [comparison.split(*one) for one in zip(ratios, lengths, strict=True)]
        whole = [_mean(list(cases), timings).median for cases in zip(*each, strict=False)]
        if len(whole) >= comparison.LEAST_SERIES:
            apart = comparison.series_interval([[ratio] for ratio in whole])
            low, high = min(interval.low, apart.low), max(interval.high, apart.high)
            interval = Interval(median=interval.median, low=low, high=high)
            said = series.conclude(session, interval)
        elif series.may_be_chance(session, interval):
            said = Comparison.UNCLEAR
    cold = [(samples, timed) for samples, timed in zip(ratios, timings, strict=True) if timed.cache == "cold"]
    margin = comparison.MARGIN[session.device]
    if said is Comparison.FASTER and _mean(*map(list, zip(*cold, strict=True))).median <= 1 + margin:
        said, why = Comparison.UNCLEAR, ONLY_HOT
    weighted = any(timed.workload.weight for timed in timings)
    return Suite(speedup=interval, comparison=said, weighted=weighted, withheld=why)


def _mean(ratios: list[list[float]], timings: list[Timing]) -> Interval:
    return series.mean(ratios, [timed.workload for timed in timings], [timed.time_us for timed in timings])


def time_cases(
    session: EvaluationSession, request: ComparisonRequest, cases: list[Case], contests: int = 1
) -> list[TimedCase]:
    """Each case by `contests` comparisons or more (series.time_series). Raises ArmFailure."""
    results = series.time_series(session, request, cases, contests)
    return [_of_one_case(session, request, case, result) for case, result in zip(cases, results, strict=True)]


def _of_one_case(
    session: EvaluationSession, request: ComparisonRequest, case: Case, result: ComparisonTimes
) -> TimedCase:
    """What all its comparisons say. Raises ArmFailure where the candidate is far faster than light."""
    workload, cache, on = case
    raw = {side: tuple(seconds) for side, seconds in result.raw.items()}
    taken = samples.Samples(workload=workload, cache=cache, company=on, seconds=raw)
    samples.save(session.store, request.build.candidate, taken)
    against = series.against(request, result)
    more: dict[str, Any] = {}
    if against:
        more["incumbent_us"] = result.median_us["incumbent"]
        more["incumbent_speedup"] = result.speedup("incumbent")
    timing = timing_of(
        session, request, case, result, light_us=_light_us(session, request, case, result),
        note="; ".join(note for told, note in ((not result.graph[request.mine], NO_GRAPH), (result.by_cpu, BY_CPU)) if told), **more,
    )  # fmt: skip
    alone = timing.comparison is Comparison.SLOWER and not series.is_slower_in_each(session, request, result)
    if alone or series.has_few(session, result, timing.speedup):
        timing = timing.model_copy(update={"comparison": Comparison.UNCLEAR})
    return TimedCase(
        timing, result.checks[request.mine], result.ratios[request.mine], against, result.lengths, result.by_series
    )


def _light_us(
    session: EvaluationSession, request: ComparisonRequest, case: Case, result: ComparisonTimes
) -> float | None:
    """The bound of this case, no more than the baseline takes. Raises ArmFailure for a candidate that is far below it.

    Beside other neighbours than ordinary ones it is asked for only where the candidate could be: seven kernels are timed for it.
    """
    workload, cache, on = case
    mine_us, baseline_us = result.median_us[request.mine], result.median_us["baseline"]
    if on != "plain" and mine_us >= speed_of_light.FASTER_THAN_SOL * baseline_us:
        return None
    light_us = min(session.sol_us(*case), baseline_us)
    if mine_us < speed_of_light.FASTER_THAN_SOL * light_us:
        # Before anyone is accused the bound is measured once more: a busy moment may have raised it.
        light_us = session.sol_us(*case, again=True)
    if mine_us < speed_of_light.FASTER_THAN_SOL * light_us and not request.itself:
        reason = f"{mine_us:.2f} us at {workload.label}, {cache}: moving its bytes takes {light_us:.2f} us here"
        reason += "; or the spec counts more than a call must move (shapes, `touched`)"
        raise ArmFailure(request.mine, Outcome.CHEATED, reason)
    return light_us


def timing_of(
    session: EvaluationSession, request: ComparisonRequest, case: Case, result: ComparisonTimes, **more: Any
) -> Timing:
    """What a comparison's result says of its case; `more` fields of the Timing."""
    workload, cache, on = case
    interval = EXACTLY_ONE if request.itself else result.speedup(request.mine)
    against = series.against(request, result)
    return Timing(
        workload=workload,
        cache=cache,
        company=on,
        baseline_us=result.median_us["baseline"],
        time_us=result.median_us[request.mine],
        speedup=interval,
        comparison=series.conclude(session, interval),
        against_incumbent=result.interval(against) if against else None,
        moved_bytes=session.moved_bytes(workload),
        flops=expression(session.spec.flops, workload.axes) or None,
        compute_us=roofs.compute_us(
            session, workload, min(result.median_us[request.mine], result.median_us["baseline"])
        ),
        samples=result.samples,
        others=round(result.others, 3),
        **more,
    )


def _compare_alone(session: EvaluationSession, request: ComparisonRequest, timed: Timing) -> SlowedBaseline | None:
    """Factor by which the baseline, timed once more with the candidate's process gone, is faster then; None where it is not.

    A stopped process keeps no core busy, but what it left on a GPU runs on, and the kernel may have work to do for it. On a CPU,
    where others come and go, it is timed beside the candidate again as often as alone, and the smallest of the ratios counts.
    """
    baseline = request.rivals["baseline"]
    comparison = session.open_comparison(timed.workload, timed.cache)
    beside_us, slowest_us = timed.baseline_us, 0.0
    session.pool.drop(request.build.candidate)
    for _ in range(ALONE_TRIES):
        arm = Arm("baseline", session.pool.get(session.build(baseline)))
        alone = session.run(comparison, [arm], blocks=(ALONE_BLOCKS, ALONE_BLOCKS))
        slowest_us = max(slowest_us, alone.median_us["baseline"])
        if beside_us <= SLOWED * slowest_us:
            return None
        session.pool.drop(baseline)  # some kernels have two speeds, and which one it is depends on the process
        if session.device == "cpu":
            case: Case = (timed.workload, timed.cache, "plain")
            again = series.compare_case(session, request, case, blocks=(ALONE_BLOCKS, ALONE_BLOCKS), confirm=False)
            beside_us = min(beside_us, again.median_us["baseline"])
            session.pool.drop(request.build.candidate)
    at = f"at {timed.workload.label}, {timed.cache}"
    said = f"the baseline takes {beside_us:.2f} us beside it and {slowest_us:.2f} us without it, {at}"
    return SlowedBaseline(beside_us / slowest_us, said)


def _look_at_load(session: EvaluationSession, others: load.LoadWatch) -> list[str]:
    """Note what other processes took while a candidate was timed, the worst of them; a warning where it was much."""
    session.others = max(session.others, others.share())
    said = f"other processes took at most {session.others:.0%} of the CPU while a candidate was timed"
    session.measured["load"] = said
    return others.warnings()


def _look_at_clocks(session: EvaluationSession) -> list[str]:
    """Note the device's clocks and power right after it was timed; a warning where a GPU was throttled."""
    found = device.clocks() if session.device == "cuda" else device.cpu_clocks()
    if not found:
        return []
    session.clocks.append(found)
    held = f"; {clocks.describe_lock()}" if clocks.describe_lock() else ""
    said = f"{device.ranges(session.clocks)}, at the end of each of {len(session.clocks)} timings{held}"
    session.measured["clocks"] = said
    if session.device == "cpu":
        return []
    reasons = found["clocks_event_reasons.active"]
    return [f"the GPU's clocks were held back while it was timed ({reasons})"] if device.is_throttled(reasons) else []
