"""The four agents as conversations with a model: which prompt a role gets, how its answer is read, and what happens where it
cannot be used. Where an answer comes from is `_reply`: a server (chat.py), or a recording (replay.py)."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from harness.store import digest
from nodes import agents
from nodes.knowledge import families_of
from nodes.options import Role
from nodes.policies import answers, turns
from nodes.policies.connection import NoTools, Tools, in_words
from nodes.policies.render import REFERENCE_CHARS, render
from nodes.policies.replies import UnfitReply, without_thinking
from nodes.policies.transcript import Exchange, Message, Question, Reply
from nodes.roles import (
    AgentRequest,
    Asking,
    CoderAnswer,
    CoderRequest,
    Finding,
    Plan,
    PlannerRequest,
    ProfilerRequest,
    Prompt,
    Turn,
    TurnRequest,
    TurnsEnded,
)

Agents = Literal["four", "single"]
Say = Callable[[str, str], None]
Given = TypeVar("Given")

REASKS = 2
"""How often an answer that does not parse is asked again."""
QUOTED_CHARS = 120_000
"""An answer goes back to the model whole; of one that is longer than this, some 40,000 tokens, its two ends."""
MOST_TIMES = 4
"""A cut-off answer is asked again with twice the limit of tokens, up to so many times the role's."""


class Unusable(Exception):
    """No answer that can be used came out of the bounded asking. The message is one sentence."""


def silent(_kind: str, _text: str) -> None:
    pass


