"""Gate: picks the integers that a verified draft leaves open, by measuring. No model is asked."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.state import Draft, State


def tune(state: State, runtime: Runtime[Context]) -> dict:
    settings, spent = state["settings"], state["spent"].seconds

    def tuned(draft: Draft) -> Draft:
        if draft.verdict is None or not draft.verdict.passed or draft.tuned:
            return draft
        seconds = settings.tune_seconds
        if settings.seconds is not None:
            seconds = max(0.0, min(seconds, settings.seconds - spent))
        return _tune(draft, seconds, runtime.context)

    return {"drafts": [tuned(draft) for draft in state["drafts"]]}


def _tune(draft: Draft, seconds: float, context: Context) -> Draft:
    began = time.monotonic()
    picked = context.evaluator.tune(draft.candidate, seconds=seconds)
    update: dict = {}
    if picked.candidate != draft.candidate:
        build = context.evaluator.build(picked.candidate)
        verdict = context.evaluator.verify(build)
        if verdict.passed:  # else the numbers that the plan came with stay
            update = {"candidate": picked.candidate, "build": build, "verdict": verdict, "tuned": picked.values}
    else:
        update = {"tuned": picked.values}
    return draft.model_copy(update={**update, "seconds": draft.seconds + time.monotonic() - began})
