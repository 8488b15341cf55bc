"""A coding agent outside plans and codes, and submits what it wrote (graph/serving.py, over MCP).

A round waits for a submission: until there is one the run is paused at its checkpoint. A submission is in the transcript,
by its round, before the run goes on with it, so a kill afterwards loses nothing and it is measured once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

from harness.store import digest
from nodes import agents
from nodes.options import Role
from nodes.policies.model import silent
from nodes.policies.transcript import Exchange, Message, Question, Reply, Transcript
from nodes.roles import (
    AgentRequest,
    Answer,
    CoderAnswer,
    CoderRequest,
    Plan,
    PlannerRequest,
    PolicyPaused,
    Usage,
)
from nodes.workbench.results import ToolResult

SUBMIT, FINISH = "submit", "finish"


class ClientPolicy:
    """Planner and coder; for the other roles there are the rules. Nothing that it answers is paid for here."""

    name = "client"

    def __init__(self, transcript: Transcript, say: Callable[[str, str], None] = silent) -> None:
        self.transcript, self._say = transcript, say

    def answer(self, request: AgentRequest[Answer]) -> Answer:
        own = getattr(self, request.role, None)
        return own(request) if own else agents.load(request.role).without(request, "a client plans and codes only")

    def planner(self, request: PlannerRequest) -> tuple[Plan, ...]:
        """The submission of this round as its plan; none once the client has finished. Raises PolicyPaused without either."""
        kept = self._of(request.round)
        if kept is None:
            raise PolicyPaused(
                f"waiting for round {request.round}: submit a source over MCP (`run.py mcp --run`), or finish the run"
            )
        facts = kept.question.facts
        if facts["step"] == FINISH:
            return ()
        return (Plan(id=kept.key[:16], title=facts["title"], steps=(facts["notes"],), base=request.incumbent),)

    def coder(self, request: CoderRequest) -> CoderAnswer:
        kept = self._of(request.round)
        if request.repair or kept is None:
            return CoderAnswer(reason="submit another source in the next round")
        return CoderAnswer(source=kept.reply.text)

    def usage(self) -> dict[Role, Usage]:
        return {}

    def _of(self, round_: int) -> Exchange | None:
        return next((e for e in self.list_submissions() if e.question.facts["round"] == str(round_)), None)

    def list_submissions(self) -> list[Exchange]:
        """Submissions, and the end, in their order."""
        return [e for e in self.transcript.exchanges() if e.question.facts.get("step") in (SUBMIT, FINISH)]

    def list_calls(self) -> list[Exchange]:
        """All calls of tools, in their order."""
        return [e for e in self.transcript.exchanges() if "tool" in e.question.facts]

    # --- what the client did ------------------------------------------------------------------------------------

    def keep_call(self, client: str, round_: int, tool: str, arguments: str, found: ToolResult) -> None:
        """One call of a tool and what it said, for the report and for what is left of the limits."""
        number = str(len(self.list_calls()) + 1)
        facts = {"step": f"tool {tool}", "tool": tool, "round": str(round_), "turn": number}
        facts |= {"candidate": found.candidate, "seconds": f"{found.seconds:.3f}"}
        self._append(client, arguments, found.text, facts, found.seconds)

    def keep_submission(self, client: str, round_: int, found: ToolResult, source: str) -> None:
        notes = " ".join(found.notes.split()) or "no notes"
        facts = {"step": SUBMIT, "round": str(round_), "title": notes[:100], "notes": notes}
        self._append(client, json.dumps({"candidate": found.candidate, "notes": notes}), source, facts)

    def keep_end(self, client: str, round_: int, reason: str) -> None:
        self._append(client, json.dumps({"reason": reason}), "", {"step": FINISH, "round": str(round_)})

    def _append(self, client: str, asked: str, said: str, facts: dict[str, str], seconds: float = 0.0) -> None:
        question = Question(role="coder", messages=(Message(role="user", content=asked),), wants="mcp", facts=facts)
        self.transcript.append(
            Exchange(
                key=digest("mcp", *(part for pair in sorted(facts.items()) for part in pair), asked),
                question=question,
                model=client,
                reply=Reply(text=said),
                usage=Usage(),
                seconds=round(seconds, 3),
                at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )
