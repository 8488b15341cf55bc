"""A model server, through langchain-openai: one answer, or one clear sentence why there is none.

Structured answers go down a ladder, because servers differ: `response_format` with a JSON schema, a forced tool call,
then the schema in words. The rung that worked is remembered for each model.

Retries are ours (the client's own are off): its number of attempts is fixed while a whole wait is not, and a person
who watches should see why nothing happens.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from kernels.spec import Frozen
from nodes.options import Chat
from nodes.policies.transcript import Finish, Message, OutputMode, Reply
from nodes.policies.trim import printable
from nodes.policies.wire import CutOff, Expired, NoJsonAnswer, NotStreamed, Request, as_object, proxy_of
from nodes.roles import PolicyPaused, ToolCall
from nodes.spans import span

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI

Interface = Literal["chat", "responses"]
Tools = Sequence[dict[str, Any]]
"""Each {"type": "function", "function": {"name", "description", "parameters"}}."""
DEFAULT_BASE_URL = "https://api.openai.com/v1"
OUTPUT_MODES: tuple[OutputMode, ...] = ("json_schema", "function_calling", "text")
KEPT_CHARS = 1_000_000
"""Characters of a reply that are kept; the parser refuses a shorter one already."""

# A 400 or 422 with one of these words is about how the answer was asked for; else, about the request itself.
_SHAPE_WORDS = (
    "response_format", "json_schema", "json schema", "structured", "schema", "tool", "function", "text.format",
    "grammar", "guided", "extra_forbidden", "extra inputs", "unrecognized", "unknown parameter", "unknown field",
)  # fmt: skip


Part = Literal["usage", "stream", "effort", "limit"]
"""Parts of a request that a server may not know: the usage at a stream's end, streams, an effort, the new name of the token
limit."""
_PARTS: dict[Part, re.Pattern[str]] = {
    "usage": re.compile(r"stream_options|include_usage"),
    "stream": re.compile(r"\bstream(?:s|ed|ing)?\b"),
    "effort": re.compile(r"reasoning|effort"),
    "limit": re.compile(r"max_completion_tokens"),
}
_MOST_TOKENS = re.compile(r"(?:at most|maximum(?: value)?(?: is| of|:)?|less than or equal to|<=) *(\d{3,7})")
_PARTS_SAID: dict[Part, str] = {
    "usage": "reports no usage of streams",
    "stream": "does not stream: it is waited for without a sign of life",
    "effort": "knows no effort: it is asked without",
    "limit": "knows the limit of tokens by its old name only",
}


class Retries(Frozen):
    """How long a service that is down or busy is waited for. All times in seconds."""

    attempts: int = Field(default=6, ge=1)
    first_s: float = Field(default=1.0, ge=0)
    ceiling_s: float = Field(default=30.0, ge=0)
    """Longest wait between two attempts, unless the server names a longer one."""
    total_s: float = Field(default=900.0, ge=0)
    """Waits and failed attempts together; a server that asks to wait for longer pauses the run at once."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for the server's next byte, s; a reasoning model may think for minutes before it."""
    answer_s: float = Field(default=3600.0, gt=0)
    """Longest time for one whole answer, s, however steadily it comes."""

    @classmethod
    def of(cls, chat: Chat) -> Retries:
        asked: dict[str, Any] = {"timeout_s": chat.idle_seconds, "answer_s": chat.answer_seconds}
        return cls(**{name: seconds for name, seconds in asked.items() if seconds is not None})


