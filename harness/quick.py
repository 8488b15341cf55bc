"""A short contest on a few workloads, for whoever is still writing a candidate. Unofficial: it decides nothing, is kept
nowhere and never becomes a verdict; the same protocol as the measure gate's, with fewer samples and no second look."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness import comparison
from harness.engines.process import WorkerFailure
from harness.records import Build, Cache, Interval, Outcome, Timing
from harness.timing import SideFailure
from kernels.spec import Frozen, Workload, expression

if TYPE_CHECKING:
    from harness.evaluate import Evaluator

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


def spread(evaluator: Evaluator) -> list[Case]:
    """The cases that a contest takes where none are named: of the visible suite the smallest and the largest."""
    timed = [workload for workload in evaluator.suite() if workload.timed]
    cases: list[Case] = [(workload, cache) for workload in timed for cache in evaluator.caches(workload)]
    return cases if len(cases) <= MOST_CASES else [cases[0], cases[-1]]


def contest(evaluator: Evaluator, build: Build, rivals: dict[str, str], cases: Sequence[Case]) -> Quick:
    """Time `build` beside `rivals` (`baseline` and perhaps `incumbent`, by the hashes of their sources) at those cases.

    Raises RuntimeError where a rival fails: it has passed before.
    """
    began, timings = time.monotonic(), []
    itself = build.candidate == rivals["baseline"]
    for workload, cache in cases:
        evaluator.say(f"a short contest at {workload.label}, {cache}")
        try:
            timings.append(_case(evaluator, build, rivals, workload, cache, itself))
        except SideFailure as fault:
            if fault.side in rivals and not itself:
                raise RuntimeError(f"the {fault.side} failed while it was timed: {fault.reason}") from None
            evaluator.pool.drop(build.candidate)
            return Quick(outcome=fault.outcome, reason=fault.reason, seconds=time.monotonic() - began)
    return Quick(timings=tuple(timings), seconds=time.monotonic() - began)


def _case(
    evaluator: Evaluator, build: Build, rivals: dict[str, str], workload: Workload, cache: Cache, itself: bool
) -> Timing:
    """Raises SideFailure."""
    try:
        with evaluator.pool.guarding_memory(build.candidate):
            contest = evaluator.contest(workload, cache)
            sides = [evaluator._side(name, evaluator.build(rival)) for name, rival in rivals.items()]
            if not itself:
                sides.append(evaluator._side("candidate", build))
            mine = "baseline" if itself else "candidate"
            result = evaluator.run(contest, sides, blocks=BLOCKS, check=(mine,))
    except WorkerFailure as fault:
        if isinstance(fault, SideFailure):
            raise
        raise SideFailure("candidate", fault.outcome, fault.reason) from None
    ratios = result.ratios[mine]
    against = None
    if "incumbent" in rivals and not itself:
        paired = [c / i for c, i in zip(ratios, result.ratios["incumbent"], strict=True)]
        against = comparison.median_interval(paired)
    interval = Interval(median=1, low=1, high=1) if itself else comparison.median_interval(ratios)
    return Timing(
        workload=workload,
        cache=cache,
        baseline_us=result.median_us["baseline"],
        time_us=result.median_us[mine],
        speedup=interval,
        comparison=comparison.compare(interval, comparison.MARGIN[evaluator.device]),
        against_incumbent=against,
        light_us=min(evaluator.light_us(workload, cache), result.median_us["baseline"]),
        moved_bytes=evaluator.moved(workload),
        flops=expression(evaluator.spec.flops, workload.axes) or None,
        samples=result.samples,
    )
