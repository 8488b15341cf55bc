"""Agent: the whole file for each plan, or a repair of one that failed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.memory import recalled
from nodes.roles import CoderRequest
from nodes.state import Draft, State

FAILURE_CHARACTERS = 6000
"""Of a compiler's log: the first errors are what matters, and nvcc repeats a template's whole life in the rest."""


def coder(state: State, runtime: Runtime[Context]) -> dict:
    repairs = state["settings"].repairs

    def written(draft: Draft) -> Draft:
        return _write(draft, state, runtime.context) if draft.awaits_coder(repairs) else draft

    # Each in a copy of this node's context, so that spans of its model calls lie below the node's.
    contexts = [copy_context() for _ in state["drafts"]]
    with ThreadPoolExecutor(max_workers=state["settings"].width) as pool:
        return {"drafts": list(pool.map(lambda own, draft: own.run(written, draft), contexts, state["drafts"]))}


def _write(draft: Draft, state: State, context: Context) -> Draft:
    began = time.monotonic()
    before = draft.candidate or draft.plan.base
    if draft.candidate and draft.verdict is not None:
        words = (draft.verdict.reason.strip() or "no reason").splitlines()[0]
        context.say("repair", f"{draft.plan.title}: {draft.verdict.outcome}: {words}")
    answer = context.policies["coder"].coder(
        CoderRequest(
            spec=context.visible_spec(state),
            device=state.get("device") or context.evaluator.facts,
            finding=state["finding"],
            plan=draft.plan,
            source=context.store.get(before),
            origin=context.store.get(draft.plan.base) if draft.candidate else "",
            other=context.store.get(draft.plan.version.candidate) if draft.plan.version else "",
            failure=failure(draft),
            outcome=draft.verdict.outcome if draft.verdict else None,
            repair=draft.repairs + 1 if draft.candidate else 0,
            round=state["round"],
            memory=recalled(state.get("memory", ""), context.store),
            timings=state["incumbent"].timings,
            attempts=tuple(state.get("attempts", ())),
            stale_rounds=state["stale_rounds"],
        )
    )
    update: dict = {
        "seconds": draft.seconds + time.monotonic() - began,
        "objection": "",
        "spec_doubt": answer.spec_doubt or draft.spec_doubt,
    }
    if not answer.source.strip():
        update["refused"] = answer.reason or "the coder gave no source and no reason"
    else:
        candidate = context.store.put(answer.source)
        if candidate == before:
            update["refused"] = "the coder returned the source unchanged"
        else:
            repairs = draft.repairs + 1 if draft.candidate else 0
            update |= {"candidate": candidate, "build": None, "verdict": None, "repairs": repairs}
    return draft.model_copy(update=update)


def failure(draft: Draft) -> str:
    """The compiler's or the checker's own words, or the reviewer's."""
    if draft.objection:
        return f"The reviewer does not agree to it: {draft.objection}"[:FAILURE_CHARACTERS]
    if draft.verdict is None:
        return ""
    said = [draft.verdict.reason]
    if draft.build is not None and not draft.build.ok and draft.build.log not in draft.verdict.reason:
        said.append(draft.build.log)
    said += [f"{c.name} at {c.workload}: {c.message}" for c in draft.verdict.checks if not c.passed and c.message]
    return "\n".join(dict.fromkeys(said))[:FAILURE_CHARACTERS]
