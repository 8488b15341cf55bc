"""`--policy chat`: the four agents are language models, or one model that does all four roles (`--agents single`).

Where an answer comes from is here: from the transcript, else from a server, within the budget.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nodes.agents import load
from nodes.options import ROLES, Chat, Limits, Role
from nodes.policies import answers
from nodes.policies.budget import Budget, BudgetEnded
from nodes.policies.connection import Connection, Tools, estimate_tokens
from nodes.policies.model import Agents, ModelPolicy, Say, silent
from nodes.policies.prices import Prices
from nodes.policies.transcript import Exchange, Message, Question, Reply, Transcript
from nodes.roles import AgentRequest, Answer, CoderRequest, Policy, PolicyPaused, Turn, TurnRequest, TurnsEnded, Usage

SINGLE_TOKENS = 16_000
PLATEAU = 2
"""Rounds without gain after which another of several models takes the coder's place."""


class ChatPolicy(ModelPolicy):
    """Models behind an OpenAI-compatible server.

    `spent` is what the run used in its earlier processes; the transcript is the better ledger after a kill, and whichever
    is larger counts against the budget. `fallback` is whoever answers once the budget ends; without one the run pauses
    then. Safe for several threads. Raises ValueError where a model is missing or the price table is wrong.
    """

    name = "chat"

    def __init__(
        self,
        asked: Chat,
        transcript: Transcript,
        connection: Connection,
        *,
        limits: Limits | None = None,
        spent: dict[Role, Usage] | None = None,
        fallback: Policy | None = None,
        agents: Agents = "four",
        rewrites: dict[str, str] | None = None,
        reference: str = "",
        say: Say = silent,
    ) -> None:
        super().__init__(agents=agents, rewrites=rewrites, say=say, reference=reference)
        if not asked.models or not all(asked.models.values()):
            raise ValueError("no model is named: give --model, or one for each role")
        self.asked, self.transcript = asked, transcript
        self._connection = connection
        self._prices = Prices(Path(asked.prices) if asked.prices else None, base_url=connection.base_url)
        ledger = {role: _larger(usage, (spent or {}).get(role)) for role, usage in transcript.usage().items()}
        self._budget = Budget(limits or Limits(), {**(spent or {}), **ledger}, say)
        self._fallback = fallback
        self._answer_tokens = {role: load(role).answer_tokens for role in ROLES} | asked.answer_tokens
        self._said: set[str] = set()

    def usage(self) -> dict[Role, Usage]:
        """What was paid since this object was made; answers from the transcript cost nothing."""
        return self._budget.usage()

    def answer(self, request: AgentRequest[Answer]) -> Answer:
        """The answer, which the fallback gives once the budget has ended. Raises PolicyPaused where there is none."""
        try:
            return super().answer(request)
        except BudgetEnded as ended:
            sentence = str(ended)
        if self._fallback is None:
            raise PolicyPaused(f"{sentence}; resume with a larger one, or with --policy rules")
        self._once_said("budget", f"{sentence}; {self._fallback.name} answers from here on")
        return self._fallback.answer(request)

    def turn(self, request: TurnRequest) -> Turn | None:
        try:
            return super().turn(request)
        except BudgetEnded as ended:
            if self._fallback is None:
                raise PolicyPaused(f"{ended}; resume with a larger one, or with --policy rules") from None
            raise TurnsEnded(str(ended), oneshot=True) from None

    def _writer(self, request: AgentRequest) -> dict[str, str]:
        """`--model-coder A,B`: every PLATEAU rounds without gain the next one; after a gain the first again."""
        models = [name.strip() for name in self.asked.models.get(request.role, "").split(",")]
        if len(models) == 1 or not isinstance(request, CoderRequest):
            return {}
        model = models[request.stale_rounds // PLATEAU % len(models)]
        if request.stale_rounds >= PLATEAU:
            self._once_said(
                "coder", f"{request.stale_rounds} rounds without gain: {model} writes in round {request.round}"
            )
        return {"model": model}

    def _once_said(self, kind: str, text: str) -> None:
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
        self._say(kind, text)

    def _kept(self) -> tuple[Exchange, ...]:
        return self.transcript.exchanges()

    def _rejected(self, question: Question, reply: Reply) -> None:
        self._connection.lower(question.facts.get("model") or self.asked.models[question.role], reply.rung)

    def _reply(
        self,
        question: Question,
        schema: dict[str, Any] | None,
        problem: str,
        before: tuple[Message, ...] = (),
        tools: Tools = (),
    ) -> Reply:
        scrub = self._connection.scrub
        said = tuple(message.model_copy(update={"content": scrub(message.content)}) for message in question.messages)
        whole = (*before, *said)
        question = question.model_copy(update={"messages": said})
        if question.role not in self.asked.models:
            raise ValueError(f"no model is named for the {question.role}")
        model = question.facts.get("model") or self.asked.models[question.role]
        key = question.key(model)
        kept = self.transcript.find(key)
        if kept is not None:
            return kept.reply
        price = self._prices.of(model)
        if price is None:
            money_limits = self._budget.limits.money_usd is not None or self._budget.limits.role_money_usd
            held = ", so a money budget cannot hold it back" if money_limits else ""
            self._once_said(
                "price", f"the price of {model} is not known: its tokens are counted, its money is not{held}"
            )
        sent_bytes = sum(len(part.encode()) for message in whole for part in message.parts)
        sent_bytes += len(json.dumps(schema or "")) + len(json.dumps(tools))
        most_tokens = SINGLE_TOKENS if self.agents == "single" and question.role == "planner" else 0
        most_tokens = max(most_tokens, self._answer_tokens[question.role]) * question.times
        began = time.monotonic()
        with self._budget.call(question.role, estimate_tokens(sent_bytes), most_tokens, price) as call:
            reply = self._connection.ask(
                model, whole, schema, most_tokens, effort=self.asked.effort.get(question.role, ""), tools=tools
            )
            money = None if price is None else price.usd(reply.tokens_in, reply.tokens_out)
            call.usage = Usage(calls=1, tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, money_usd=money)
            if reply.estimated:
                self._once_said("usage", f"{model}'s server reports no usage: tokens are estimated from the bytes")
            text = scrub(reply.text)
            calls = tuple(call.model_copy(update={"arguments": scrub(call.arguments)}) for call in reply.calls)
            made = answers.apply_edits(text, question.base)
            reply = reply.model_copy(update={"text": text, "calls": calls, "made": made})
            self.transcript.append(
                Exchange(
                    key=key,
                    question=question,
                    model=model,
                    reply=reply,
                    usage=call.usage,
                    seconds=round(time.monotonic() - began, 3),
                    at=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
        return reply


def _larger(one: Usage, other: Usage | None) -> Usage:
    return one if other is None or one.tokens_in + one.tokens_out >= other.tokens_in + other.tokens_out else other
