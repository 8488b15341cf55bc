"""Gate: times every verified draft against the baseline and the incumbent.

Where several devices did that side by side the best is timed once more beside the incumbent: it was picked from times that
different devices took, and the largest of several noisy numbers is too large.
"""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from harness.records import Verdict
from nodes.context import Context
from nodes.select import gain_of, unfit
from nodes.side_by_side import each
from nodes.state import Draft, State


def measure(state: State, runtime: Runtime[Context]) -> dict:
    source, incumbent = state["settings"].source, state["incumbent"].candidate
    evaluator, drafts = runtime.context.evaluator, state["drafts"]

    def timed(draft: Draft, verdict: Verdict, *, again: bool = False) -> Draft:
        began = time.monotonic()
        found = evaluator.measure(
            verdict, baseline=source, incumbent=None if incumbent == source else incumbent, again=again
        )
        return draft.model_copy(update={"verdict": found, "seconds": draft.seconds + time.monotonic() - began})

    def measured(draft: Draft) -> Draft:
        if draft.verdict is None or not draft.verdict.passed or draft.verdict.timings or draft.lost:
            return draft
        return timed(draft, draft.verdict)

    width = evaluator.width
    found = each(measured, drafts, width)
    if width == 1 or len(found) < 2:
        return {"drafts": found}

    def confirm(at: int) -> Draft:
        untimed = drafts[at].verdict
        return found[at] if untimed is None else timed(found[at], untimed, again=True)

    fit = [at for at, draft in enumerate(found) if not unfit(draft, state["incumbent"])]
    leads = max((gain_of(found[at]).speedup.low for at in fit), default=0.0)
    # All that may turn out to be the best, side by side: one after the other they took longer than all the round's first times.
    close = [at for at in fit if gain_of(found[at]).speedup.high >= leads]
    again = dict(zip(close, each(confirm, close, width), strict=True))
    confirmed: set[int] = set()
    while True:
        fit = [at for at, draft in enumerate(found) if not unfit(draft, state["incumbent"])]
        best = max(fit, key=lambda at: gain_of(found[at]).speedup.median, default=None)
        if best is None or best in confirmed:
            return {"drafts": found}
        found[best] = again[best] if best in again else confirm(best)
        confirmed.add(best)
