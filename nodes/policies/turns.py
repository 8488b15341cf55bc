"""A conversation with tools as messages: what was said before, what is new, and what an answer asks for.

A turn's question holds only what is new and the name of the turn before it, which hashes all that came before. So the
transcript grows by what was said, and the same tool results lead to the same question.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from harness.store import digest
from nodes.policies.connection import MOST_CALLS
from nodes.policies.transcript import Message, Question, Reply
from nodes.roles import ToolCall, Turn, TurnRequest
from nodes.workbench.arguments import SOURCE_CHARS, schema
from nodes.workbench.arguments import TOOLS as ARGUMENTS

TEXT_CHARS, CALL_CHARS = 120_000, 2 * SOURCE_CHARS
"""Characters of an answer's text, and of one call's arguments (a source with its escapes), that stay in the
conversation."""
CUT_OFF = "That answer was cut off at the limit of {} tokens. Say less, and edit a source instead of giving it whole."
LEFT_OUT = "The last {} calls of that answer were not made: one answer may call {} tools."
CALL = "Call a tool: `submit` ends your work, with a source or with the reason why there is none."


def _described(name: str) -> dict[str, Any]:
    described = {
        "name": name,
        "description": " ".join((ARGUMENTS[name].__doc__ or "").split()),
        "parameters": schema(ARGUMENTS[name]),
    }
    return {"type": "function", "function": described}


TOOLS = tuple(_described(name) for name in ARGUMENTS)
OF_THE_COMPILER = ("schedule", "try_schedule")


def offer_tools(request: TurnRequest) -> tuple[dict[str, Any], ...]:
    """The tools that are of use for this operation: each takes its place in every request of a conversation."""
    return tuple(tool for tool in TOOLS if request.compiler or tool["function"]["name"] not in OF_THE_COMPILER)


def limits(request: TurnRequest) -> dict[str, Any]:
    """What the prompt says of them."""
    return {"most_turns": request.most_turns, "tool_seconds": request.tool_seconds, "compiler": request.compiler}


def facts(common: dict[str, str], request: TurnRequest) -> dict[str, str]:
    """What a turn is about, without anything measured."""
    asked = request.request
    step = f"turn of repair {asked.repair}" if asked.repair else "turn"
    return common | {
        "step": step,
        "plan": asked.plan.id,
        "title": asked.plan.title,
        "source": digest(asked.source),
        "round": str(asked.round or ""),
        "turn": str(len(request.turns) + 1),
    }


def split_messages(
    prompt: tuple[Message, ...], turns: tuple[Turn, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """(what was said up to the last answer, what is said now)."""
    before: list[Message] = []
    new: list[Message] = list(prompt)
    for turn in turns:
        calls = tuple(_short(call) for call in turn.calls)
        before += [*new, Message(role="assistant", content=cut(turn.text, TEXT_CHARS), calls=calls)]
        pairs = zip(turn.calls, turn.results, strict=True)
        new = [Message(role="tool", content=result, call=call.id) for call, result in pairs]
        new += [Message(role="user", content=turn.reply)] if turn.reply else []
    return tuple(before), tuple(new)


def cut(text: str, most: int) -> str:
    """Whole where it fits, else its two ends."""
    return text if len(text) <= most else f"{text[: most // 2]}\n[... left out ...]\n{text[-most // 2 :]}"


def _short(call: ToolCall) -> ToolCall:
    """A call as it stands in what was said: what no tool takes for its length is not said again and again."""
    if len(call.arguments) <= CALL_CHARS:
        return call
    left_out = json.dumps({"left_out": f"{len(call.arguments)} characters of arguments"})
    return call.model_copy(update={"arguments": left_out})


def count_cut_off(turns: Sequence[Turn]) -> int:
    """How many of the last answers, one behind another, were cut off at their limit of tokens."""
    return len(list(itertools.takewhile(lambda turn: turn.reply.startswith(CUT_OFF.split("{")[0]), reversed(turns))))


def turn_of(question: Question, reply: Reply, number: int) -> Turn:
    """The answer as a turn that has no results yet. Calls are named anew: some servers give two of them one id."""
    calls = tuple(
        ToolCall(id=f"t{number:04d}c{index:03d}", name=call.name, arguments=call.arguments)
        for index, call in enumerate(reply.calls)
    )
    left_out = LEFT_OUT.format(reply.left_out, MOST_CALLS) if reply.left_out else ""
    again = left_out if calls else CUT_OFF.format(reply.tokens_out) if reply.finish == "length" else CALL
    return Turn(name=question.key(""), text=reply.text, calls=calls, reply=again)
