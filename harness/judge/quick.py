"""A short comparison on a few workloads, for whoever is still writing a candidate. Unofficial: it decides nothing and never
becomes a verdict; the same protocol as the measure gate's, with fewer samples and no second look."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.judge import comparisons
from harness.judge.comparisons import Match
from harness.judge.session import Rig
from harness.processes.worker import WorkerFailure
from harness.records import Cache, Comparison, Outcome, Timing
from harness.timing import comparison, load
from harness.timing.interleaved import Result
from harness.timing.sampling import SideFailure
from kernels.spec import Frozen, Workload

BLOCKS = (5, 7)
"""Samples of each arm in a pass, of the 8 to 24 that the gate takes."""
MOST_CASES = 2
"""Where none are named."""
TRIES = 3
"""In fresh processes, before a clock is disbelieved: an honest OpenMP source was accused twice in 21 comparisons on a machine
of which others took half."""
Case = tuple[Workload, Cache]


class Quick(Frozen):
    """What a short comparison found. Where an arm failed nothing is timed, and `reason` says why: with `outcome` it was the
    candidate's fault, without it the machine's or a rival's."""

    timings: tuple[Timing, ...] = ()
    pairs: tuple[dict[str, tuple[float, ...]], ...] = ()
    """For each timing: rival's name -> its time / the candidate's, one for each block."""
    outcome: Outcome | None = None
    reason: str = ""
    seconds: float = 0.0


def spread(rig: Rig) -> list[Case]:
    """The cases that are taken where none are named: of the visible suite the smallest and the largest."""
    timed = [workload for workload in rig.suite() if workload.timed]
    cases: list[Case] = [(workload, cache) for workload in timed for cache in rig.caches(workload)]
    return cases if len(cases) <= MOST_CASES else [cases[0], cases[-1]]


def contest(rig: Rig, match: Match, cases: Sequence[Case], seconds: float = 0.0) -> Quick:
    """Time a match at those cases, in one pass or in as many as fit into `seconds` until each comparison says something.

    Raises RuntimeError where the baseline fails: it has passed before.
    """
    began = time.monotonic()
    rig.pool.match(match.build.candidate, match.rivals.values())
    found: dict[int, Result] = {}
    passes = 0
    while not passes or _goes_on(rig, match, found, time.monotonic() - began, passes, seconds):
        passes += 1
        for at, (workload, cache) in enumerate(cases):
            if passes > 1 and not _unclear(rig, match, found[at]):
                continue
            rig.say(f"a short comparison at {workload.label}, {cache}")
            try:
                result = _fairly(rig, match, (workload, cache, "plain"))
            except _NotTimed as fault:
                rig.pool.drop(match.build.candidate)
                return Quick(outcome=fault.outcome, reason=fault.reason, seconds=time.monotonic() - began)
            found[at] = found[at].joined(result) if at in found else result
    results = [found[at] for at in range(len(cases))]
    return Quick(
        timings=tuple(_timing(rig, match, case, result) for case, result in zip(cases, results, strict=True)),
        pairs=tuple(_pairs(match, result) for result in results),
        seconds=time.monotonic() - began,
    )


def _goes_on(rig: Rig, match: Match, found: dict[int, Result], took_s: float, passes: int, seconds: float) -> bool:
    """Whether another pass fits and is of use."""
    return took_s * (1 + 1 / passes) <= seconds and any(_unclear(rig, match, result) for result in found.values())


def _unclear(rig: Rig, match: Match, result: Result) -> bool:
    intervals = [comparison.median_interval(ratios) for ratios in _pairs(match, result).values()]
    return any(comparison.compare(one, comparison.MARGIN[rig.device]) is Comparison.UNCLEAR for one in intervals)


def _pairs(match: Match, result: Result) -> dict[str, tuple[float, ...]]:
    mine = result.ratios[match.mine]
    return {
        name: tuple(own / its for own, its in zip(mine, result.ratios[name], strict=True))
        for name in match.rivals
        if name != match.mine
    }


class _NotTimed(Exception):
    def __init__(self, outcome: Outcome | None, reason: str) -> None:
        super().__init__(reason)
        self.outcome, self.reason = outcome, reason


def _fairly(rig: Rig, match: Match, case: comparisons.Case) -> Result:
    """One comparison. Whose clock is disbelieved is timed again in fresh processes, and accused only on a quiet machine.

    Raises _NotTimed.
    """
    disturbed = 0.0
    for tries in range(1, TRIES + 1):
        others = load.Watch()
        try:
            with rig.pool.guarding_memory(match.build.candidate):
                return comparisons.contested(rig, match, case, blocks=BLOCKS, confirm=False)
        except SideFailure as failure:
            fault = failure
        except WorkerFailure as failure:
            fault = SideFailure("candidate", failure.outcome, failure.reason)
        disturbed = max(disturbed, others.share())
        its_own = fault.side == match.mine
        if tries < TRIES and (fault.outcome is Outcome.CHEATED or not its_own):
            rig.say(f"again, in fresh processes: {fault.side}: {fault.reason}")
            for one in (*match.rivals.values(), match.build.candidate):
                rig.pool.drop(one)
            continue
        break
    at = f"at {case[0].label}, {case[1]}"
    if fault.side == "baseline" and not match.itself:
        raise RuntimeError(f"the baseline failed while it was timed {at}: {fault.reason}") from None
    if fault.outcome is Outcome.CHEATED and disturbed >= load.DISTURBED:
        why = f"the clocks do not agree {at}, and other processes took {disturbed:.0%} of the CPU: time it again later"
        raise _NotTimed(None, f"{why} ({fault.side}: {fault.reason})") from None
    if not its_own:
        raise _NotTimed(None, f"the source beside it failed {at}: {fault.reason}") from None
    raise _NotTimed(fault.outcome, f"{at}: {fault.reason}") from None


def _timing(rig: Rig, match: Match, case: Case, result: Result) -> Timing:
    light_us = min(rig.light_us(case[0], case[1]), result.median_us["baseline"])
    return comparisons.timing_of(rig, match, (*case, "plain"), result, light_us=light_us)
