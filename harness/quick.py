"""A short contest on a few workloads, for whoever is still writing a candidate. Unofficial: it decides nothing, is kept
nowhere and never becomes a verdict; the same protocol as the measure gate's, with fewer samples and no second look."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness import contests
from harness.contests import Match
from harness.engines.process import WorkerFailure
from harness.records import Cache, Outcome, Timing
from harness.rig import Rig
from harness.sampling import SideFailure
from kernels.spec import Frozen, Workload

BLOCKS = (5, 7)
"""Samples of each side, of the 8 to 24 that the gate takes."""
MOST_CASES = 2
"""Where none are named."""
Case = tuple[Workload, Cache]


class Quick(Frozen):
    """What a short contest found. `outcome` and `reason` are set where a contestant failed; then nothing was timed."""

    timings: tuple[Timing, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    seconds: float = 0.0


def spread(rig: Rig) -> list[Case]:
    """The cases that a contest takes where none are named: of the visible suite the smallest and the largest."""
    timed = [workload for workload in rig.suite() if workload.timed]
    cases: list[Case] = [(workload, cache) for workload in timed for cache in rig.caches(workload)]
    return cases if len(cases) <= MOST_CASES else [cases[0], cases[-1]]


def contest(rig: Rig, match: Match, cases: Sequence[Case]) -> Quick:
    """Time a match at those cases. Raises RuntimeError where a rival fails: it has passed before."""
    began, timings = time.monotonic(), []
    rig.pool.match(match.build.candidate, match.rivals.values())
    for workload, cache in cases:
        rig.say(f"a short contest at {workload.label}, {cache}")
        try:
            timings.append(_timing(rig, match, (workload, cache, "plain")))
        except SideFailure as fault:
            if fault.side in match.rivals and not match.itself:
                raise RuntimeError(f"the {fault.side} failed while it was timed: {fault.reason}") from None
            rig.pool.drop(match.build.candidate)
            return Quick(outcome=fault.outcome, reason=fault.reason, seconds=time.monotonic() - began)
    return Quick(timings=tuple(timings), seconds=time.monotonic() - began)


def _timing(rig: Rig, match: Match, case: contests.Case) -> Timing:
    """Raises SideFailure."""
    try:
        with rig.pool.guarding_memory(match.build.candidate):
            result = contests.contested(rig, match, case, blocks=BLOCKS, confirm=False)
    except WorkerFailure as fault:
        if isinstance(fault, SideFailure):
            raise
        raise SideFailure("candidate", fault.outcome, fault.reason) from None
    light_us = min(rig.light_us(case[0], case[1]), result.median_us["baseline"])
    return contests.timing_of(rig, match, case, result, light_us=light_us)
