"""A verified draft that a short comparison shows to lose is neither searched over nor timed in full.

Only where the run has an incumbent that gained: beside that most plans of later rounds lose by a third and more, and the samples that
say so exactly take longer than all else in a round. What is near, or wins anywhere, goes on to the gates that decide.
"""

from __future__ import annotations

import math
import statistics

from harness.judge.search import spread_evenly
from nodes.context import Context
from nodes.state import Draft, State

LOSES = 0.8
"""Share of the incumbent's speed below which a candidate is not timed in full, by the best of its samples in every case: a
search of open integers has rarely brought a quarter."""
CASES = 3


def screen(draft: Draft, state: State, context: Context) -> Draft:
    """The PASSED draft, with why it is not timed in full where it loses in every case of a short comparison."""
    if draft.build is None:
        return draft
    source, incumbent, evaluator = state["settings"].source, state["incumbent"].candidate, context.evaluator
    if incumbent in (source, draft.candidate):
        return draft
    timed = [workload for workload in evaluator.suite() if workload.timed]
    cases = spread_evenly([(workload, cache) for workload in timed for cache in evaluator.caches(workload)], CASES)
    try:
        found = evaluator.compare_briefly(draft.build, {"baseline": source, "incumbent": incumbent}, cases)
    except RuntimeError:  # the baseline failed: the gate says what that means
        return draft
    beside = [timing.against_incumbent for timing in found.timings if timing.against_incumbent is not None]
    if not beside or len(beside) < len(cases) or any(one.high >= LOSES for one in beside):
        return draft
    gain, speedup = (
        _mean(values) for values in ([t.median for t in beside], [t.speedup.median for t in found.timings])
    )
    lost = (
        f"{gain:.2f}x of the best so far in a short comparison, slower in each of {len(cases)} cases: not timed in full"
    )
    return draft.model_copy(update={"lost": lost, "brief_speedup": round(speedup, 4)})


def _mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))
