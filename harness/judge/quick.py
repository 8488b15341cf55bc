"""A short comparison on a few workloads, for whoever is still writing a candidate. Unofficial: it decides nothing and never
becomes a verdict; the same protocol as the measure gate's, with fewer samples and no second look.

In series: each is begun in fresh processes, and a series of every case comes before the next one of any, so that what disturbs
one for some seconds is seen as a difference between series and does not pass for the code's (comparison.series_interval).
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Sequence

from harness.judge import comparisons, series
from harness.judge.series import ComparisonRequest
from harness.judge.session import EvaluationSession
from harness.processes.spares import resting
from harness.processes.worker import WorkerFailure
from harness.records import Cache, Comparison, Outcome, Timing
from harness.timing import comparison, load
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import ArmFailure
from kernels.spec import Frozen, Workload

BLOCKS = (5, 7)
"""Samples of each arm in a comparison of one series, least and most; the gate takes 8 to 24."""
SERIES_BLOCKS = (3, 4)
"""The same of each of several series: what is like the sample before it tells little more."""
TRIES = 3
"""Tries in fresh processes before a clock is disbelieved: an honest OpenMP source was accused twice in 21 comparisons
on a machine of which others took half."""
Case = tuple[Workload, Cache]


class Spread(Frozen):
    """All samples of one arm in one case, in microseconds a call."""

    least_us: float
    lower_us: float
    """A quarter of the samples are less, and a quarter more than `upper_us`."""
    median_us: float
    upper_us: float
    cpu_us: float | None = None
    """CPU time of all its threads, the median; None on a GPU."""
    cpu_share: float | None = None
    """CPU time over the time that passed, the median: near 1 for a thread that nobody interrupts."""


class Quick(Frozen):
    """What a short comparison found. Where an arm failed nothing is timed, and `reason` says why: with `outcome` it was the
    candidate's fault, without it the machine's or a rival's."""

    timings: tuple[Timing, ...] = ()
    pairs: tuple[dict[str, tuple[tuple[float, ...], ...]], ...] = ()
    """For each timing, by the rival's name, its time over the candidate's: series of one ratio for each block."""
    spreads: tuple[dict[str, Spread], ...] = ()
    """For each timing, by arm (`candidate` and the rivals' names), how its samples lie."""
    outcome: Outcome | None = None
    reason: str = ""
    seconds: float = 0.0


def choose_cases(session: EvaluationSession) -> list[Case]:
    """The cases that are taken where none are named: the smallest and the largest of the visible suite, in each state of the cache."""
    timed = [workload for workload in session.suite() if workload.timed]
    ends = {one.label: one for one in (min(timed, key=session.moved_bytes), max(timed, key=session.moved_bytes))}
    return [(workload, cache) for workload in ends.values() for cache in session.caches(workload)]


@resting()
def compare_briefly(
    session: EvaluationSession, request: ComparisonRequest, cases: Sequence[Case], seconds: float = 0.0
) -> Quick:
    """Time those cases in one series each, or in as many as fit into `seconds` until each comparison says something.

    Without `seconds` the timings say what one series does, for callers that look at several cases together; with them, what no
    fewer than three agree on. Raises RuntimeError where the baseline fails: it has passed before.
    """
    began = time.monotonic()
    session.pool.match(request.build.candidate, request.rivals.values())
    found: list[list[ComparisonTimes]] = [[] for _ in cases]
    blocks = SERIES_BLOCKS if seconds else BLOCKS
    for passes in itertools.count(1):
        for at, (workload, cache) in enumerate(cases):
            if found[at] and not _unclear(session, request, found[at]):
                continue
            if passes > 1 and (time.monotonic() - began) * (1 + 1 / sum(map(len, found))) > seconds:
                break  # another series does not fit
            session.say(f"a short comparison at {workload.label}, {cache}{f', series {passes}' if seconds else ''}")
            try:
                found[at].append(_fairly(session, request, (workload, cache, "plain"), blocks))
            except _NotTimed as fault:
                session.pool.drop(request.build.candidate)
                return Quick(outcome=fault.outcome, reason=fault.reason, seconds=time.monotonic() - began)
        else:
            if seconds and any(_unclear(session, request, series) for series in found):
                for one in (*request.rivals.values(), request.build.candidate):
                    session.pool.drop(one)
                continue
        break
    return Quick(
        timings=tuple(_timing(session, request, *one, bool(seconds)) for one in zip(cases, found, strict=True)),
        pairs=tuple(_pairs(request, series) for series in found),
        spreads=tuple(_spreads(request, series) for series in found),
        seconds=time.monotonic() - began,
    )


