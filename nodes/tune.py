"""Gate: picks the integers that a verified draft leaves open, by measuring. No model is asked. What a short comparison shows to
lose by much is left as it is.

Where the search found that bands of workloads want different ones, the host gets to choose, if that source is right too.
"""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from harness.judge.search import Tuned
from nodes.context import Context
from nodes.rewrites.specialize.dispatch import dispatched, values
from nodes.rewrites.syntax.source import Unsupported
from nodes.screening import screen
from nodes.side_by_side import each
from nodes.state import Draft, State


def tune(state: State, runtime: Runtime[Context]) -> dict:
    settings, spent = state["settings"], state["spent"].seconds

    def tuned(draft: Draft) -> Draft:
        if draft.verdict is None or not draft.verdict.passed or draft.tuned:
            return draft
        began = time.monotonic()
        draft = screen(draft, state, runtime.context)
        draft = draft.model_copy(update={"seconds": draft.seconds + time.monotonic() - began})
        if draft.lost:
            runtime.context.say("screened", f"{draft.plan.title}: {draft.lost}")
            return draft
        seconds = settings.tune_seconds
        if settings.budget.seconds is not None:
            seconds = max(0.0, min(seconds, settings.budget.seconds - spent))
        return _tune(draft, seconds, runtime.context)

    return {"drafts": each(tuned, state["drafts"], runtime.context.evaluator.width)}


def _tune(draft: Draft, seconds: float, context: Context) -> Draft:
    began = time.monotonic()
    picked = context.evaluator.tune(draft.candidate, seconds=seconds)
    update: dict = {"tuning": f"{picked.reason}; what it picked is not right on every workload, so the numbers stay"}
    for candidate, numbers in [*_by_size(draft, picked, context), (picked.candidate, picked.values)]:
        if candidate == draft.candidate:
            update = {"tuned": numbers, "tuning": picked.reason if picked.tried else ""}
            break
        build = context.evaluator.build(candidate)
        verdict = context.evaluator.verify(build)
        if verdict.passed:  # else the next best; in the end the numbers that the plan came with stay
            update = {
                "candidate": candidate,
                "build": build,
                "verdict": verdict,
                "tuned": numbers,
                "tuning": picked.reason,
            }
            break
    return draft.model_copy(update={**update, "seconds": draft.seconds + time.monotonic() - began})


def _by_size(draft: Draft, picked: Tuned, context: Context) -> list[tuple[str, dict[str, int]]]:
    """The source in which the host chooses, and its numbers; none where one choice suits all or it cannot be written."""
    if picked.split is None:
        return []
    evaluator = context.evaluator
    try:
        text = dispatched(evaluator.store.get(draft.candidate), evaluator.device, evaluator.spec, picked.split)
    except Unsupported as reason:
        evaluator.say(f"one choice of numbers for all sizes: {reason}")
        return []
    return [(evaluator.store.put(text), values(text))]
