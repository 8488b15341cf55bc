"""What servers and models send beside the protocol: handled, or said to the model or the person; never half an answer for a whole one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from nodes.policies.connection import MOST_CALLS, Connection, Retries
from nodes.policies.transcript import Message, Reply
from nodes.roles import PolicyPaused
from tests.nodes.policies.server import ModelServer, Raw, Says, model_server

TOOLS = [{"type": "function", "function": {"name": "check", "description": "", "parameters": {"type": "object"}}}]
HALF = '{"source": "int main() {'


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


def ask(server: ModelServer, attempts: int = 2) -> Reply:
    retries = Retries(attempts=attempts, first_s=0.01, total_s=3, timeout_s=3)
    connection = Connection(server.base_url, SecretStr("sk-1234567890"), "chat", retries, lambda *_: None)
    return connection.ask("a-model", (Message(role="user", content="go on"),), None, 100, tools=TOOLS)


def call(arguments: object, name: str | None = "check") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}],
    }


def whole(message: dict[str, Any]) -> Raw:
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return Raw(json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}))


def stream(*deltas: dict[str, Any], finish: str | None = None, done: bool = False) -> Raw:
    common = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    events = [{**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events += [{**common, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] * bool(finish)
    events = events or [{**common, "choices": []}]
    ended = "data: [DONE]\n\n" * done
    return Raw("".join(f"data: {json.dumps(event)}\n\n" for event in events) + ended, "text/event-stream")


@pytest.mark.parametrize("arguments", [{"name": "ab"}, '{"name": "ab"}', '"{\\"name\\": \\"ab\\"}"'], ids=str)
@pytest.mark.parametrize("streamed", [True, False])
def test_arguments_as_an_object_or_as_text_in_text(server: ModelServer, arguments: object, streamed: bool) -> None:
    if streamed and isinstance(arguments, dict):
        pytest.skip("the client itself takes no such stream")
    sent = stream(call(arguments), finish="tool_calls", done=True) if streamed else whole(call(arguments))
    server.script = [sent, sent]
    (made,) = ask(server).calls
    assert (made.name, json.loads(made.arguments)) == ("check", {"name": "ab"})


@pytest.mark.parametrize("streamed", [True, False])
def test_arguments_that_are_no_object_reach_the_tool_that_says_so(server: ModelServer, streamed: bool) -> None:
    sent = stream(call("[1]"), finish="tool_calls", done=True) if streamed else whole(call("[1]"))
    server.script = [sent, sent]
    (made,) = ask(server).calls
    assert json.loads(made.arguments) == {"arguments": [1]}


@pytest.mark.parametrize(
    "half",
    [stream({"role": "assistant", "content": "half an ans"}), stream(call(HALF)), stream()],
    ids=["text", "call", "nothing"],
)
def test_a_stream_that_ends_before_its_answer_is_asked_again(server: ModelServer, half: Raw) -> None:
    server.script = [half, Says("all of it", finish="stop")]
    assert ask(server).text == "all of it"
    server.script = [half, half]
    with pytest.raises(PolicyPaused, match=r"ended its answer before it was whole; tried 2 times"):
        ask(server)


def test_a_server_that_names_no_reason_for_an_end_is_believed_where_it_says_that_it_is_one(server: ModelServer) -> None:
    server.script = [stream({"role": "assistant", "content": "all of it"}, done=True)]
    assert ask(server).text == "all of it"


def test_an_answer_that_ends_by_an_error_is_asked_again(server: ModelServer) -> None:
    server.script = [stream({"role": "assistant", "content": "half"}, finish="error", done=True), Says("all of it")]
    assert ask(server).text == "all of it"


def test_calls_beyond_the_limit_are_counted(server: ModelServer) -> None:
    server.script = [Says(calls=tuple(("check", {"candidate": str(n)}) for n in range(200)), finish="tool_calls")]
    reply = ask(server)
    assert len(reply.calls) == MOST_CALLS and reply.left_out == 200 - MOST_CALLS
