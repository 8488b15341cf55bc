"""How fast a candidate is beside its rivals: contests of every timed workload, each case once or, where it says little, again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any

from harness import backends, device
from harness.checks.correctness import failure
from harness.judge import of_problems, verification, whose_code
from harness.judge.pool import is_python_side
from harness.judge.session import CACHES, Rig
from harness.problems.pytorch import Problem, is_model
from harness.processes.worker import WorkerFailure
from harness.records import Build, Cache, Check, Company, Comparison, Interval, Outcome, Suite, Timing, Verdict
from harness.timing import clocks, comparison, load, roofs, samples, speed_of_light
from harness.timing.interleaved import Result
from harness.timing.sampling import Side, SideFailure
from kernels.spec import Frozen, Workload, expression

ELSEWHERE: tuple[Company, ...] = ("pdl", "alone")
"""Companies beside the plain one, which decides."""
SMALL_GAINS = (0.15, 0.05)
"""What is FASTER or SLOWER by less is timed once more in fresh processes, the same for all cases, and all count alike: of 567
contests of a binary with itself on an H200 ten were SLOWER as long as their two processes lived, by 3 to 11 %, nine of them cold;
of 216 cases that were timed twice one still was, by 3.5 %."""
RIVAL_TRIES = 3
"""A busy machine has accused an incumbent, and with that ended a run; a baseline that fails thrice has a fault."""
ALONE_TRIES = 3
ALONE_BLOCKS = 5
"""Whether it is slowed by a tenth shows in as few."""
SLOWED = 1.1
"""A baseline that is so much slower while the candidate's process lives is being slowed by it."""
SLOWED_TRIES, ACCUSED = 2, 1.2
"""So often it is looked at, and who slows it by more is accused. Eager torch's losses of two 2 GB inputs took 11 % longer beside an
honest draft than alone, each time (H200); nobody gains by that, since the baseline counts as it is alone."""
EXACTLY_ONE = Interval(median=1, low=1, high=1)
Case = tuple[Workload, Cache, Company]


@dataclass(frozen=True)
class Match:
    """Who is timed beside whom."""

    build: Build
    """The candidate's."""
    rivals: dict[str, str]
    """`baseline` and perhaps `incumbent`, by the hashes of their sources."""

    @property
    def itself(self) -> bool:
        """The baseline is the candidate: nothing stands beside it, and it is 1.0x by definition."""
        return self.build.candidate == self.rivals["baseline"]

    @property
    def mine(self) -> str:
        """The side that is judged."""
        return "baseline" if self.itself else "candidate"


@dataclass(frozen=True)
class Timed:
    """One case of a match."""

    timing: Timing
    checks: list[Check]
    speedups: list[float]
    against: list[float]
    """The incumbent's time / the candidate's; [] without one."""


@dataclass(frozen=True)
class Slowed:
    """The baseline beside a candidate."""

    by: float
    """Its time there over that alone."""
    says: str


class Elsewhere(Frozen):
    """What was measured in other company."""

    timings: tuple[Timing, ...]
    suites: dict[Company, Suite]


def measured(rig: Rig, match: Match, verdict: Verdict, *, held_out: bool, contests: int) -> Verdict:
    """The PASSED verdict with the timings of a suite, or with what the candidate did while it was timed.

    Raises RuntimeError where a rival fails.
    """
    start, others = time.perf_counter(), load.Watch()
    rig.pool.match(match.build.candidate, match.rivals.values())
    if rig.device == "cpu":
        _anew(rig, match)
    order = rig.suite(held_out=held_out)
    workloads = [workload for workload in order if workload.timed]
    if any(roofs.weighs(rig.spec, workload) for workload in workloads):
        rig.measured_facts()  # before there is a candidate's process whose memory is watched
    cases: list[Case] = [(one, cache, "plain") for one in workloads for cache in reversed(rig.caches(one))]
    try:
        found, suite, late = _not_slowed(rig, match, cases, contests, order)
        timings = [one.timing for one in found]
        notes = [f"{t.workload.label}, {t.cache}: {t.note}" for t in timings if t.note]
        warnings = [*verdict.warnings, *notes, *_look_at_clocks(rig), *_look_at_load(rig, others)]
    except SideFailure as fault:
        if fault.side != match.mine:
            raise RuntimeError(f"the {fault.side} failed while it was timed: {fault.reason}") from None
        rig.pool.drop(verdict.candidate)
        return verdict.failed(fault.outcome, fault.reason)
    now = verdict.model_copy(
        update={
            "timings": tuple(sorted(timings, key=lambda t: (order.index(t.workload), CACHES.index(t.cache)))),
            "checks": (*verdict.checks, *(check for one in found for check in one.checks), *late),
            "suite": suite,
            "suite_incumbent": suite_of(rig, [one.against for one in found if one.against], timings),
            "warnings": tuple(dict.fromkeys(warnings)),
            "seconds": verdict.seconds + time.perf_counter() - start,
        }
    )
    try:
        return held_back(rig, match, now)
    except WorkerFailure as fault:
        rig.pool.drop(verdict.candidate)
        return verdict.failed(fault.outcome, fault.reason)


