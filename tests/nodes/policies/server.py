"""A model server on loopback that speaks OpenAI's protocol, chat and responses, and fails as it is told.

`script` holds what it does with the next requests, in order; a request too many gets a 500 that says so. `requests`
holds what was sent: path, headers, body.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Says:
    """A whole answer. `arguments` answers the forced tool call instead of giving text; `calls` are (tool, arguments), the
    latter as text where they are to be none."""

    text: str | None = None
    arguments: dict[str, Any] | None = None
    calls: tuple[tuple[str, dict[str, Any] | str], ...] = ()
    finish: str = "stop"
    refusal: str | None = None
    tokens: tuple[int, int] | None = (100, 20)
    after_s: float = 0.0
    cached: int = 0
    streams: bool = True
    """False: a request for a stream gets the whole answer as JSON."""


@dataclass(frozen=True)
class Fails:
    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None


@dataclass(frozen=True)
class Raw:
    """A 200 with this body."""

    body: str
    content_type: str = "application/json"


@dataclass(frozen=True)
class Drops:
    """Closes the connection, before any byte or in the middle of the body."""

    midway: bool = False


@dataclass(frozen=True)
class Drips:
    """A byte of an answer that never ends, and a little later the next, until the other side leaves; of its headers or its body."""

    body: bool
    every_s: float = 0.02


class ModelServer:
    def __init__(self, address: str) -> None:
        self.base_url = f"{address}/v1"
        self.script: list[Says | Fails | Raw | Drops | Drips] = []
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Says] | None = None
        """In the script's place: an answer by the request's body."""
        self.lock = threading.Lock()
        self.closing = threading.Event()

    def next(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Says | Fails | Raw | Drops | Drips:
        with self.lock:
            self.requests.append({"path": path, "headers": headers, "body": body, "at": time.monotonic()})
            if self.answer is not None:
                return self.answer(body)
            return self.script.pop(0) if self.script else Fails(500, "this request was not expected")


def completion(body: dict[str, Any], says: Says) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": says.text, "refusal": says.refusal}
    if says.arguments is not None:
        function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps(says.arguments)}
        message["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
    if says.calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": _as_text(arguments)}}
            for i, (name, arguments) in enumerate(says.calls)
        ]
    made = {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": says.finish}],
    }  # fmt: skip
    if says.tokens:
        made["usage"] = {
            "prompt_tokens": says.tokens[0], "completion_tokens": says.tokens[1], "total_tokens": sum(says.tokens),
            "prompt_tokens_details": {"cached_tokens": says.cached},
        }  # fmt: skip
    return made


def _as_text(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def response(body: dict[str, Any], says: Says) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "output_text", "text": says.text or "", "annotations": []}
    if says.refusal:
        content = {"type": "refusal", "refusal": says.refusal}
    output: list[dict[str, Any]] = [
        {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [content]}
    ]
    if says.arguments is not None:
        output = [
            {"type": "function_call", "id": "fc_0", "call_id": "call_0", "status": "completed",
             "name": body["tools"][0]["name"], "arguments": json.dumps(says.arguments)}
        ]  # fmt: skip
    if says.calls:
        output = [
            {"type": "function_call", "id": f"fc_{i}", "call_id": f"call_{i}", "status": "completed", "name": name,
             "arguments": _as_text(arguments)}
            for i, (name, arguments) in enumerate(says.calls)
        ]  # fmt: skip
    made = {
        "id": "resp_0", "object": "response", "created_at": 0, "model": body["model"], "output": output,
        "status": "incomplete" if says.finish == "length" else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if says.finish == "length" else None,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    if says.tokens:
        made["usage"] = {
            "input_tokens": says.tokens[0], "output_tokens": says.tokens[1], "total_tokens": sum(says.tokens),
            "input_tokens_details": {"cached_tokens": says.cached}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
    return made


def chunks(made: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole completion as the events of a stream: the text in two parts, its end, the usage."""
    whole = made["choices"][0]
    text, calls = whole["message"]["content"], whole["message"].get("tool_calls", [])
    half = len(text or "") // 2
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": part} for part in ((text or "")[:half], (text or "")[half:])
    ]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    if whole["message"]["refusal"]:
        deltas.append({"refusal": whole["message"]["refusal"]})
    common = {"id": made["id"], "object": "chat.completion.chunk", "created": 0, "model": made["model"]}
    events = [{**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**common, "choices": [{"index": 0, "delta": {}, "finish_reason": whole["finish_reason"]}]})
    return [*events, *([{**common, "choices": [], "usage": made["usage"]}] if "usage" in made else [])]


