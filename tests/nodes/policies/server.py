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


class ModelServer:
    def __init__(self, address: str) -> None:
        self.base_url = f"{address}/v1"
        self.script: list[Says | Fails | Raw | Drops] = []
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Says] | None = None
        """In the script's place: an answer by the request's body."""
        self.lock = threading.Lock()

    def next(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Says | Fails | Raw | Drops:
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
            "prompt_tokens": says.tokens[0], "completion_tokens": says.tokens[1], "total_tokens": sum(says.tokens)
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
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
    return made


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
            if isinstance(step, Raw):
                self.reply(200, step.body, {"content-type": step.content_type})
                return
            if isinstance(step, Fails):
                error = {"error": {"message": step.message, "type": "error", "code": step.code}}
                self.reply(step.status, json.dumps(error), {"content-type": "application/json", **step.headers})
                return
            time.sleep(step.after_s)
            made = response(body, step) if self.path.endswith("/responses") else completion(body, step)
            self.reply(200, json.dumps(made), {"content-type": "application/json"})

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
            http.shutdown()
            thread.join()