def held_back(rig: Rig, match: Match, verdict: Verdict) -> Verdict:
    """The verdict without FASTER where its gain may not be its own, with a warning that says why. Raises WorkerFailure."""
    faster = [t for t in verdict.timings if t.comparison is Comparison.FASTER]
    suites = {name: getattr(verdict, name) for name in ("suite", "suite_incumbent")}
    ahead = {name: one for name, one in suites.items() if one is not None and one.comparison is Comparison.FASTER}
    if match.itself or not (faster or ahead):
        return verdict
    why = _doubts(rig, match)
    if not why:
        return verdict
    timings = tuple(
        t.model_copy(update={"comparison": Comparison.UNCLEAR}) if t in faster else t for t in verdict.timings
    )
    update: dict[str, Any] = {
        name: one.model_copy(update={"comparison": Comparison.UNCLEAR}) for name, one in ahead.items()
    }
    update |= {"timings": timings, "warnings": (*verdict.warnings, why)}
    return verdict.model_copy(update=update)


def _doubts(rig: Rig, match: Match) -> str:
    """Raises WorkerFailure."""
    if isinstance(rig.kernel, Problem) and (why := of_problems.by_content(rig, rig.kernel)):
        return why
    ours = isinstance(rig.kernel, Problem) and match.build.candidate in rig.kernel.sources()
    if rig.device == "cuda" or ours or not is_python_side(backends.get(match.build.backend)):
        return ""
    seen = whose_code.watch(rig, match.build, next(one for one in rig.suite() if one.timed))
    return whose_code.doubt(seen, libraries=isinstance(rig.kernel, Problem) and rig.own_kernels == "some")


def _not_slowed(
    rig: Rig, match: Match, cases: list[Case], contests: int, suite_of_all: tuple[Workload, ...]
) -> tuple[list[Timed], Suite | None, list[Check]]:
    """`timed`, its suite and the checks of the process that was timed, where the baseline is as fast without the candidate: else all of it again, in fresh processes.

    Where it is slowed each time, by little the baseline counts as it is alone; by more it raises SideFailure.
    """
    for tries in range(1, SLOWED_TRIES + 1):
        found = timed(rig, match, cases, contests)
        late = _checked_again(rig, match, suite_of_all)
        timings = [one.timing for one in found]
        suite = suite_of(rig, [one.speedups for one in found], timings)
        if suite is None or suite.comparison is not Comparison.FASTER or match.itself:
            break
        slowed = _compare_alone(rig, match, random.choice([t for t in timings if t.cache == "cold"]))
        if slowed is None:
            break
        if tries < SLOWED_TRIES:
            rig.say(f"timing again: {slowed.says}")
            _anew(rig, match)
        elif slowed.by > ACCUSED and rig.device == "cuda":  # on a CPU it may be anybody
            raise SideFailure("candidate", Outcome.CHEATED, slowed.says)
        else:
            found = [_as_alone(rig, one, slowed) for one in found]
            suite = suite_of(rig, [one.speedups for one in found], [one.timing for one in found])
    return found, suite, late


