"""A person says yes or no, or edits, where the run asks for it (`--approve plans|candidates`).

A node that interrupts runs again from its first line when the answer comes, so nothing here has an effect of its own
before every question is answered; LangGraph matches answers to questions by their order.

An answer is "yes", "no", "no: why", or {"edit": text}: for a candidate the whole file, for a plan its title on the
first line and one step on each line after it.
"""

from __future__ import annotations

import difflib

from langgraph.runtime import Runtime
from langgraph.types import interrupt

from nodes.context import Context
from nodes.roles import Plan
from nodes.state import Draft, State

Answer = str | dict[str, str]


def approve_plans(state: State, runtime: Runtime[Context]) -> dict:
    if state["settings"].approve != "plans":
        return {}
    return {"drafts": [_plan(draft, state["round"]) for draft in state["drafts"]]}


def approve_candidates(state: State, runtime: Runtime[Context]) -> dict:
    if state["settings"].approve != "candidates":
        return {}
    return {"drafts": [_candidate(draft, state["round"], runtime.context) for draft in state["drafts"]]}


def _plan(draft: Draft, round_: int) -> Draft:
    text = "\n".join([draft.plan.title, *draft.plan.steps])
    answer: Answer = interrupt(
        {"kind": "plan", "round": round_, "plan": draft.plan.id, "text": text, **_expected(draft.plan)}
    )
    if isinstance(answer, dict):
        return draft.model_copy(update={"plan": edit_plan(draft.plan, answer["edit"])})
    return draft if answer == "yes" else _refused(draft, answer)


def _expected(plan: Plan) -> dict[str, str | float | None]:
    return {"why": plan.rationale, "expected_speedup": plan.expected_speedup}


def edit_plan(plan: Plan, text: str) -> Plan:
    """Raises ValueError where the text has no step."""
    title, *steps = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if not steps:
        raise ValueError("an edited plan needs its title on the first line and at least one step below it")
    return plan.model_copy(update={"title": title, "steps": tuple(steps)})


def _candidate(draft: Draft, round_: int, context: Context) -> Draft:
    if draft.refused or draft.build is not None or draft.candidate == draft.approved:
        return draft
    before, after = context.store.get(draft.plan.base), context.store.get(draft.candidate)
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    question = {"kind": "candidate", "round": round_, "plan": draft.plan.id, "title": draft.plan.title}
    question |= _expected(draft.plan)
    answer: Answer = interrupt({**question, "text": "\n".join(diff), "candidate": draft.candidate})
    if isinstance(answer, dict):
        edited = context.store.put(answer["edit"])
        return draft.model_copy(update={"candidate": edited, "approved": edited})
    return draft.model_copy(update={"approved": draft.candidate}) if answer == "yes" else _refused(draft, answer)


def _refused(draft: Draft, answer: str) -> Draft:
    reason = answer.partition(":")[2].strip()
    said = f"refused by the person: {reason}" if reason else "refused by the person"
    return draft.model_copy(update={"refused": said, "by_person": True, "verdict": None, "build": None})
