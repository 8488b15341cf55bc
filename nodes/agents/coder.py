"""Agent: a source for each plan, or a repair of one that failed."""

from __future__ import annotations

import time

from langgraph.runtime import Runtime

from nodes.coding import code_in_turns
from nodes.context import Context
from nodes.drafts import announce, apply_answer, make_request
from nodes.roles import Agent, CoderAnswer, CoderRequest, ToolUser
from nodes.side_by_side import each
from nodes.state import Draft, State

AGENT: Agent[CoderRequest, CoderAnswer] = Agent(
    nodes={"coder": "writing the candidate"}, without=lambda _, why: CoderAnswer(reason=why), answer_tokens=16_000
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