def _checked_again(rig: Rig, match: Match, workloads: tuple[Workload, ...]) -> list[Check]:
    """The process that was timed has made thousands of calls since it was checked. Raises SideFailure where it is wrong now."""
    if match.itself or not workloads or is_model(rig.kernel, match.build.candidate):
        return []
    found: list[Check] = []
    try:
        for check in verification.checks_of_an_old_process(rig, rig.pool.get(match.build), workloads):
            if not check.passed:
                raise WorkerFailure(*failure(check))
            found.append(check)
    except WorkerFailure as fault:
        raise SideFailure(match.mine, fault.outcome, fault.reason) from None
    return found


def _as_alone(rig: Rig, one: Timed, slowed: Slowed) -> Timed:
    """The case with the baseline's time as it is without the candidate."""
    timing, gain = one.timing, one.timing.speedup
    gain = Interval(median=gain.median / slowed.by, low=gain.low / slowed.by, high=gain.high / slowed.by)
    said = _said(rig, gain)
    update = {
        "baseline_us": timing.baseline_us / slowed.by,
        "speedup": gain,
        "comparison": Comparison.UNCLEAR
        if said is Comparison.SLOWER
        else said,  # by what may be chance nobody is slower
        "note": "; ".join(filter(None, [timing.note, f"counted as alone: {slowed.says}"])),
    }
    return replace(one, timing=timing.model_copy(update=update), speedups=[ratio / slowed.by for ratio in one.speedups])


def timed_beside(verdict: Verdict, other: Verdict) -> Verdict:
    """The PASSED verdict on a baseline, with its own times of the contests in which `other` was timed against it."""
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


def in_other_company(rig: Rig, match: Match) -> Elsewhere:
    """The hot cases of the visible suite behind and before other neighbours. Raises SideFailure."""
    timings: list[Timing] = []
    suites: dict[Company, Suite] = {}
    rig.pool.match(match.build.candidate, match.rivals.values())
    for on in ELSEWHERE:
        cases: list[Case] = [(one, "hot", on) for one in rig.suite() if one.timed and "hot" in rig.caches(one)]
        found = timed(rig, match, cases)
        timings += [one.timing for one in found]
        if found:
            interval = comparison.geometric_mean([one.speedups for one in found])
            suites[on] = Suite(speedup=interval, comparison=_said(rig, interval))
    return Elsewhere(timings=tuple(timings), suites=suites)


def suite_of(rig: Rig, ratios: list[list[float]], timings: list[Timing]) -> Suite | None:
    """FASTER only where the cold cases are: a gain that only cached inputs bring is not one everywhere."""
    if not ratios:
        return None
    interval = _mean(ratios, timings)
    said = _said(rig, interval)
    cold = [(samples, timed) for samples, timed in zip(ratios, timings, strict=True) if timed.cache == "cold"]
    margin = comparison.MARGIN[rig.device]
    if said is Comparison.FASTER and _mean(*map(list, zip(*cold, strict=True))).median <= 1 + margin:
        said = Comparison.UNCLEAR
    return Suite(speedup=interval, comparison=said, weighted=any(timed.workload.weight for timed in timings))


def _mean(ratios: list[list[float]], timings: list[Timing]) -> Interval:
    """Of the weighted calls' time where workloads have weights, else the geometric mean."""
    if not all(timed.workload.weight for timed in timings):
        return comparison.geometric_mean(ratios)
    return comparison.weighted(ratios, [timed.time_us * (timed.workload.weight or 0.0) for timed in timings])


def _said(rig: Rig, interval: Interval) -> Comparison:
    return comparison.compare(interval, comparison.MARGIN[rig.device])


def timed(rig: Rig, match: Match, cases: list[Case], contests: int = 1) -> list[Timed]:
    """Each case by `contests` contests, and by one or two more where they say FASTER or SLOWER by little. Raises SideFailure.

    Of as many samples as the first, or the longer of two that disagree would decide.
    """
    results = [_fairly(rig, match, case) for case in cases]
    once = [result.samples for result in results]
    for turn, limit in enumerate((*SMALL_GAINS, *[0.0] * (contests - 1 - len(SMALL_GAINS))), start=1):
        again = [at for at, result in enumerate(results) if turn < contests or _says_little(rig, match, result, limit)]
        if again:
            _anew(rig, match)
        for at in again:
            blocks = (once[at], once[at])
            results[at] = results[at].joined(_fairly(rig, match, cases[at], blocks=blocks))
    return [_of_one_case(rig, match, case, result) for case, result in zip(cases, results, strict=True)]