class _Trouble(Exception):
    """One attempt failed. `sentence` is for the user; `again` says whether waiting may help.

    `shape`: the server does not know this way of asking for structure. `without`: what else of the request it refuses.
    `most_tokens`: the answer's limit that it names where ours is above it.
    """

    def __init__(
        self,
        sentence: str,
        *,
        again: bool,
        after_s: float | None = None,
        shape: bool = False,
        without: Part | None = None,
        most_tokens: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.sentence, self.again, self.after_s, self.shape = sentence, again, after_s, shape
        self.without, self.most_tokens = without, most_tokens


@dataclass(frozen=True)
class _Asked:
    """One question, as `Connection.ask` takes it."""

    model: str
    messages: tuple[Message, ...]
    schema: dict[str, Any] | None
    most_tokens: int
    effort: str
    tools: Tools


class NoTools(Exception):
    """The server refuses a request that offers tools. One sentence."""


class Connection:
    """Safe for several threads. Raises ValueError for an address that is none, and for a proxy that cannot be used."""

    def __init__(
        self,
        base_url: str | None,
        api_key: SecretStr,
        interface: Interface,
        retries: Retries,
        say: Callable[[str, str], None],
    ) -> None:
        self.base_url = base_url or DEFAULT_BASE_URL
        if urlsplit(self.base_url).scheme not in {"http", "https"} or not urlsplit(self.base_url).hostname:
            raise ValueError(f"the address of the model server must begin with http:// or https://: {self.base_url!r}")
        self.host = urlsplit(self.base_url).netloc.rpartition("@")[2]
        self.proxy = proxy_of(urlsplit(self.base_url).scheme, urlsplit(self.base_url).hostname or "")
        self.interface = interface
        self.retries = retries
        self._key = api_key
        self._say = say
        self._rungs: dict[str, int] = {}
        self._without: set[Part] = set()
        """Parts of a request that the server has refused."""
        self._most_tokens: dict[str, int] = {}
        """Model -> tokens of one answer that its server named as the limit."""
        self._answered = False
        """Whether the server has answered before, so that its address is known to be right."""
        self._lock = threading.Lock()

    def scrub(self, text: str) -> str:
        """Without the key. Keys shorter than 8 characters are placeholders for local servers and ordinary words."""
        key = self._key.get_secret_value()
        return text.replace(key, "[key]") if len(key) >= 8 else text

    def ask(
        self,
        model: str,
        messages: tuple[Message, ...],
        schema: dict[str, Any] | None,
        most_tokens: int,
        effort: str = "",
        tools: Tools = (),
    ) -> Reply:
        """One answer of that model. Raises PolicyPaused, one sentence without the key, where none can be had now.

        `tools`, as OpenAI describes them, may be called; raises NoTools where the server does not know them.
        """
        facts = {"gen_ai__operation__name": "chat", "gen_ai__request__model": model, "server__address": self.host}
        with span(f"chat {model}", **facts) as spent:
            reply = self._ask(_Asked(model, messages, schema, most_tokens, effort, tools))
            spent["gen_ai__usage__input_tokens"] = reply.tokens_in
            spent["gen_ai__usage__output_tokens"] = reply.tokens_out
        return reply

    def _ask(self, asked: _Asked) -> Reply:
        model, schema = asked.model, asked.schema
        with self._lock:
            rung = self._rungs.get(model, 0) if schema else OUTPUT_MODES.index("text")
        while True:
            try:
                reply = self._patiently(asked, OUTPUT_MODES[rung])
                break
            except _Trouble as trouble:
                sentence = ""
                if self._can_do_without(trouble, asked):
                    pass
                elif trouble.shape and schema and rung + 1 < len(OUTPUT_MODES):
                    rung += 1
                else:
                    sentence, refused = self.scrub(trouble.sentence), trouble.shape and bool(asked.tools)
            if sentence:
                # Outside of the handler: the original error may quote the key, and would travel as its context.
                raise NoTools(sentence) if refused else PolicyPaused(sentence)
        if schema:
            with self._lock:
                self._rungs[model] = max(rung, self._rungs.get(model, 0))
        return reply

    def lower(self, model: str, rung: OutputMode) -> None:
        """The server took a schema at that rung, and the model answered in prose: ask one rung lower from now on."""
        with self._lock:
            self._rungs[model] = max(
                self._rungs.get(model, 0), min(OUTPUT_MODES.index(rung) + 1, len(OUTPUT_MODES) - 1)
            )

    def _patiently(self, asked: _Asked, rung: OutputMode) -> Reply:
        began, attempt = time.monotonic(), 1
        self._say("asking", f"{asked.model} at {self.host}")
        while True:
            try:
                return self._once(asked, rung)
            except _Trouble as trouble:
                if not trouble.again:
                    raise
                backoff = min(self.retries.first_s * 2 ** (attempt - 1), self.retries.ceiling_s) * random.uniform(
                    0.75, 1.0
                )
                wait = backoff if trouble.after_s is None else trouble.after_s
                sentence = trouble.sentence
            passed = time.monotonic() - began
            if attempt >= self.retries.attempts or passed + wait > self.retries.total_s:
                tried = "once" if attempt == 1 else f"{attempt} times in {passed:.0f} s"
                longer = f" and asks to wait {wait:.0f} s" if wait > self.retries.total_s else ""
                raise _Trouble(f"{sentence}{longer}; tried {tried}: resume when it is back", again=False)
            self._say("waiting", self.scrub(f"{sentence}; trying again in {wait:.1f} s"))
            time.sleep(wait)
            attempt += 1

    def _can_do_without(self, trouble: _Trouble, asked: _Asked) -> bool:
        """Whether the same request may go through without what the server refuses; it is left out from now on."""
        with self._lock:
            if trouble.most_tokens is not None and trouble.most_tokens < self._most_tokens.get(
                asked.model, asked.most_tokens
            ):
                self._most_tokens[asked.model] = trouble.most_tokens
                return True
            if trouble.without is None or trouble.without in self._without:
                return False
            self._without.add(trouble.without)
        self._say("server", f"{self.host} {_PARTS_SAID[trouble.without]}")
        return True

    def _client(self, request: Request, asked: _Asked) -> ChatOpenAI:
        without, most = frozenset(self._without), asked.most_tokens
        limit = min(most, self._most_tokens.get(asked.model, most))
        return request.client(
            model=asked.model,
            base_url=self.base_url,
            api_key=self._key,
            # By itself it switches for some model names, which compatible servers may not serve.
            use_responses_api=self.interface == "responses",
            max_completion_tokens=None if "limit" in without else limit,
            extra_body={"max_tokens": limit} if "limit" in without else None,
            reasoning_effort=None if "effort" in without else asked.effort or None,
            streaming="stream" not in without,
            stream_usage="stream" not in without and "usage" not in without and self.interface == "chat",
        )

    def _once(self, asked: _Asked, rung: OutputMode) -> Reply:
        import openai

        request = Request(timeout_s=self.retries.timeout_s, total_s=self.retries.answer_s, proxied=bool(self.proxy))
        client = self._client(request, asked)
        bound: Any = client
        schema = asked.schema
        conversation = [_on_the_wire(message) for message in asked.messages]
        if schema and rung == "json_schema":
            named = {"name": schema["title"], "schema": schema["schema"], "strict": True}
            form = {"response_format": {"type": "json_schema", "json_schema": named}}
            # Past the client's own reading of it, which raises where an answer is cut off or is no JSON.
            plain = self.interface == "chat"
            bound = client.bind(extra_body={**(client.extra_body or {}), **form}) if plain else client.bind(**form)
        elif schema and rung == "function_calling":
            function = {"name": schema["title"], "description": "Gives the answer.", "parameters": schema["schema"]}
            bound = client.bind_tools([{"type": "function", "function": function}], tool_choice=schema["title"])
        elif schema:
            conversation[-1]["content"] += in_words(schema)
        elif asked.tools:
            bound = client.bind_tools(list(asked.tools))
        sent_bytes = len(json.dumps([conversation, asked.tools], ensure_ascii=False).encode())
        try:
            answer = request.answer(bound, conversation, streams=client.streaming)
        except openai.APIError as error:
            status = getattr(error, "status_code", 500)
            if request.got_page and status < 500 and status not in {401, 403, 407, 408, 429}:
                raise self._page() from None
            raise self._trouble(error, asked.model) from None
        except NoJsonAnswer:
            raise self._page() from None
        except Expired:
            raise _Trouble(
                f"the model server at {self.host} did not finish its answer within {self.retries.answer_s:g} s",
                again=True,
            ) from None
        except CutOff:
            said = f"the model server at {self.host} ended its answer before it was whole"
            raise _Trouble(said, again=True) from None
        except NotStreamed:
            said = f"the model server at {self.host} sent something that is no stream of an answer"
            raise _Trouble(said, again=False, without="stream") from None
        except (ValueError, KeyError, TypeError, IndexError) as error:
            # A 200 whose body is no completion: an error object, no choices.
            said = printable(str(error))[:160]
            raise _Trouble(
                f"the model server at {self.host} sent something that is no answer ({said})", again=True
            ) from None
        self._answered = True
        return _read(answer, rung, sent_bytes, bool(asked.tools))

    def _page(self) -> _Trouble:
        """A page where an answer should be: the address is wrong, or a proxy stands in for a server that has answered."""
        page = f"the model server at {self.host} sent a page or text instead of an answer"
        if self._answered:
            return _Trouble(page, again=True)
        return _Trouble(
            f"{page}: check OPENAI_BASE_URL, now {self.base_url} (it often ends in /v1), then resume", again=False
        )

    def _trouble(self, error: Any, model: str) -> _Trouble:
        """The sentence for an error of the client, and whether waiting may help."""
        import openai

        body = f"{error} {getattr(error, 'body', '')}".lower()
        host, said = f"the model server at {self.host}", f": {printable(self.scrub(_words(error)))[:200]}"
        if isinstance(error, openai.APITimeoutError):
            return _Trouble(f"{host} did not answer within {self.retries.timeout_s:g} s", again=True)
        if isinstance(error, openai.APIConnectionError):
            way = f", through the proxy {self.proxy}," if self.proxy else ""
            return _Trouble(f"{host}{way} cannot be reached or dropped the connection", again=True)
        if "ContextOverflow" in type(error).__name__ or "context_length_exceeded" in body:
            return _Trouble(f"the request is longer than {model} at {self.host} reads{said}", again=False)
        status = getattr(error, "status_code", None)
        if status is None:
            return _Trouble(f"{host} sent an answer that cannot be read{said}", again=True)
        if status == 401:
            return _Trouble(f"{host} refused the key (HTTP 401): check OPENAI_API_KEY, then resume", again=False)
        if status == 403:
            return _Trouble(f"{host} does not let this key use {model} (HTTP 403){said}", again=False)
        if status == 404 and "tool" in body:  # a router that has no server for such a request
            return _Trouble(f"{host} serves {model} without tools (HTTP 404){said}", again=False, shape=True)
        if status == 404:
            return _Trouble(
                f"{host} knows no model {model!r} at this address (HTTP 404): check --model and OPENAI_BASE_URL",
                again=False,
            )
        if status == 429 and "insufficient_quota" in body:
            return _Trouble(f"the account at {self.host} has no quota left (HTTP 429)", again=False)
        if status == 429:
            return _Trouble(f"{host} is busy (HTTP 429)", again=True, after_s=_retry_after(error))
        if status in {408, 409} or status >= 500:
            shape = status == 501 or (status == 500 and "tools param" in body)  # llama.cpp's server without --jinja
            return _Trouble(f"{host} failed (HTTP {status})", again=not shape, after_s=_retry_after(error), shape=shape)
        shape = status in {400, 422} and any(word in body for word in _SHAPE_WORDS)
        without = next((part for part, words in _PARTS.items() if words.search(body)), None)
        most = _MOST_TOKENS.search(body) if "token" in body else None
        return _Trouble(
            f"{host} refused the request (HTTP {status}){said}",
            again=False,
            shape=shape,
            without=without if status in {400, 422} else None,
            most_tokens=int(most[1]) if most else None,
        )


def in_words(schema: dict[str, Any]) -> str:
    """What the lowest rung adds to the request."""
    text = json.dumps(schema["schema"], separators=(",", ":"))
    return f"\n\nAnswer with one ```json block and nothing else. Its JSON must match this schema:\n{text}"


def _words(error: Any) -> str:
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(message or getattr(error, "message", "") or error).split())


