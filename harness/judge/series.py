"""Series: each case is timed by one comparison in processes of its own or, where chance may have said it, by more in other ones."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.judge.session import EvaluationSession
from harness.processes.worker import WorkerFailure
from harness.records import Build, Cache, Comparison, Interval, TimingContext
from harness.timing import comparison
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import PROTOCOLS, ArmFailure
from kernels.spec import Workload

SMALL_GAINS = (0.15, 0.05)
"""Shares of the ratio below which FASTER, and SLOWER by the first of them each time, is timed once more in fresh processes, the same for all cases,
and all count alike: of 567 comparisons of a binary with itself on an H200 ten were SLOWER as long as their two processes
lived, by 3 to 11 %, nine of them cold; of 216 cases that were timed twice one still was, by 3.5 %."""
UNLIKE = 1.15
"""Quotient of a workload's cold and hot ratios from which on FASTER is timed once more, and SLOWER always is: two of 54
comparisons of a binary with itself on an H200 were SLOWER, by 23 and 34 %, cold and not hot."""
BEYOND_CHANCE = {"cuda": {"cold": 2.0, "hot": 1.25}, "cpu": {"cold": 2.0, "hot": 2.0}}
"""A case that is FASTER is not timed once more for being unlike where its interval lies above this, by device: what chance has said on a GPU was
a third where the cache was cold and, once of 567 times, at most 11 % where it was hot, and no more of it takes FASTER away."""
RIVAL_TRIES = 3
"""Comparisons in fresh processes before a rival that fails ends the run: a busy machine has accused an incumbent
once; a baseline that fails thrice has a fault."""
GO_ON_S = {"cuda": 4.0, "cpu": 12.0}
"""Seconds that cases go on which nearly say FASTER, in a measurement of a suite, by device. Beside itself a kernel on a CPU that others used
had intervals 9.6 % wide, in which 5 % are not found. On an H200 a process may be slower where the cache is cold, as long as it lives: of 30 cases
of a kernel that was 5 % faster five were UNCLEAR by one such series of two or three, and two SLOWER."""
NEARLY, ROOM, LONGEST = 0.5, 0.25, 8
"""Such a case's median lies beyond so much of the margin. It gets the samples by which its interval would clear the margin, were its
median that or at least so much of the margin beyond it; in one series at most so many times those that it had first."""
Case = tuple[Workload, Cache, TimingContext]


@dataclass(frozen=True)
class ComparisonRequest:
    """Who is timed beside whom."""

    build: Build
    """The candidate's build."""
    rivals: dict[str, str]
    """Hashes of the sources it is compared with, by name: `baseline` and perhaps `incumbent`."""

    @property
    def itself(self) -> bool:
        """The baseline is the candidate: nothing stands beside it, and it is 1.0x by definition."""
        return self.build.candidate == self.rivals["baseline"]

    @property
    def mine(self) -> str:
        """The side that is judged."""
        return "baseline" if self.itself else "candidate"


def time_series(
    session: EvaluationSession, request: ComparisonRequest, cases: list[Case], contests: int = 1
) -> list[ComparisonTimes]:
    """Each case by `contests` comparisons, and by one or two more where they say FASTER or SLOWER and chance may have said it, or
    where chance may have kept the first from saying FASTER.

    Of as many samples as the first, or the longer of two that disagree would decide. Raises ArmFailure.
    """
    # By itself it is 1.0x by definition: what a call takes is all that more samples could say.
    least = PROTOCOLS[session.device].blocks[0]
    how = {"blocks": (least, least)} if request.itself else {}
    # In any order, as what follows is: that it is a process's first case tells nobody that its calls are no others' beside.
    first = {
        at: compare_fairly(session, request, cases[at], **how) for at in random.sample(range(len(cases)), len(cases))
    }
    results = [first[at] for at in range(len(cases))]
    once = [result.samples for result in results]
    for turn, limit in enumerate((*SMALL_GAINS, *[0.0] * (contests - 1 - len(SMALL_GAINS))), start=1):
        far_off = _find_far_off(session, request, cases, results) if turn == 1 else set()
        again = [
            at
            for at, result in enumerate(results)
            if turn < contests
            or at in far_off
            or _says_little(session, request, result, limit)
            or has_few(session, result, result.speedup(request.mine))
            or (turn == 1 and _is_undecided(session, request, result))
        ]
        if again:
            begin_anew(session, request)
        for at in again:
            blocks = (once[at], once[at])
            results[at] = results[at].join(compare_fairly(session, request, cases[at], blocks=blocks))
    _go_on(session, request, cases, results, once)
    _repeat_all(session, request, cases, results, once)
    return results


def _says_little(session: EvaluationSession, request: ComparisonRequest, result: ComparisonTimes, limit: float) -> bool:
    gain = result.speedup(request.mine)
    said = conclude(session, gain)
    limit = SMALL_GAINS[0] if said is Comparison.SLOWER and limit else limit
    return said in (Comparison.FASTER, Comparison.SLOWER) and abs(gain.median - 1) < limit


