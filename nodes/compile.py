"""Gate: builds the drafts that have a source and no build, side by side."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from langgraph.runtime import Runtime

from harness.evaluate import begin_building
from nodes.context import Context
from nodes.state import Draft, State


def compile(state: State, runtime: Runtime[Context]) -> dict:
    evaluator = runtime.context.evaluator

    def built(draft: Draft) -> Draft:
        if draft.refused or not draft.candidate or draft.build is not None:
            return draft
        began = time.monotonic()
        if state["settings"].device == "cuda":  # whose times do not depend on who uses the cores
            begin_building(evaluator, draft.candidate)  # what the tune gate tries first
        build = evaluator.build(draft.candidate)
        return draft.model_copy(update={"build": build, "seconds": draft.seconds + time.monotonic() - began})

    with ThreadPoolExecutor(max_workers=state["settings"].width) as pool:
        drafts = list(pool.map(built, state["drafts"]))
    # A failed build is a verdict already; asking for it runs nothing.
    return {
        "drafts": [
            draft.model_copy(update={"verdict": evaluator.verify(draft.build)})
            if draft.build is not None and not draft.build.ok and draft.verdict is None
            else draft
            for draft in drafts
        ]
    }
