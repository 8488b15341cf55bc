"""Agent: a source for each plan, or a repair of one that failed."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from harness.store import digest
from nodes.coding import code_in_turns
from nodes.context import Context
from nodes.drafts import announce, apply_answer, make_request
from nodes.policies import answers
from nodes.roles import Agent, CoderAnswer, CoderRequest, Prompt, ToolUser, recall
from nodes.side_by_side import each
from nodes.state import Draft, State


def _prompt(request: CoderRequest) -> Prompt[CoderAnswer]:
    def read(text: str) -> CoderAnswer:
        source, notes = answers.code(text, request.source)
        return CoderAnswer(source=source, reason=notes, spec_doubt=answers.doubt(text))

    same = (
        "finding", "plan", "source", "incumbent_source", "other", "timings", "ledger", "standing", "round", "failure", "outcome", "repair",
    )  # fmt: skip
    return Prompt(
        step=f"repair {request.repair}" if request.repair else "code",
        facts={
            "plan": request.plan.id,
            "title": request.plan.title,
            "source": digest(request.source),
            "round": str(request.round or ""),
        },
        variables={**{name: getattr(request, name) for name in same}, **recall(request)},
        read=read,
        base=request.source,
        stage="code",
    )


AGENT = Agent(
    nodes={"coder": "writing the candidate"},
    without=lambda _, why: CoderAnswer(reason=why),
    prompt=_prompt,
    answer_tokens=16_000,
    several_models=True,
)


def coder(state: State, runtime: Runtime[Context]) -> dict:
    """With tools where its policy can and the run wants it."""
    settings, context = state["settings"], runtime.context
    policy = context.policies["coder"]
    if settings.coder == "tools" and isinstance(policy, ToolUser):
        return {"drafts": code_in_turns(state, context)}

    def write(draft: Draft) -> Draft:
        if not draft.awaits_coder(settings.repairs):
            return draft
        began = time.monotonic()
        announce(draft, context)
        return apply_answer(draft, policy.answer(make_request(draft, state, context)), began, context)

    return {"drafts": each(write, state["drafts"], settings.width)}