def is_slower_in_each(session: EvaluationSession, request: ComparisonRequest, result: ComparisonTimes) -> bool:
    """Whether each pair of processes shows SLOWER by itself: of a kernel beside itself on an H200 one of two processes took 50 to 140 ns a cold call
    more, as long as it lived, in 15 of 52 series of 2.1 us, and all samples of three pairs together were SLOWER by 3 % in three of 36 cases."""
    most = 1 - comparison.MARGIN[session.device]
    return all(statistics.median(one) < most for one in comparison.split(result.ratios[request.mine], result.lengths))


def may_be_chance(session: EvaluationSession, gain: Interval) -> bool:
    """Whether FASTER or SLOWER is said by no more than what one series has said of a kernel beside itself."""
    most = BEYOND_CHANCE[session.device]["cold"]
    return (
        conclude(session, gain) in (Comparison.FASTER, Comparison.SLOWER) and 1 / most <= gain.high and gain.low <= most
    )


def has_few(session: EvaluationSession, result: ComparisonTimes, gain: Interval) -> bool:
    """Whether that FASTER or SLOWER may be chance, since too few series have shown how far they are apart."""
    return result.by_series and len(result.lengths) < comparison.LEAST_SERIES and may_be_chance(session, gain)


def _repeat_all(
    session: EvaluationSession,
    request: ComparisonRequest,
    cases: list[Case],
    results: list[ComparisonTimes],
    once: list[int],
) -> None:
    """Where others use the CPU: all cases until each has LEAST_SERIES series, while all together say FASTER or SLOWER and chance may have said it."""
    while not request.itself and any(result.by_series for result in results):
        fewest = min(len(result.lengths) for result in results)
        all_ratios = [[result.ratios[request.mine] for result in results], [against(request, one) for one in results]]
        times_us = [result.median_us[request.mine] for result in results]
        said = [mean(ratios, [case[0] for case in cases], times_us) for ratios in all_ratios if all(ratios)]
        if fewest >= comparison.LEAST_SERIES or not any(may_be_chance(session, gain) for gain in said):
            return
        begin_anew(session, request)
        few = [at for at, result in enumerate(results) if len(result.lengths) == fewest]
        for at in random.sample(few, len(few)):
            results[at] = results[at].join(compare_fairly(session, request, cases[at], blocks=(once[at], once[at])))


def _is_undecided(session: EvaluationSession, request: ComparisonRequest, result: ComparisonTimes) -> bool:
    """Whether the median is FASTER and the interval too wide for it: of ten kernels that were 5 % faster on an H200 half stayed so."""
    gain = result.speedup(request.mine)
    return conclude(session, gain) is Comparison.UNCLEAR and gain.median > 1 + comparison.MARGIN[session.device]


def _go_on(
    session: EvaluationSession,
    request: ComparisonRequest,
    cases: list[Case],
    results: list[ComparisonTimes],
    once: list[int],
) -> None:
    """More series for the cases that nearly say FASTER, each in fresh processes, as long as there is time for what they need: those
    that need least come first. `results` are changed in place; `once`: the samples that each had first."""
    left_s = GO_ON_S[session.device]
    while not request.itself:
        unlike = _find_unlike(session, request, cases, results)
        needed = {at: _samples_needed(session, request, one) for at, one in enumerate(results) if at not in unlike}
        costs = {at: count * results[at].seconds / results[at].samples for at, count in needed.items() if count}
        at = min(costs, key=lambda one: costs[one], default=None)
        if at is None or costs[at] > left_s:
            return
        begin_anew(session, request)
        count = max(once[at], min(needed[at], LONGEST * once[at]))
        found = compare_fairly(session, request, cases[at], blocks=(count, count))
        left_s -= found.seconds
        results[at] = results[at].join(found)


def _samples_needed(session: EvaluationSession, request: ComparisonRequest, result: ComparisonTimes) -> int:
    """How many samples more would make FASTER of a case that nearly is; 0 where it is decided, or is not near."""
    gain, margin = result.speedup(request.mine), comparison.MARGIN[session.device]
    if conclude(session, gain) is not Comparison.UNCLEAR or gain.median <= 1 + NEARLY * margin:
        return 0
    if result.by_series:
        series = comparison.split(result.ratios[request.mine], result.lengths)
        return comparison.series_needed(series, margin) * result.lengths[0]
    room = max(gain.median - (1 + margin), ROOM * margin)
    return math.ceil(result.samples * (((gain.median - gain.low) / room) ** 2 - 1)) or 1


def _find_unlike(
    session: EvaluationSession, request: ComparisonRequest, cases: list[Case], results: list[ComparisonTimes]
) -> set[int]:
    """On a GPU, indices of cases whose ratio is far from that of the same workload in another state of the cache: one process was unlucky, and
    who goes on until another one is would find gains that are none."""
    return _far_apart(request, cases, results) if session.device == "cuda" else set()