def _unclear(session: EvaluationSession, request: ComparisonRequest, series: Sequence[ComparisonTimes]) -> bool:
    margin = comparison.MARGIN[session.device]
    pairs = _pairs(request, series).values()
    return any(comparison.compare_series(one, margin) is Comparison.UNCLEAR for one in pairs)


def _pairs(request: ComparisonRequest, series: Sequence[ComparisonTimes]) -> dict[str, tuple[tuple[float, ...], ...]]:
    def ratios(one: ComparisonTimes, name: str) -> tuple[float, ...]:
        return tuple(own / its for own, its in zip(one.ratios[request.mine], one.ratios[name], strict=True))

    beside = [name for name in request.rivals if name != request.mine]
    return {name: tuple(ratios(one, name) for one in series) for name in beside}


def _spreads(request: ComparisonRequest, series: Sequence[ComparisonTimes]) -> dict[str, Spread]:
    return {name: _spread(name, series) for name in dict.fromkeys((*request.rivals, request.mine))}


def _spread(name: str, series: Sequence[ComparisonTimes]) -> Spread:
    us = [seconds * 1e6 for one in series for seconds in one.net(name)]
    lower, median, upper = statistics.quantiles(us, n=4, method="inclusive") if len(us) > 1 else us * 3
    cpu_us = [seconds * 1e6 for one in series for seconds in one.cpu.get(name, ()) if seconds > 0]
    cpu: dict[str, float] = {}
    if len(cpu_us) == len(us):
        shares = [taken / passed for taken, passed in zip(cpu_us, us, strict=True)]
        cpu = {"cpu_us": statistics.median(cpu_us), "cpu_share": statistics.median(shares)}
    return Spread(least_us=min(us), lower_us=lower, median_us=median, upper_us=upper, **cpu)


class _NotTimed(Exception):
    def __init__(self, outcome: Outcome | None, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def _fairly(
    session: EvaluationSession, request: ComparisonRequest, case: series.Case, blocks: tuple[int, int]
) -> ComparisonTimes:
    """One comparison. Whose clock is disbelieved is timed again in fresh processes, and accused only on a quiet machine.

    Raises _NotTimed.
    """
    disturbed = 0.0
    for tries in range(1, TRIES + 1):
        others = load.LoadWatch()
        try:
            with session.pool.guarding_memory(request.build.candidate):
                return series.compare_case(session, request, case, blocks=blocks, confirm=False)
        except ArmFailure as failure:
            fault = failure
        except WorkerFailure as failure:
            fault = ArmFailure("candidate", failure.outcome, failure.reason)
        disturbed = max(disturbed, others.share())
        its_own = fault.arm == request.mine
        if tries < TRIES and (fault.outcome is Outcome.CHEATED or not its_own):
            session.say(f"again, in fresh processes: {fault.arm}: {fault.reason}")
            for one in (*request.rivals.values(), request.build.candidate):
                session.pool.drop(one)
            continue
        break
    at = f"at {case[0].label}, {case[1]}"
    if fault.arm == "baseline" and not request.itself:
        raise RuntimeError(f"the baseline failed while it was timed {at}: {fault.reason}") from None
    if fault.outcome is Outcome.CHEATED and disturbed >= load.DISTURBED:
        why = f"the clocks do not agree {at}, and other processes took {disturbed:.0%} of the CPU: time it again later"
        raise _NotTimed(None, f"{why} ({fault.arm}: {fault.reason})") from None
    if not its_own:
        raise _NotTimed(None, f"the source beside it failed {at}: {fault.reason}") from None
    raise _NotTimed(fault.outcome, f"{at}: {fault.reason}") from None


def _timing(
    session: EvaluationSession, request: ComparisonRequest, case: Case, series: Sequence[ComparisonTimes], several: bool
) -> Timing:
    joined = functools.reduce(ComparisonTimes.join, series)
    spreads = _spreads(request, series)
    # At rows that no workload has nobody asks how near it comes.
    asked = case[0] in session.suite()
    light_us = min(session.sol_us(case[0], case[1]), joined.median_us["baseline"]) if asked else None
    timing = comparisons.timing_of(session, request, (*case, "plain"), joined, light_us=light_us)
    found, margin = _pairs(request, series), comparison.MARGIN[session.device]
    update: dict[str, object] = {
        "time_us": spreads[request.mine].median_us,
        "baseline_us": spreads["baseline"].median_us,
    }
    if several and not request.itself:
        speedup = comparison.series_interval(found["baseline"])
        update |= {"speedup": speedup, "comparison": comparison.compare_series(found["baseline"], margin)}
    if several and timing.against_incumbent is not None:
        update["against_incumbent"] = comparison.series_interval(found["incumbent"])
    return timing.model_copy(update=update)
