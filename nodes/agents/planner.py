"""Agent: which changes to make to the incumbent, `--width` of them."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.records import Outcome
from harness.store import digest
from nodes import ledger
from nodes.agents.reviewer import refuse_draft
from nodes.context import Context
from nodes.memory import recall_lessons
from nodes.policies import answers
from nodes.roles import COMPILED_FIRST, Agent, Objection, Plan, PlannerRequest, Prompt, recall
from nodes.state import Draft, State, Stop
from nodes.stops import standing

MOST_OTHERS = 2
"""Sources beside the incumbent's that a prompt shows."""


def _prompt(request: PlannerRequest) -> Prompt[tuple[Plan, ...]]:
    planned = [a for a in request.attempts if a.plan.id != COMPILED_FIRST]
    tried = [part for a in planned for part in (str(a.round), a.plan.id, str(a.outcome), str(a.accepted))]
    by_speed = sorted(
        {a.candidate: a for a in request.attempts if a.outcome == Outcome.PASSED and a.speedup}.values(),
        key=lambda attempt: -(attempt.speedup or 0.0),
    )
    others = [
        {"name": a.candidate, "title": a.plan.title, "speedup": a.speedup, "source": request.sources[a.candidate]}
        for a in by_speed
        if a.candidate != request.incumbent and a.candidate in request.sources
    ]
    same = ("finding", "timings", "round", "objections", "ledger", "standing", "width")
    return Prompt(
        step="plans",
        facts={
            "round": str(request.round),
            "source": request.incumbent,
            "attempts": digest(*tried) if tried else "",
            "width": str(request.width),
        },
        variables={
            **{name: getattr(request, name) for name in same},
            **recall(request),
            "incumbent_source": request.source,
            "others": others[:MOST_OTHERS],
        },
        read=lambda text: answers.plans(text, request, request.rewrites),
        form=answers.PlansDraft,
        otherwise="the coder chooses what to change" if request.rewrites is None else "there is no plan for this round",
        nothing="the model sees nothing left to try",
    )


def _unplanned(request: PlannerRequest, why: str) -> tuple[Plan, ...]:
    """The round is not lost: the coder is asked for what it thinks best. Rules cannot carry that out."""
    if request.rewrites is not None:
        return ()
    step = "Make the one change that the finding and the earlier attempts make most promising."
    identity = digest("unplanned", str(request.round), request.incumbent)[:16]
    title = "the coder's own choice"
    return (Plan(id=identity, title=title, steps=(step,), rationale=why, base=request.incumbent),)


AGENT = Agent(nodes={"planner": "planning"}, without=_unplanned, prompt=_prompt, answer_tokens=10_000)


def planner(state: State, runtime: Runtime[Context]) -> dict:
    """Where the reviewer objected to some of the round's plans, others in their place."""
    context, settings, incumbent = runtime.context, state["settings"], state["incumbent"]
    objected = [draft for draft in state["drafts"] if draft.objection]
    kept = [draft for draft in state["drafts"] if not draft.objection]
    width = len(objected) or settings.width
    attempts = state.get("attempts", [])
    passed = {attempt.candidate for attempt in attempts if attempt.outcome == "PASSED"}
    sources = {name: context.store.get(name) for name in sorted({settings.source, incumbent.candidate} | passed)}
    plans = context.policies["planner"].answer(
        PlannerRequest(
            spec=context.visible_spec(state),
            device=state.get("device") or context.evaluator.facts,
            finding=state["finding"],
            incumbent=incumbent.candidate,
            source=sources[incumbent.candidate],
            attempts=tuple(attempts),
            timings=incumbent.timings,
            sources=sources,
            width=width,
            round=state["round"],
            memory=recall_lessons(state.get("memory", ""), context.store),
            reference=context.reference(),
            exact=settings.exact,
            ledger=ledger.read(context.store, (attempt.trials for attempt in attempts)),
            standing=standing(state),
            tools=settings.coder == "tools",
            objections=tuple(Objection(plan=draft.plan, reason=draft.objection) for draft in objected),
        )
    )
    if not plans and objected:
        return {"drafts": [*kept, *(refuse_draft(draft) for draft in objected)]}
    if not plans:
        return {"stop": Stop.EXHAUSTED}
    drafts = {draft.plan.id: draft for draft in kept}
    revisions = 1 + max((draft.revisions for draft in objected), default=-1)
    for plan in plans[:width]:
        base = plan.base if plan.base in sources else incumbent.candidate
        name, copies = plan.id, 1
        while name in drafts:  # an attempt is named by its round and its plan
            copies += 1
            name = f"{plan.id}-{copies}"
        drafts[name] = Draft(plan=plan.model_copy(update={"id": name, "base": base}), revisions=revisions)
    return {"drafts": list(drafts.values())}
