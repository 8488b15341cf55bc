"""A short comparison on a few workloads, for whoever is still writing a candidate. Unofficial: it decides nothing and never
becomes a verdict; the same protocol as the measure gate's, with fewer samples and no second look."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from harness.judge import comparisons
from harness.judge.comparisons import ComparisonRequest
from harness.judge.session import EvaluationSession
from harness.processes.worker import WorkerFailure
from harness.records import Cache, Comparison, Outcome, Timing
from harness.timing import comparison, load
from harness.timing.interleaved import ComparisonTimes
from harness.timing.sampling import ArmFailure
from kernels.spec import Frozen, Workload

BLOCKS = (5, 7)
"""Samples of each arm in one pass, least and most; the gate takes 8 to 24."""
MOST_CASES = 2
"""Cases that are timed where the caller names none."""
TRIES = 3
"""Tries in fresh processes before a clock is disbelieved: an honest OpenMP source was accused twice in 21 comparisons
on a machine of which others took half."""
Case = tuple[Workload, Cache]


class Quick(Frozen):
    """What a short comparison found. Where an arm failed nothing is timed, and `reason` says why: with `outcome` it was the
    candidate's fault, without it the machine's or a rival's."""

    timings: tuple[Timing, ...] = ()
    pairs: tuple[dict[str, tuple[float, ...]], ...] = ()
    """For each timing, by the rival's name, its time over the candidate's, one ratio for each block."""
    outcome: Outcome | None = None
    reason: str = ""
    seconds: float = 0.0


def choose_cases(session: EvaluationSession) -> list[Case]:
    """The cases that are taken where none are named: of the visible suite the smallest and the largest."""
    timed = [workload for workload in session.suite() if workload.timed]
    cases: list[Case] = [(workload, cache) for workload in timed for cache in session.caches(workload)]
    return cases if len(cases) <= MOST_CASES else [cases[0], cases[-1]]


def compare_briefly(
    session: EvaluationSession, request: ComparisonRequest, cases: Sequence[Case], seconds: float = 0.0
) -> Quick:
    """Time a match at those cases, in one pass or in as many as fit into `seconds` until each comparison says something.

    Raises RuntimeError where the baseline fails: it has passed before.
    """
    began = time.monotonic()
    session.pool.match(request.build.candidate, request.rivals.values())
    found: dict[int, ComparisonTimes] = {}
    for passes in itertools.count(1):
        for at, (workload, cache) in enumerate(cases):
            if passes > 1 and not _unclear(session, request, found[at]):
                continue
            session.say(f"a short comparison at {workload.label}, {cache}")
            try:
                result = _fairly(session, request, (workload, cache, "plain"))
            except _NotTimed as fault:
                session.pool.drop(request.build.candidate)
                return Quick(outcome=fault.outcome, reason=fault.reason, seconds=time.monotonic() - began)
            found[at] = found[at].join(result) if at in found else result
        another_s = (time.monotonic() - began) * (1 + 1 / passes)
        if another_s > seconds or not any(_unclear(session, request, result) for result in found.values()):
            break  # another pass does not fit, or is of no use
    results = [found[at] for at in range(len(cases))]
    timings = tuple(_timing(session, request, case, result) for case, result in zip(cases, results, strict=True))
    pairs = tuple(_pairs(request, result) for result in results)
    return Quick(timings=timings, pairs=pairs, seconds=time.monotonic() - began)


def _unclear(session: EvaluationSession, request: ComparisonRequest, result: ComparisonTimes) -> bool:
    intervals = [comparison.median_interval(ratios) for ratios in _pairs(request, result).values()]
    return any(comparison.compare(one, comparison.MARGIN[session.device]) is Comparison.UNCLEAR for one in intervals)


def _pairs(request: ComparisonRequest, result: ComparisonTimes) -> dict[str, tuple[float, ...]]:
    mine = result.ratios[request.mine]
    beside = (name for name in request.rivals if name != request.mine)
    return {name: tuple(own / its for own, its in zip(mine, result.ratios[name], strict=True)) for name in beside}


class _NotTimed(Exception):
    def __init__(self, outcome: Outcome | None, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def _fairly(session: EvaluationSession, request: ComparisonRequest, case: comparisons.Case) -> ComparisonTimes:
    """One comparison. Whose clock is disbelieved is timed again in fresh processes, and accused only on a quiet machine.

    Raises _NotTimed.
    """
    disturbed = 0.0
    for tries in range(1, TRIES + 1):
        others = load.LoadWatch()
        try:
            with session.pool.guarding_memory(request.build.candidate):
                return comparisons.compare_case(session, request, case, blocks=BLOCKS, confirm=False)
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


def _timing(session: EvaluationSession, request: ComparisonRequest, case: Case, result: ComparisonTimes) -> Timing:
    light_us = min(session.sol_us(case[0], case[1]), result.median_us["baseline"])
    return comparisons.timing_of(session, request, (*case, "plain"), result, light_us=light_us)