def _retry_after(error: Any) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, `retry-after` in seconds or as a date; else None."""
    headers = error.response.headers
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return min(max(float(headers[name]) * unit_s, 0.0), 1e9)
        except (KeyError, ValueError):
            continue
    try:
        return max((parsedate_to_datetime(headers["retry-after"]) - datetime.now(UTC)).total_seconds(), 0.0)
    except (KeyError, ValueError, TypeError):
        return None


def _on_the_wire(message: Message) -> dict[str, Any]:
    """As langchain takes it for either interface."""
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in message.calls
        ]
    if message.role == "tool":
        said["tool_call_id"] = message.call
    return said


def _object(arguments: str) -> str:
    """Arguments as they may stand in a conversation: neither client nor servers take what is no JSON object there."""
    try:
        return arguments if isinstance(json.loads(arguments), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"


MOST_CALLS = 8
"""Tools that one answer may call; those beyond are not called, and the model is told so."""


def _called(answer: AIMessage) -> tuple[ToolCall, ...]:
    """The calls of an answer, those whose arguments are no JSON among them: the model is told so."""
    found = [(call["name"], json.dumps(call["args"], ensure_ascii=False)) for call in answer.tool_calls]
    found += [(call["name"] or "", as_object(call["args"])) for call in answer.invalid_tool_calls]
    return tuple(
        # A server may leave the id out or give one to two calls; an answer to each must find its own.
        ToolCall(id=f"call_{number}", name=_kept(name)[:64], arguments=_kept(arguments))
        for number, (name, arguments) in enumerate(found)
    )


def _read(answer: AIMessage, rung: OutputMode, sent_bytes: int, tools: bool) -> Reply:
    """Text, ending and usage of an answer from either interface."""
    text: str = str(answer.text)
    if tools:
        pass
    elif answer.tool_calls:
        text = json.dumps(answer.tool_calls[0]["args"])
    elif answer.invalid_tool_calls:
        text = answer.invalid_tool_calls[0]["args"] or ""
    facts = answer.response_metadata
    ending = facts.get("finish_reason") or (facts.get("incomplete_details") or {}).get("reason") or "stop"
    refusal = answer.additional_kwargs.get("refusal") or next(
        (b.get("refusal") for b in answer.content if isinstance(b, dict) and b.get("type") == "refusal"), None
    )
    finish: Finish = "stop"
    calls = _called(answer) if tools else ()
    if refusal:
        text, finish = str(refusal), "refused"
    elif ending in {"length", "max_output_tokens"}:
        finish, calls = "length", ()  # the client mends what is left of their arguments, and half a source is none
    elif ending == "content_filter":
        finish = "filtered"
    usage = answer.usage_metadata
    cached = (usage.get("input_token_details") or {}).get("cache_read") or 0 if usage else 0
    if usage:
        counts = (max(usage["input_tokens"], 0), max(usage["output_tokens"], 0))
    else:
        said_bytes = len(text.encode(errors="replace")) + sum(len(call.arguments.encode()) for call in calls)
        counts = (estimate_tokens(sent_bytes), estimate_tokens(said_bytes))
    return Reply(
        text=_kept(text),
        calls=calls[:MOST_CALLS],
        left_out=len(calls[MOST_CALLS:]),
        finish=finish,
        rung=rung,
        tokens_in=counts[0],
        tokens_out=counts[1],
        estimated=not usage,
        tokens_cached=max(cached, 0),
    )


def _kept(text: str) -> str:
    """Without lone surrogates, which JSON may hold and no file can."""
    return text[:KEPT_CHARS].encode(errors="replace").decode()


def estimate_tokens(size_bytes: int) -> int:
    """Source code runs to 3 to 4 bytes a token; 3 errs towards too many."""
    return -(-size_bytes // 3)
