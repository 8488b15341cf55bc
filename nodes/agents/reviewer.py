"""Agent, where one is asked for: must agree before a plan is coded and before a candidate is built.

What it objects to goes back to the planner or the coder with its reason; after so many times the plan is given up.
"""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.store import digest
from nodes import ledger
from nodes.context import Context
from nodes.drafts import conversation
from nodes.policies import answers
from nodes.roles import MOST_ATTEMPTS, Agent, Prompt, Review, ReviewRequest
from nodes.side_by_side import each
from nodes.state import Draft, State
from nodes.stops import budget_stop, standing

REVISIONS = 2
"""Plans in the place of one that was objected to. A candidate's objections count as its repairs."""
MOST_TOOLS = 12


def _prompt(request: ReviewRequest) -> Prompt[Review]:
    facts = {
        "plan": request.plan.id,
        "title": request.plan.title,
        "source": digest(request.source or request.base),
        "round": str(request.round),
    }
    variables = {
        name: getattr(request, name)
        for name in ("finding", "plan", "base", "source", "tools", "ledger", "timings", "standing")
    }
    return Prompt(
        step="review candidate" if request.source else "review plan",
        facts=facts,
        variables={**variables, "attempts": request.attempts[-MOST_ATTEMPTS:]},
        read=answers.review,
        form=answers.ReviewDraft,
        otherwise=f"{request.plan.title!r} goes on unreviewed",
    )


AGENT = Agent(
    nodes={"review_plans": "reviewing the plans", "review_candidates": "reviewing the candidates"},
    without=lambda *_: Review(agrees=True),
    prompt=_prompt,
    option="review",
)


def review_plans(state: State, runtime: Runtime[Context]) -> dict:
    if not state["settings"].review:
        return {}

    def reviewed(draft: Draft) -> Draft:
        if draft.refused or draft.agreed == draft.plan.id:
            return draft
        review = _asked(draft, state, runtime.context)
        if review.agrees:
            return draft.model_copy(update={"agreed": draft.plan.id})
        objected = _objected(draft, review)
        return refuse_draft(objected) if draft.revisions >= REVISIONS or budget_stop(state) else objected

    return {"drafts": each(reviewed, state["drafts"], state["settings"].width)}


def review_candidates(state: State, runtime: Runtime[Context]) -> dict:
    settings = state["settings"]
    if not settings.review:
        return {}

    def reviewed(draft: Draft) -> Draft:
        if draft.refused or draft.build is not None or not draft.candidate or draft.agreed == draft.candidate:
            return draft
        review = _asked(draft, state, runtime.context)
        if review.agrees:
            return draft.model_copy(update={"agreed": draft.candidate})
        objected = _objected(draft, review)
        return refuse_draft(objected) if draft.repairs >= settings.repairs or budget_stop(state) else objected

    return {"drafts": each(reviewed, state["drafts"], state["settings"].width)}


def _objected(draft: Draft, review: Review) -> Draft:
    said = _words(review)
    return draft.model_copy(update={"objection": said, "remarks": (*draft.remarks, f"reviewer: {said}")})


def refuse_draft(draft: Draft) -> Draft:
    """Given up for what the reviewer has against it."""
    return draft.model_copy(update={"refused": f"the reviewer does not agree: {draft.objection}", "objection": ""})


def _words(review: Review) -> str:
    return " ".join(review.reason.split()) or "no reason was given"


def _tools(draft: Draft, context: Context) -> tuple[str, ...]:
    """The last words of the coder's tools about its sources; what it read is not among them."""
    turns = [turn for asking in conversation(draft, context).askings for turn in asking.turns]
    pairs = [pair for turn in turns for pair in zip(turn.calls, turn.results, strict=True)]
    return tuple(f"{call.name}: {result}" for call, result in pairs if call.name not in ("read", "submit"))[
        -MOST_TOOLS:
    ]


def _asked(draft: Draft, state: State, context: Context) -> Review:
    review = context.policies["reviewer"].answer(
        ReviewRequest(
            spec=context.visible_spec(state),
            device=context.evaluator.facts,
            finding=state["finding"],
            plan=draft.plan,
            base=context.store.get(draft.plan.base),
            source=context.store.get(draft.candidate) if draft.candidate else "",
            tools=_tools(draft, context) if draft.candidate else (),
            timings=state["incumbent"].timings,
            standing=standing(state),
            attempts=tuple(state.get("attempts", ())),
            ledger=ledger.read(context.store, (attempt.trials for attempt in state.get("attempts", ()))),
            round=state["round"],
        )
    )
    if not review.agrees:
        context.say("reviewer", f"{draft.plan.title}: {_words(review)}")
    return review