def events(made: dict[str, Any]) -> list[dict[str, Any]]:
    """A whole response as the events of a stream."""
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**made, "output": [], "status": "in_progress"}}
    ]
    for index, item in enumerate(made["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "function_call":
            found.append(
                {"type": "response.output_item.added", "output_index": index, "item": {**item, "arguments": ""}}
            )
            found.append({"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]})
        else:
            found.append({"type": "response.output_item.added", "output_index": index, "item": {**item, "content": []}})
            for part in item["content"]:
                kind, words = (
                    ("refusal", part["refusal"]) if part["type"] == "refusal" else ("output_text", part["text"])
                )
                found.append(
                    {"type": f"response.{kind}.delta", **at, "content_index": 0, "delta": words, "logprobs": []}
                )
                found += [{"type": "response.refusal.done", **at, "content_index": 0, "refusal": words}] * (
                    kind == "refusal"
                )
        found.append({"type": "response.output_item.done", "output_index": index, "item": item})
    ended = "response.incomplete" if made["status"] == "incomplete" else "response.completed"
    found.append({"type": ended, "response": made})
    return [{**event, "sequence_number": number} for number, event in enumerate(found)]


def as_stream(made: dict[str, Any], path: str) -> str:
    listed = events(made) if path.endswith("/responses") else chunks(made)
    named = [f"event: {event['type']}\n" if "type" in event else "" for event in listed]
    ended = "" if path.endswith("/responses") else "data: [DONE]\n\n"
    return "".join(f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(named, listed, strict=True)) + ended


@contextmanager
def model_server() -> Iterator[ModelServer]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = server.next(self.path, dict(self.headers), body)
            if isinstance(step, Drops):
                if step.midway:
                    self.wfile.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{"
                    )
                    self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if isinstance(step, Drips):
                self.drip(step)
                return
            if isinstance(step, Raw):
                self.reply(200, step.body, {"content-type": step.content_type})
                return
            if isinstance(step, Fails):
                error = {"error": {"message": step.message, "type": "error", "code": step.code}}
                self.reply(step.status, json.dumps(error), {"content-type": "application/json", **step.headers})
                return
            time.sleep(step.after_s)
            made = response(body, step) if self.path.endswith("/responses") else completion(body, step)
            if body.get("stream") and step.streams:
                if self.path.endswith("/completions") and not body.get("stream_options", {}).get("include_usage"):
                    made.pop("usage", None)
                self.reply(200, as_stream(made, self.path), {"content-type": "text/event-stream"})
                return
            self.reply(200, json.dumps(made), {"content-type": "application/json"})

        def drip(self, step: Drips) -> None:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            self.close_connection = True
            try:
                self.wfile.write(head + (b"\r\n: " if step.body else b"x-slow: "))
                while not server.closing.wait(step.every_s):
                    self.wfile.write(b"z")
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                pass  # what it is there for

        def reply(self, status: int, text: str, headers: dict[str, str]) -> None:
            data = text.encode()
            try:
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client gave up waiting

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as http:
        http.daemon_threads = True
        server = ModelServer(f"http://127.0.0.1:{http.server_address[1]}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            http.shutdown()
            thread.join()