class ModelPolicy(ABC):
    """The roles, asked of a model; where an answer cannot be used the run goes on without it and says so."""

    name: str

    def __init__(self, *, agents: Agents, rewrites: dict[str, str] | None, say: Say, reference: str = "") -> None:
        self.agents = agents
        self.reference = reference
        """Text of the kernel's reference.py, by which pages of what is known are chosen."""
        self.rewrites = rewrites
        """Name -> what it does. Given where rules carry out the plans: then a plan's steps must be these names."""
        self._say = say
        self._no_tools = False
        """The coder's server, or its model, does not call tools."""
        self._written: dict[str, str] = {}
        """The single agent's code, by plan and base: it comes with the plan."""
        self._lock = threading.Lock()

    @abstractmethod
    def _reply(
        self,
        question: Question,
        schema: dict[str, Any] | None,
        problem: str,
        before: tuple[Message, ...] = (),
        tools: Tools = (),
    ) -> Reply:
        """The model's answer; `problem` is what was wrong with the one before. Raises PolicyPaused.

        `before` was said before the question's own messages; `tools` may be called, and NoTools is raised where not.
        """

    def _rejected(self, question: Question, reply: Reply) -> None:  # noqa: B027 - a policy may ignore it
        """A structured answer held no JSON at all."""

    def _converse(
        self,
        role: Role,
        prompt: tuple[Message, ...],
        facts: dict[str, str],
        read: Callable[[str], Given],
        draft: type[BaseModel] | None = None,
        base: str = "",
    ) -> Given:
        """Ask until `read` accepts the answer, at most 1 + REASKS times. Raises Unusable."""
        schema = {"title": draft.__name__, "schema": answers.wire_schema(draft)} if draft else None
        wants = json.dumps(schema, sort_keys=True) if schema else "header and code"
        messages, problem, times = prompt, "", 1
        for ask in range(1 + REASKS):
            question = Question(
                role=role, messages=messages, wants=wants, ask=ask, facts=facts, base=base, times=times
            )  # fmt: skip
            reply = self._reply(question, schema, problem)
            if reply.finish == "refused":
                raise Unusable(f"the model refused the {role}'s request: {_sentence(reply.text)}")
            if reply.finish == "filtered":
                raise Unusable(f"the server's content filter withheld the {role}'s answer")
            if reply.finish == "length":
                # A reasoning model may have spent all of it on thinking, and nothing is gained by quoting half an answer.
                problem = f"the answer was cut off at the limit of {reply.tokens_out} tokens"
                times = min(2 * times, MOST_TIMES)
                self._say("asked again", f"{role}: {problem}; now with {times} times the limit")
                continue
            try:
                return read(reply.text)
            except UnfitReply as unfit:
                problem = str(unfit)
                if schema and "{" not in reply.text:
                    self._rejected(question, reply)
            self._say("asked again", f"{role}: {problem}")
            again = f"That answer cannot be used: {problem}. Give the whole answer again, corrected."
            messages = (
                *messages,
                Message(role="assistant", content=_quoted(reply.text)),
                Message(role="user", content=again + (in_words(schema) if schema else "")),
            )
        raise Unusable(f"the {role}'s answer could not be used after {1 + REASKS} tries: {problem}")

    def answer(self, request: AgentRequest[Given]) -> Given:
        """The answer by the method of the role's name where there is one, else by its agent's prompt."""
        own = getattr(self, request.role, None)
        return own(request) if own else self._ask(request)

    def _ask(self, request: AgentRequest[Given]) -> Given:
        agent = agents.load(request.role)
        asked = agent.prompt(request)
        try:
            facts = _facts(asked.step, request) | self._writer(request) | asked.facts
            prompt = self._prompt(request, asked)
            answer = self._converse(request.role, prompt, facts, asked.read, asked.form, asked.base)
        except Unusable as unusable:
            return self._unanswered(request, asked, unusable)
        if not answer and asked.nothing:
            self._say(request.role, asked.nothing)
        return answer

    def _unanswered(self, request: AgentRequest[Given], asked: Prompt[Given], unusable: Unusable) -> Given:
        self._say("no answer", "; ".join(filter(None, (str(unusable), asked.otherwise))))
        return agents.load(request.role).without(request, str(unusable))

    def _prompt(self, request: AgentRequest[Given], asked: Prompt[Given]) -> tuple[Message, ...]:
        """The role's template; of a repair, the conversation in which the file was written, and what became of it."""
        if isinstance(request, CoderRequest) and request.repair and (written := self._written_in(request)) is not None:
            edited = bool(written.reply.made)
            _, again = self._render(
                "repair", request, own=True, source=request.source, edited=edited, most_turns=0, **_failed(request)
            )
            return (
                *written.question.messages,
                Message(role="assistant", content=_quoted(written.reply.text)),
                again,
            )
        stage = {"stage": asked.stage} if asked.stage else {}
        return self._render(request.role, request, own=not asked.stage, **asked.variables, **stage)

    def profiler(self, request: ProfilerRequest) -> Finding:
        """The single agent judges the figures in the same answer as it codes."""
        return answers.compute_finding(request) if self.agents == "single" else self._ask(request)

    def planner(self, request: PlannerRequest) -> tuple[Plan, ...]:
        request = request.model_copy(update={"rewrites": self.rewrites})
        if self.agents == "single":
            return (self._open(request),) if self._lasts(request) else self._single(request)
        return self._ask(request)

    def _lasts(self, request: PlannerRequest) -> bool:
        """Whether the single agent works in one conversation with tools: then it plans there."""
        return request.tools and not self._no_tools and self.rewrites is None

    def _open(self, request: PlannerRequest) -> Plan:
        """The round's plan of an agent that finds out on the way what to do."""
        step = "Find out what bounds the best source so far, and make it faster."
        identity = digest("open", str(request.round), request.incumbent)[:16]
        return Plan(id=identity, title=f"round {request.round}, as it measures", steps=(step,), base=request.incumbent)

    def _single(self, request: PlannerRequest) -> tuple[Plan, ...]:
        """One answer a plan, with its code; each later one is told of those before it."""
        found: dict[str, Plan] = {}
        asked: Prompt[tuple[Plan, ...]] = agents.load(request.role).prompt(request)
        for turn in range(request.width):
            facts = _facts("single", request) | asked.facts | {"turn": str(turn)}
            siblings = [plan.title for plan in found.values()]
            prompt = self._render("single", request, stage="round", siblings=siblings, **asked.variables)
            try:
                plan, source = self._converse(
                    "planner", prompt, facts, lambda text: answers.single(text, request), base=request.source
                )
            except Unusable as unusable:
                if not found:
                    return self._unanswered(request, asked, unusable)
                self._say("no answer", f"{unusable}; the round has {len(found)} plans")
                break
            found[plan.id] = plan
            with self._lock:
                self._written[plan.id + digest(request.source)] = source
        return tuple(found.values())

    def coder(self, request: CoderRequest) -> CoderAnswer:
        if self.agents == "single" and not request.repair:
            written = self._already_written(request)
            if written:
                return CoderAnswer(source=written)
        return self._ask(request)

    def _written_in(self, request: CoderRequest) -> Exchange | None:
        """The exchange of this round whose answer the failed source is; None where it came from somebody else."""
        for exchange in reversed(self._kept()):
            question = exchange.question
            mine = question.facts.get("plan") == request.plan.id or question.facts.get("step") == "single"
            if not (mine and question.messages and question.facts.get("round") == str(request.round or "")):
                continue
            if (exchange.reply.made or answers.whole_file(exchange.reply.text)) == request.source:
                return exchange
        return None

    def turn(self, request: TurnRequest) -> Turn | None:
        """The coder's next answer, with tools; None where the server or the model does not call them."""
        never_called = len(request.turns) > REASKS and not any(turn.calls for turn in request.turns)
        if never_called:
            self._without_tools("the model calls none of its tools")
        if self._no_tools:
            return None
        coded = next(iter(request.earlier.askings), request).request
        variables = agents.load(coded.role).prompt(coded).variables
        prompt = self._render("coder_tools", coded, stage="tools", **variables, **turns.limits(request))
        told = self._told(request)
        alone = {"agents": "single"} if self.agents == "single" else {}
        before, new = turns.split_messages(prompt, tuple(told))
        offered = turns.offer_tools(request)
        question = Question(
            role="coder", messages=new, wants=json.dumps(offered, sort_keys=True), after=told[-1].name if told else "",
            facts=turns.facts(_facts("turn", coded) | self._writer(coded) | alone, request),
            times=min(2 ** turns.count_cut_off(told), MOST_TIMES),
        )  # fmt: skip
        try:
            reply = self._reply(question, None, "", before, offered)
        except NoTools as refused:
            self._without_tools(str(refused))
            return None
        if reply.finish in ("refused", "filtered"):
            raise TurnsEnded(f"the model or its server refused to go on: {_sentence(reply.text)}", oneshot=False)
        return turns.turn_of(question, reply, len(told))

    def _told(self, request: TurnRequest) -> list[Turn]:
        """All turns about this draft; what a gate said of the source that came of some follows the last of them."""
        told: list[Turn] = []
        askings: list[Asking | TurnRequest] = [*request.earlier.askings, request]
        for asking in askings:
            if told:
                asked = asking.request
                _, failed = self._render(
                    "repair" if asked.repair else "next_round", asked, own=True, edited=False, **_failed(asked),
                    **turns.limits(request), **_next(asked),
                )  # fmt: skip
                said = "\n\n".join(filter(None, (told[-1].reply, failed.content)))
                told[-1] = told[-1].model_copy(update={"reply": said})
            told += asking.turns
        return told

    def _without_tools(self, why: str) -> None:
        with self._lock:
            said, self._no_tools = self._no_tools, True
        if not said:
            self._say("coder", f"{why}; it is asked for whole answers instead (--coder oneshot asks so at once)")

    def _writer(self, _request: AgentRequest) -> dict[str, str]:
        """Which of several models answers, as a fact of the question."""
        return {}

    def _already_written(self, request: CoderRequest) -> str:
        """The code that came with the single agent's plan; after a kill it is read from the transcript again."""
        with self._lock:
            found = self._written.get(request.plan.id + digest(request.source))
        if found is not None:
            return found
        asked = PlannerRequest(
            spec=request.spec, device=request.device, finding=request.finding, incumbent=request.plan.base,
            source=request.source, attempts=(),
        )  # fmt: skip
        for exchange in self._kept():
            if exchange.question.facts.get("step") == "single":
                try:
                    plan, source = answers.single(exchange.reply.text, asked)
                except UnfitReply:
                    continue
                if plan.id == request.plan.id:
                    return source
        return ""

    @abstractmethod
    def _kept(self) -> tuple[Exchange, ...]:
        """The exchanges of this run so far."""

    def _render(self, name: str, request: Any, *, own: bool = False, **facts: Any) -> tuple[Message, Message]:
        """`own`: the single agent has this prompt in common with the four."""
        families = families_of(request.spec, self.reference)
        facts = {"rewrites": self.rewrites or {}, "agents": self.agents, "families": families, **facts}
        facts |= {"reference": self.reference[:REFERENCE_CHARS]}
        return render("single" if self.agents == "single" and not own else name, request.spec, request.device, **facts)


def _quoted(text: str) -> str:
    """An answer as it goes back into its conversation: without what it thought before, whole where it fits."""
    text = without_thinking(text)
    return turns.cut(text, QUOTED_CHARS) or "(nothing)"


def _sentence(text: str) -> str:
    return " ".join(text.split())[:200]


def _facts(step: str, request: Any) -> dict[str, str]:
    return {
        "step": step,
        "kernel": request.spec.name,
        "device": request.device.device,
        "spec": digest(request.spec.model_dump_json()),
    }


def _next(request: CoderRequest) -> dict[str, Any]:
    """What a lasting conversation is told when another round begins in it."""
    if request.repair:
        return {}
    return {
        "attempts": request.attempts[-1:], "earlier": 0, "ledger": request.ledger, "standing": request.standing, "round": request.round,
        "timings": request.timings, "incumbent_source": request.incumbent_source,
    }  # fmt: skip


def _failed(request: CoderRequest) -> dict[str, Any]:
    return {"failure": request.failure, "outcome": request.outcome, "repair": request.repair}
