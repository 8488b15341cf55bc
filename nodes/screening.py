"""A verified draft that a short comparison shows to lose is neither searched over nor timed in full; the first that it shows to gain
is a file at once.

Beside an incumbent that gained most plans of later rounds lose by a third and more, and the samples that say so exactly take longer
than all else in a round. What is near, or wins anywhere, goes on to the gates that decide.
"""

from __future__ import annotations

import itertools
import statistics

from harness.judge.search import spread_evenly
from harness.records import Comparison
from harness.timing import comparison
from nodes import ledger
from nodes.context import Context
from nodes.state import Draft, State

LOSES = 0.8
"""Share of the incumbent's speed below which a candidate is not timed in full, by the mean over the cases, its interval included: a
search of open integers has rarely brought a quarter. Where the median of one case is a gain it is: two forms in a file may be worth it. (The upper ends
of five samples' intervals lay beyond 1 on a busy CPU for a plan of half the incumbent's speed: 40 s of a run.)"""
LOSES_TO_BASELINE = 0.5
"""The same beside the source that was brought: what a search of its integers has brought a first candidate at most is 1.8x."""
CASES = 3


def screen(draft: Draft, state: State, context: Context) -> Draft:
    """The PASSED draft, with why it is not timed in full where it loses much in a short comparison and gains in no case of it.

    Where it is the first to be faster, and slower in none, its file is written and said: the search and the verdict take longer.
    """
    if draft.build is None:
        return draft
    source, incumbent, evaluator = state["settings"].source, state["incumbent"].candidate, context.evaluator
    if draft.candidate in (source, incumbent):
        return draft
    first = incumbent == source
    known = ledger.trial(context.store, draft.candidate)
    if first and known.gains and not known.official:
        # Its coder's tools have timed this very source beside the baseline, in series as long as these.
        medians, lows = ([getattr(g.speedup, end) for g in known.gains] for end in ("median", "low"))
        middle, low = statistics.geometric_mean(medians), statistics.geometric_mean(lows)
        if middle >= 1 and min(lows) > 0:
            if low > 1 + comparison.MARGIN[evaluator.device] and min(medians) >= 1:
                _offer(draft, f"{middle:.2f}x by its coder's tools", context)
            return draft
    timed = [workload for workload in evaluator.suite() if workload.timed]
    cases = spread_evenly([(workload, cache) for workload in timed for cache in evaluator.caches(workload)], CASES)
    rivals = {"baseline": source} if first else {"baseline": source, "incumbent": incumbent}
    try:
        found = evaluator.compare_briefly(draft.build, rivals, cases)
    except RuntimeError:  # the baseline failed: the gate says what that means
        return draft
    gains = [timing.speedup if first else timing.against_incumbent for timing in found.timings]
    beside = [one for one in gains if one is not None]
    if not beside or len(beside) < len(cases):
        return draft
    over = "baseline" if first else "incumbent"
    mean = comparison.geometric_mean([list(itertools.chain.from_iterable(one[over])) for one in found.pairs])
    if mean.high >= (LOSES_TO_BASELINE if first else LOSES) or any(one.median >= 1 for one in beside):
        slower = any(timing.comparison is Comparison.SLOWER for timing in found.timings)
        if first and mean.low > 1 + comparison.MARGIN[evaluator.device] and not slower:
            _offer(draft, f"{mean.median:.2f}x ({mean.low:.2f} to {mean.high:.2f}) in a short comparison", context)
        return draft
    than = "the baseline" if first else "the best so far"
    lost = (
        f"{mean.median:.2f}x of {than} in a short comparison, slower in each of {len(cases)} cases: not timed in full"
    )
    speedup = statistics.geometric_mean(timing.speedup.median for timing in found.timings)
    return draft.model_copy(update={"lost": lost, "brief_speedup": round(speedup, 4)})


def _offer(draft: Draft, said: str, context: Context) -> None:
    file = context.offer(draft.candidate)
    context.say("first", f"{draft.plan.title}: {said}; {file} has it until a verdict is there")