def _says_little(rig: Rig, match: Match, result: Result, limit: float) -> bool:
    gain = result.speedup(match.mine)
    return _said(rig, gain) in (Comparison.FASTER, Comparison.SLOWER) and abs(gain.median - 1) < limit


def _fairly(rig: Rig, match: Match, case: Case, **how: Any) -> Result:
    """`contested`, and again where a rival failed: it has passed before, so a fresh process of it gets the doubt."""
    workload, cache, on = case
    name, tries = f"{workload.label}, {cache}{'' if on == 'plain' else f', {on}'}", 1
    rig.say(f"timing {name}")
    while True:
        try:
            with rig.pool.guarding_memory(match.build.candidate):
                return contested(rig, match, case, **how)
        except SideFailure as fault:
            if fault.side not in match.rivals or tries == RIVAL_TRIES:
                raise
            tries += 1
            rig.say(f"timing {name} again: {fault.side}: {fault.reason}")
            rig.pool.drop(match.rivals[fault.side])


def _of_one_case(rig: Rig, match: Match, case: Case, result: Result) -> Timed:
    """What all its contests say. Raises SideFailure where the candidate is far faster than light."""
    workload, cache, on = case
    raw = {side: tuple(seconds) for side, seconds in result.raw.items()}
    samples.keep(
        rig.store, match.build.candidate, samples.Samples(workload=workload, cache=cache, company=on, seconds=raw)
    )
    against = _against(match, result)
    more: dict[str, Any] = {}
    if against:
        more["incumbent_us"] = result.median_us["incumbent"]
        more["incumbent_speedup"] = result.speedup("incumbent")
    timing = timing_of(
        rig, match, case, result, light_us=_light_us(rig, match, case, result),
        note="" if result.graph[match.mine] else "cannot be captured in a CUDA graph; timed with plain launches", **more,
    )  # fmt: skip
    return Timed(timing, result.checks[match.mine], result.ratios[match.mine], against)


def _light_us(rig: Rig, match: Match, case: Case, result: Result) -> float:
    """The bound of this case, no more than the baseline takes. Raises SideFailure for a candidate that is far below it."""
    workload, cache, _ = case
    mine_us = result.median_us[match.mine]
    light_us = min(rig.light_us(*case), result.median_us["baseline"])
    if mine_us < speed_of_light.FASTER_THAN_LIGHT * light_us:
        # Before anyone is accused the bound is measured once more: a busy moment may have raised it.
        light_us = rig.light_us(*case, again=True)
    if mine_us < speed_of_light.FASTER_THAN_LIGHT * light_us and not match.itself:
        reason = f"{mine_us:.2f} us at {workload.label}, {cache}: moving its bytes takes {light_us:.2f} us here"
        reason += "; or the spec counts more than a call must move (shapes, `touched`)"
        raise SideFailure(match.mine, Outcome.CHEATED, reason)
    return light_us


def _against(match: Match, result: Result) -> list[float]:
    if match.itself or "incumbent" not in match.rivals:
        return []
    return [c / i for c, i in zip(result.ratios[match.mine], result.ratios["incumbent"], strict=True)]


def timing_of(rig: Rig, match: Match, case: Case, result: Result, **more: Any) -> Timing:
    """What a contest's result says of its case; `more` fields of the Timing."""
    workload, cache, on = case
    interval = EXACTLY_ONE if match.itself else result.speedup(match.mine)
    against = _against(match, result)
    return Timing(
        workload=workload,
        cache=cache,
        company=on,
        baseline_us=result.median_us["baseline"],
        time_us=result.median_us[match.mine],
        speedup=interval,
        comparison=_said(rig, interval),
        against_incumbent=comparison.median_interval(against) if against else None,
        moved_bytes=rig.moved(workload),
        flops=expression(rig.spec.flops, workload.axes) or None,
        compute_us=roofs.compute_us(rig, workload, min(result.median_us[match.mine], result.median_us["baseline"])),
        samples=result.samples,
        others=round(result.others, 3),
        **more,
    )


