"""What becomes of a draft when its coder, or its reviewer, has answered; and what the coder is asked."""

from __future__ import annotations

import time

from nodes import ledger
from nodes.context import Context
from nodes.memory import recall_lessons
from nodes.roles import CoderAnswer, CoderRequest, Conversation
from nodes.state import Draft, State
from nodes.stops import standing

FAILURE_CHARACTERS = 6000
"""Characters of a compiler's log that are passed on: the first errors matter, and nvcc repeats a template's whole
history in the rest."""


def announce(draft: Draft, context: Context) -> None:
    """Say what a repair is about."""
    if draft.candidate and draft.verdict is not None:
        words = (draft.verdict.reason.strip() or "no reason").splitlines()[0]
        context.say("repair", f"{draft.plan.title}: {draft.verdict.outcome}: {words}")


def conversation(draft: Draft, context: Context) -> Conversation:
    """What was said with a coder that works with tools about this draft so far."""
    name = draft.conversation
    return Conversation.model_validate_json(context.store.get(name)) if name else Conversation()


def make_request(draft: Draft, state: State, context: Context) -> CoderRequest:
    """What the coder is asked for this draft: its first source, or a repair."""
    return CoderRequest(
        spec=context.visible_spec(state),
        device=state.get("device") or context.evaluator.facts,
        finding=state["finding"],
        plan=draft.plan,
        source=context.store.get(draft.candidate or draft.plan.base),
        origin=context.store.get(draft.plan.base) if draft.candidate else "",
        other=context.store.get(draft.plan.version.candidate) if draft.plan.version else "",
        failure=failure(draft),
        outcome=draft.verdict.outcome if draft.verdict else None,
        repair=draft.repairs + 1 if draft.candidate else 0,
        round=state["round"],
        memory=recall_lessons(state.get("memory", ""), context.store),
        incumbent_source=context.store.get(state["incumbent"].candidate),
        reference=context.reference(),
        exact=state["settings"].exact,
        timings=state["incumbent"].timings,
        attempts=tuple(state.get("attempts", ())),
        ledger=ledger.read(context.store, (attempt.trials for attempt in state.get("attempts", ()))),
        standing=standing(state),
        stale_rounds=state["stale_rounds"],
    )


def apply_answer(draft: Draft, answer: CoderAnswer, began: float, context: Context) -> Draft:
    """The draft with the answer's source, or with why there is none."""
    draft = draft.model_copy(update={"spec_doubt": answer.spec_doubt or draft.spec_doubt})
    if not answer.source.strip():
        return refuse_draft(draft, answer.reason or "the coder gave no source and no reason", began)
    return write_source(draft, context.store.put(answer.source), began, answer.reason)


def refuse_draft(draft: Draft, why: str, began: float) -> Draft:
    took = draft.seconds + time.monotonic() - began
    return draft.model_copy(update={"refused": why, "objection": "", "seconds": took})


def write_source(draft: Draft, candidate: str, began: float, notes: str = "") -> Draft:
    """The draft with that source, to be built and judged anew; `notes` is what the coder says of it.

    The same source with notes answers a reviewer's objection: it is built, checked and timed, which decides.
    """
    if notes.strip():
        draft = draft.model_copy(update={"remarks": (*draft.remarks, f"coder: {' '.join(notes.split())}")})
    answers_objection = bool(draft.objection and draft.candidate == candidate and notes.strip())
    if candidate == (draft.candidate or draft.plan.base) and not answers_objection:
        return refuse_draft(draft, "the coder returned the source unchanged", began)
    repairs = draft.repairs + 1 if draft.candidate else 0
    update = {"candidate": candidate, "build": None, "verdict": None, "repairs": repairs, "objection": ""}
    update |= {"agreed": candidate} if answers_objection else {}
    return draft.model_copy(update={**update, "seconds": draft.seconds + time.monotonic() - began})


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
