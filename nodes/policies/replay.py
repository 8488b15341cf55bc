"""`--policy replay --transcript FILE`: a recorded run's answers, with no network and no key.

Which recorded answer fits a question, best first:

1. the same words: the hash of the request, for the model that it was recorded with;
2. the same facts: everything in the request that was not measured (kernel, device kind, round, plan, repair, source,
   earlier outcomes) is equal, and only timings or a compiler's wording differ, as they do between any two runs;
3. the same place: the next answer not yet used of that role, for the same kernel, device kind, step, plan and round.

A finding is asked for when the incumbent has changed. Where it changed in a round in which it did not when the run was recorded,
the finding is the measured figures alone, and that is said.

An answer found by 2 or 3 is read like a fresh one: against its schema, and an edit against the source that it should
change. Where nothing fits, or what fits by place cannot be used, the run pauses with one sentence: the role, the round,
and what differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.options import Role
from nodes.policies import answers
from nodes.policies.answers import compute_finding
from nodes.policies.connection import Tools
from nodes.policies.model import ModelPolicy, silent
from nodes.policies.replies import as_file
from nodes.policies.transcript import Exchange, Message, Question, Reply, Transcript, TranscriptDamaged
from nodes.roles import Finding, PlannerRequest, PolicyPaused, ProfilerRequest, Turn, TurnRequest, Usage

PLACE = ("kernel", "device", "step", "plan", "round", "turn")
"""Facts that must agree wherever both sides have them, however the answer was found."""


class ReplayMismatch(PolicyPaused):
    """The recorded answers no longer fit this run. One sentence: the role, the round, what differs."""


class ReplayPolicy(ModelPolicy):
    """Plays back `recorded`. `kept` is this run's own transcript: the answers used are copied there at no cost, so that
    the report shows them and a resumed run goes on where it was. Raises ValueError where there is nothing to play."""

    name = "replay"

    def __init__(
        self,
        recorded: Path,
        *,
        kept: Transcript | None = None,
        rewrites: dict[str, str] | None = None,
        reference: str = "",
        say: Callable[[str, str], None] = silent,
    ) -> None:
        if not Path(recorded).is_file():
            raise ValueError(f"there is no transcript {recorded}")
        try:
            self._recorded = Transcript(recorded).exchanges()
        except TranscriptDamaged as damaged:
            raise ValueError(str(damaged)) from None
        if not self._recorded:
            raise ValueError(f"the transcript {recorded} holds no answer")
        facts = [exchange.question.facts for exchange in self._recorded]
        self._lasting = any(one.get("agents") == "single" for one in facts)
        single = self._lasting or any(one.get("step") == "single" for one in facts)
        super().__init__(agents="single" if single else "four", rewrites=rewrites, say=say, reference=reference)
        self._own = kept
        done = kept.exchanges() if kept else ()
        self._answered = {(e.question.role, e.question.key("")): e for e in done}
        self._used = {exchange.replayed_from for exchange in done}
        self._taking = threading.Lock()

    def profiler(self, request: ProfilerRequest) -> Finding:
        """Where the recorded run had another incumbent then, it asked for no finding, and its plan does without one."""
        try:
            return super().profiler(request)
        except ReplayMismatch:
            here = (request.spec.name, request.device.device, str(request.round))
            planned = [e.question.facts for e in self._recorded if e.question.role == "planner"]
            found = [e.question.facts for e in self._candidates_of("profiler")]
            if here in map(_moment, found) or here not in map(_moment, planned):
                raise
            self._say("replay", f"no finding was recorded in round {request.round}; it holds the measured figures only")
            return compute_finding(request)

    def _lasts(self, request: PlannerRequest) -> bool:
        return self._lasting and super()._lasts(request)

    def turn(self, request: TurnRequest) -> Turn | None:
        """Without tools where the recorded coder worked without them."""
        if not any("turn" in e.question.facts for e in self._candidates_of("coder")):
            return None
        return super().turn(request)

    def usage(self) -> dict[Role, Usage]:
        """Nothing: what is played back was paid by the run that recorded it."""
        return {}

    def _kept(self) -> tuple[Exchange, ...]:
        return (*self._answered.values(), *self._recorded)

    def _reply(
        self,
        question: Question,
        schema: dict[str, Any] | None,
        problem: str,
        before: tuple[Message, ...] = (),
        tools: Tools = (),
    ) -> Reply:
        with self._taking:
            name = (question.role, question.key(""))
            if name not in self._answered:
                found = self._fitting(question)
                if found is None:
                    raise ReplayMismatch(self._why(question, problem))
                self._used.add(found.key)
                made = answers.apply_edits(found.reply.text, question.base) or found.reply.made
                copy = found.model_copy(
                    update={
                        "reply": found.reply.model_copy(update={"made": made}),
                        "key": question.key("replay:" + found.model),
                        "question": question,
                        "usage": Usage(),
                        "replayed_from": found.key,
                    }
                )
                if self._own is not None:
                    self._own.append(copy)
                self._answered[name] = copy
            return self._fitted(question, self._answered[name].reply)

    def _fitted(self, question: Question, reply: Reply) -> Reply:
        """The answer; where its edits do not fit the source here, as after another search of open integers, their file."""
        if not (question.base and reply.made) or answers.apply_edits(reply.text, question.base):
            return reply
        self._say(
            "replay", f"{_place(question)}: its edits do not fit the source here; the file that they made is taken"
        )
        return reply.model_copy(update={"text": as_file(reply.text, reply.made)})

    def _candidates_of(self, role: Role) -> list[Exchange]:
        return [e for e in self._recorded if e.question.role == role]

    def _candidates(self, question: Question) -> list[Exchange]:
        return [e for e in self._candidates_of(question.role) if e.question.ask == question.ask]

    def _fitting(self, question: Question) -> Exchange | None:
        candidates = self._candidates(question)
        same_words = [e for e in candidates if e.key == question.key(e.model)]
        same_facts = [e for e in candidates if e.question.facts == question.facts]
        for fitting in (same_words, same_facts):
            if fitting:
                return next((e for e in fitting if e.key not in self._used), fitting[-1])
        same_place = [
            e for e in candidates if not _apart(e.question.facts, question.facts, PLACE) and e.key not in self._used
        ]
        if not same_place:
            return None
        differing = ", ".join(_apart(same_place[0].question.facts, question.facts))
        self._say("replay", f"{_place(question)}: taken by its place in the recording; what differs: {differing}")
        return same_place[0]

    def _why(self, question: Question, problem: str) -> str:
        begin = f"the recorded answers no longer fit at {_place(question)}"
        if problem:
            return f"{begin}: the recorded one cannot be used here ({problem}), and no further one was recorded"
        same_role = self._candidates(question)
        if not same_role:
            return f"{begin}: none of this role was recorded"
        kinds = {e.question.facts.get("kernel"): e.question.facts.get("device") for e in same_role}
        here = (question.facts.get("kernel"), question.facts.get("device"))
        if here not in kinds.items():
            recorded = ", ".join(f"{kernel} on {device}" for kernel, device in kinds.items())
            return f"{begin}: they are for {recorded}, and this is {here[0]} on {here[1]}"
        nearest = min(same_role, key=lambda e: len(_apart(e.question.facts, question.facts)))
        apart = [name for name in _apart(nearest.question.facts, question.facts) if name != "title"]
        if not apart:
            return f"{begin}: every recorded answer of this kind is used up"
        used = ", and its answer is used up" if nearest.key in self._used else ""
        return f"{begin}: the nearest recorded request differs in its {', '.join(apart)}{used}"


def _apart(one: dict[str, str], other: dict[str, str], names: tuple[str, ...] = ()) -> list[str]:
    """Names of the facts that differ; of `names` only where given, and then only where both sides know the fact."""
    if names:
        return [name for name in names if one.get(name) and other.get(name) and one[name] != other[name]]
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def _moment(facts: dict[str, str]) -> tuple[str, str, str]:
    return facts.get("kernel", ""), facts.get("device", ""), facts.get("round", "")


def _place(question: Question) -> str:
    """Such as: the coder's answer for plan 'wider loads' in round 3."""
    facts = question.facts
    step = facts.get("step", "")
    parts = [f"the {question.role}'s answer"]
    if step.startswith("repair"):
        parts.append(f"to {step}")
    if facts.get("title"):
        parts.append(f"for plan {facts['title']!r}")
    if facts.get("round"):
        parts.append(f"in round {facts['round']}")
    return " ".join(parts)