def contested(rig: Rig, match: Match, case: Case, **how: Any) -> Result:
    """One contest of the rivals and, unless it is the baseline, the candidate, whose calls are looked at."""
    contest = rig.contest(*case)
    builds = {name: rig.build(rival) for name, rival in match.rivals.items()}
    if not match.itself:
        builds["candidate"] = match.build
    for name, build in builds.items():
        try:  # at a size that no agent sees it was done where that was verified: on a cluster maybe on another machine
            rig.compile_ahead(build, case[:1])
        except WorkerFailure as fault:
            raise SideFailure(name, fault.outcome, fault.reason) from None
    sides = [rig.side(name, build) for name, build in builds.items()]
    return rig.run(contest, sides, check=(match.mine,), **how)


def _anew(rig: Rig, match: Match) -> None:
    """Fresh processes: what a pair of them has by chance, both keep as long as they live.

    And of one age: an old process has large blocks at hand that a new one asks the kernel for at every call, so a numpy
    function was 5 to 10 % slower than itself from an Evaluator's second verdict on.
    """
    for one in (*match.rivals.values(), match.build.candidate):
        rig.pool.drop(one)


def _compare_alone(rig: Rig, match: Match, timed: Timing) -> Slowed | None:
    """By how much the baseline, timed once more with the candidate's process gone, is faster then; None where it is not.

    A stopped process keeps no core busy, but what it left on a GPU runs on, and the kernel may have work to do for it. On a CPU,
    where others come and go, it is timed beside the candidate again as often as alone, and the smallest of the ratios counts.
    """
    baseline = match.rivals["baseline"]
    contest = rig.contest(timed.workload, timed.cache)
    beside_us, slowest_us = timed.baseline_us, 0.0
    rig.pool.drop(match.build.candidate)
    for _ in range(ALONE_TRIES):
        side = Side("baseline", rig.pool.get(rig.build(baseline)))
        alone = rig.run(contest, [side], blocks=(ALONE_BLOCKS, ALONE_BLOCKS))
        slowest_us = max(slowest_us, alone.median_us["baseline"])
        if beside_us <= SLOWED * slowest_us:
            return None
        rig.pool.drop(baseline)  # some kernels have two speeds, and which one it is depends on the process
        if rig.device == "cpu":
            case: Case = (timed.workload, timed.cache, "plain")
            again = contested(rig, match, case, blocks=(ALONE_BLOCKS, ALONE_BLOCKS), confirm=False)
            beside_us = min(beside_us, again.median_us["baseline"])
            rig.pool.drop(match.build.candidate)
    return Slowed(
        beside_us / slowest_us,
        f"the baseline takes {beside_us:.2f} us beside it and {slowest_us:.2f} us without it, "
        f"at {timed.workload.label}, {timed.cache}",
    )


def _look_at_load(rig: Rig, others: load.Watch) -> list[str]:
    """Note what other processes took while a candidate was timed, the worst of them; a warning where it was much."""
    rig.others = max(rig.others, others.share())
    rig.measured["load"] = f"other processes took at most {rig.others:.0%} of the CPU while a candidate was timed"
    return others.said()


def _look_at_clocks(rig: Rig) -> list[str]:
    """Note the device's clocks and power right after it was timed; a warning where a GPU was throttled."""
    found = device.clocks() if rig.device == "cuda" else device.cpu_clocks()
    if not found:
        return []
    rig.clocks.append(found)
    held = f"; {clocks.held()}" if clocks.held() else ""
    rig.measured["clocks"] = f"{device.ranges(rig.clocks)}, at the end of each of {len(rig.clocks)} timings{held}"
    if rig.device == "cpu":
        return []
    reasons = found["clocks_event_reasons.active"]
    return [f"the GPU's clocks were held back while it was timed ({reasons})"] if device.throttled(reasons) else []
