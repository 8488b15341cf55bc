"""Every exchange with a model, one JSON line each in `runs/<id>/transcript.jsonl`: record, ledger and cache.

An answer is named by the hash of its question, and is on the disk before anybody sees it. A run that was killed and
resumed asks the same question, finds the answer here, and pays nothing. The report reads the same file, and the
replay policy plays it back.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field, ValidationError

from harness.store import digest
from kernels.spec import Frozen
from nodes.options import ROLES, Role
from nodes.roles import ToolCall, Usage

Finish = Literal["stop", "length", "refused", "filtered"]
"""How an answer ended: whole, cut off at its token limit, refused by the model, withheld by the server's filter."""
OutputMode = Literal["json_schema", "function_calling", "text"]
"""How a structured answer was asked for: by response_format, by a forced tool call, or in words."""


class Message(Frozen):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    """Tools that an assistant's message calls."""
    call: str = ""
    """Id of the call that a tool's message answers."""

    @property
    def parts(self) -> tuple[str, ...]:
        """What a hash of it is made of."""
        called = [part for call in self.calls for part in (call.id, call.name, call.arguments)]
        return (self.role, self.content, *called, *([self.call] if self.call else []))


class Question(Frozen):
    """One request to a model, before it is known which server answers it and how."""

    role: Role
    messages: tuple[Message, ...]
    """Messages that were sent; for a later turn of a conversation only what was not said before."""
    after: str = ""
    """Name of the turn before, which stands for all earlier ones, in a conversation with tools."""
    wants: str
    """Form of the answer: the JSON schema as text, or the name of a text format."""
    ask: int = 0
    """0, then 1, 2 where the answer before did not parse."""
    facts: dict[str, str] = Field(default_factory=dict)
    """Facts about the question, without anything measured: `step`, `kernel`, `device`, `round`, `plan`, `source` ..."""
    base: str = Field(default="", exclude=True)
    """The source that an answer's edits are made to."""
    times: int = Field(default=1, exclude=True)
    """Factor on the role's limit of tokens, raised where the answer before was cut off."""

    def key(self, model: str) -> str:
        said = [part for message in self.messages for part in message.parts]
        said += [self.after] if self.after else []
        return digest("exchange 1", self.role, model, self.wants, str(self.ask), *said)


class Reply(Frozen):
    text: str
    calls: tuple[ToolCall, ...] = ()
    left_out: int = 0
    """Calls beyond those that one answer may make."""
    made: str = ""
    """The whole file that the answer's edits came to, which may be played back on another source."""
    finish: Finish = "stop"
    rung: OutputMode = "text"
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    """Tokens of `tokens_in` that the server says it had cached from earlier requests."""
    estimated: bool = False
    """The server reported no usage; the token counts are an estimate from the bytes."""


class Exchange(Frozen):
    """One line of the transcript."""

    key: str
    question: Question
    model: str
    reply: Reply
    usage: Usage
    """Usage by this answer; zero for one that was replayed."""
    seconds: float = 0.0
    at: str = ""
    """UTC, ISO 8601."""
    replayed_from: str = ""
    """The key of the exchange, in another run's transcript, whose answer this is."""


class TranscriptDamaged(Exception):
    """A line before the last is not an exchange: the file was edited or is none of ours."""


class Transcript:
    """Append-only; safe for several threads, and for several objects on one file.

    A last line that a kill left half written is no exchange; it is cut off before the next append.
    Raises TranscriptDamaged where any other line does not parse.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._found: dict[str, Exchange] = {}
        self._torn: tuple[int, int] | None = None
        """(where a last line begins that has its newline and does not parse, the file's size then), in bytes."""
        self._read()

    def _read(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data.split(b"\n")
        begins = 0
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn or empty
            try:
                exchange = Exchange.model_validate_json(line)
            except ValidationError as error:
                if number == len(lines) - 1 and not lines[-1]:
                    self._torn = (begins, len(data))  # a power cut may keep the newline and lose what was before it
                    break
                where = error.errors()[0]
                field = ".".join(map(str, where["loc"]))
                raise TranscriptDamaged(
                    f"{self.path}: line {number} is not an exchange ({field}: {where['msg']})"
                ) from None
            self._found[exchange.key] = exchange
            begins += len(line) + 1

    def find(self, key: str) -> Exchange | None:
        with self._lock:
            return self._found.get(key)

    def exchanges(self) -> tuple[Exchange, ...]:
        """In the order in which they were recorded."""
        with self._lock:
            return tuple(self._found.values())

    def usage(self) -> dict[Role, Usage]:
        """What all recorded answers have cost, by role. Never too little: an answer is here before it is used."""
        spent: dict[Role, Usage] = {}
        for exchange in self.exchanges():
            role = exchange.question.role
            spent[role] = spent.get(role, Usage()).plus(exchange.usage)
        return {role: spent[role] for role in ROLES if role in spent}

    def append(self, exchange: Exchange) -> None:
        """Durable when this returns; a key that is there already is left alone. Raises OSError on a full disk."""
        line = (json.dumps(exchange.model_dump(mode="json"), ensure_ascii=False) + "\n").encode()
        with self._lock:
            if exchange.key in self._found:
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._mend(file)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if new:  # the file's own name must survive a power cut too
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            self._found[exchange.key] = exchange

    def _mend(self, file: BinaryIO) -> None:
        """Cut off a last line that a kill, a power cut or a full disk left half written."""
        size = file.seek(0, os.SEEK_END)
        if self._torn and size == self._torn[1]:
            size = file.truncate(self._torn[0])
        self._torn = None
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
