"""Gate: correctness of every built draft on the visible suite."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.side_by_side import each
from nodes.state import Draft, State


def verify(state: State, runtime: Runtime[Context]) -> dict:
    def verified(draft: Draft) -> Draft:
        if draft.build is None or draft.verdict is not None:
            return draft
        began = time.monotonic()
        verdict = runtime.context.evaluator.verify(draft.build)
        return draft.model_copy(update={"verdict": verdict, "seconds": draft.seconds + time.monotonic() - began})

    return {"drafts": each(verified, state["drafts"], runtime.context.evaluator.width)}