def _far_apart(request: ComparisonRequest, cases: list[Case], results: list[ComparisonTimes]) -> set[int]:
    """Indices of cases whose ratio is far from that of the same workload in another state of the cache."""
    gains, found = [result.speedup(request.mine).median for result in results], set()
    for at, (workload, _, on) in enumerate(cases):
        states = [gains[i] for i, (what, _, where) in enumerate(cases) if (what, where) == (workload, on)]
        if max(states) > UNLIKE * min(states):
            found.add(at)
    return found


def _find_far_off(
    session: EvaluationSession, request: ComparisonRequest, cases: list[Case], results: list[ComparisonTimes]
) -> set[int]:
    """Indices of cases that say SLOWER, or FASTER by another ratio than the same workload in another state of the cache."""
    apart, found = _far_apart(request, cases, results), set()
    for at, ((_, cache, _), result) in enumerate(zip(cases, results, strict=True)):
        gain = result.speedup(request.mine)
        said = conclude(session, gain)
        unlike = at in apart and gain.low <= BEYOND_CHANCE[session.device][cache]
        if said is Comparison.SLOWER or (said is Comparison.FASTER and unlike):
            found.add(at)
    return found


def compare_fairly(session: EvaluationSession, request: ComparisonRequest, case: Case, **how: Any) -> ComparisonTimes:
    """`compare_case`, and again where a rival failed: it has passed before, so a fresh process of it gets the doubt."""
    workload, cache, on = case
    name, tries = f"{workload.label}, {cache}{'' if on == 'plain' else f', {on}'}", 1
    session.say(f"timing {name}")
    while True:
        try:
            with session.pool.guarding_memory(request.build.candidate):
                return compare_case(session, request, case, **how)
        except ArmFailure as fault:
            if fault.arm not in request.rivals or tries == RIVAL_TRIES:
                raise
            tries += 1
            session.say(f"timing {name} again: {fault.arm}: {fault.reason}")
            session.pool.drop(request.rivals[fault.arm])


def compare_case(session: EvaluationSession, request: ComparisonRequest, case: Case, **how: Any) -> ComparisonTimes:
    """One comparison of the rivals and, unless it is the baseline, the candidate, whose calls are looked at."""
    builds = {name: session.build(rival) for name, rival in request.rivals.items()}
    if not request.itself:
        builds["candidate"] = request.build
    for name, build in builds.items():
        try:  # at a size that no agent sees it was done where that was verified: on a cluster maybe on another machine
            session.compile_ahead(build, case[:1])
        except WorkerFailure as fault:
            raise ArmFailure(name, fault.outcome, fault.reason) from None
    order = list(reversed(builds)) if session.turned else list(builds)
    session.pool.begin([builds[name] for name in order])
    made = {name: session.make_arm(name, builds[name]) for name in order}
    arms = [made[name] for name in builds]
    # Now, since what a process needs compiled before it starts is called in the same memory: a Triton baseline that nobody had verified was
    # compiled for behind this, and the candidate CHEATED by what lay in its guards.
    comparison = session.open_comparison(*case)
    if not request.itself:
        comparison.evidence = session.chance_evidence(request.build.candidate, case[0])
    return session.run(comparison, arms, check=(request.mine,), turned=session.turned, **how)


def begin_anew(session: EvaluationSession, request: ComparisonRequest) -> None:
    """Fresh processes: what a pair of them has by chance, both keep as long as they live.

    And of one age: an old process has large blocks at hand that a new one asks the kernel for at every call, so a numpy
    function was 5 to 10 % slower than itself from an Evaluator's second verdict on. Who is begun and prepared first takes turns: of 39 series
    of a kernel of 2.1 us with itself, cold, in whole verdicts on an H100 in which the baseline always was, the other side was slower by 50 to 140 ns a call in
    17 and the baseline in none. On an H200 neither was in 72 pairs of processes that nobody had checked, in any order; but where both began anew
    behind a candidate's checks its side was in 15 of 52.
    """
    session.turned = not session.turned
    for one in (*request.rivals.values(), request.build.candidate):
        session.pool.drop(one)


def conclude(session: EvaluationSession, interval: Interval) -> Comparison:
    return comparison.compare(interval, comparison.MARGIN[session.device])


def against(request: ComparisonRequest, result: ComparisonTimes) -> list[float]:
    if request.itself or "incumbent" not in request.rivals:
        return []
    return [c / i for c, i in zip(result.ratios[request.mine], result.ratios["incumbent"], strict=True)]


def mean(ratios: list[list[float]], workloads: Sequence[Workload], times_us: Sequence[float]) -> Interval:
    """Ratio of the weighted calls' time where workloads have weights, else the geometric mean; `times_us`: of the judged side, by case."""
    if not all(workload.weight for workload in workloads):
        return comparison.geometric_mean(ratios)
    return comparison.weigh(ratios, [us * (one.weight or 0.0) for one, us in zip(workloads, times_us, strict=True)])
