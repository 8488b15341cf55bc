"""Gate: times every verified draft against the baseline and the incumbent, one after another."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.state import Draft, State


def measure(state: State, runtime: Runtime[Context]) -> dict:
    source, incumbent = state["settings"].source, state["incumbent"].candidate

    def measured(draft: Draft) -> Draft:
        if draft.verdict is None or not draft.verdict.passed or draft.verdict.timings:
            return draft
        began = time.monotonic()
        verdict = runtime.context.evaluator.measure(
            draft.verdict, baseline=source, incumbent=None if incumbent == source else incumbent
        )
        return draft.model_copy(update={"verdict": verdict, "seconds": draft.seconds + time.monotonic() - began})

    return {"drafts": [measured(draft) for draft in state["drafts"]]}
