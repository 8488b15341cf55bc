"""One request on the wire: streamed, with an idle limit and a bound in all.

A model may think for minutes before its first word, and a server that is dead says nothing either: streamed, the first sends
something now and then. A bound on the time between two bytes alone is none, since a server that sends a byte a minute keeps
it for ever; so the whole exchange, headers too, runs in an event loop of its own and is cancelled where it takes too long.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import ipaddress
import json
import os
import ssl
import urllib.request
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI


class Expired(Exception):
    """The answer was not whole within the bound."""


class CutOff(Exception):
    """The stream ended without a reason and without its end mark, or by an error: what came is no whole answer."""


class NotStreamed(Exception):
    """The server took a request for a stream and answered with something else."""


class NoJsonAnswer(Exception):
    """The server sent a page or text where an answer should be."""


@functools.cache
def _certificates() -> ssl.SSLContext:
    import certifi

    own = os.environ.get("SSL_CERT_FILE")  # of a company's own server
    return ssl.create_default_context(cafile=own or certifi.where())  # 30 ms to make


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(scheme: str, host: str) -> str:
    """`VARIABLE=address` of the proxy that the environment names for a server, without its password; "" for none.

    A loopback server is never asked through a proxy. Raises ValueError where the proxy needs what is not installed, or is no address.
    """
    named = urllib.request.getproxies_environment()
    kind = next((kind for kind in (scheme, "all") if named.get(kind)), "")
    if not kind or is_loopback(host) or urllib.request.proxy_bypass_environment(host, named):  # type: ignore[attr-defined]  # typeshed lacks it
        return ""
    address = named[kind]
    scheme_of_proxy, _, rest = address.rpartition("://")
    said = f"{kind.upper()}_PROXY={scheme_of_proxy}{'://' if scheme_of_proxy else ''}{rest.rpartition('@')[2]}"
    if scheme_of_proxy.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ValueError(f"{said} is a SOCKS proxy, which needs the package socksio: pip install socksio, or unset it")
    import httpx

    try:
        httpx.Proxy(address if scheme_of_proxy else f"http://{address}")
    except (ValueError, httpx.InvalidURL):
        raise ValueError(
            f"{said} is no address of a proxy, which begins with http://, https:// or socks5://: mend or unset it"
        ) from None
    return said


@functools.cache
def _unused() -> Any:
    """What ChatOpenAI would make anew for each request, certificates and all, to answer without an event loop."""
    import openai

    return openai.DefaultHttpxClient(verify=_certificates(), trust_env=False)


@functools.cache
def _model() -> type[ChatOpenAI]:
    """The client, which drops a refusal from a stream, with it, and which takes a tool's arguments in any form."""
    from langchain_openai import ChatOpenAI

    class Model(ChatOpenAI):
        def _create_chat_result(self, response: Any, *rest: Any) -> Any:
            made = response if isinstance(response, dict) else response.model_dump(warnings=False)
            for choice in made.get("choices") or ():
                for call in choice["message"].get("tool_calls") or ():
                    call["function"]["arguments"] = as_object(call["function"]["arguments"])
            return super()._create_chat_result(made, *rest)

        def _convert_chunk_to_generation_chunk(self, chunk: dict, *rest: Any) -> Any:
            made = super()._convert_chunk_to_generation_chunk(chunk, *rest)
            delta = next((choice.get("delta") for choice in chunk.get("choices") or ()), None)
            if made is not None and delta and delta.get("refusal"):
                made.message.additional_kwargs["refusal"] = delta["refusal"]
            return made

    return Model


def as_object(arguments: Any) -> str:
    """A tool's arguments as the text of a JSON object, though they came as an object, as text in text, or as another value; what is
    no JSON stays as it is."""
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        found = json.loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        return str(arguments)
    return json.dumps(
        found if isinstance(found, dict) else {"arguments": found} if found is not None else {}, ensure_ascii=False
    )


class Request:
    """One request of a client of its own, since connections do not outlive the event loop that they were opened in."""

    def __init__(self, *, timeout_s: float, total_s: float, proxied: bool) -> None:
        import openai

        self.total_s = total_s
        self.timeout = openai.Timeout(timeout_s, connect=min(10.0, timeout_s))
        self._kind, self._end = "", b""
        self._http = openai.DefaultAsyncHttpxClient(
            timeout=self.timeout, verify=_certificates(), trust_env=proxied, event_hooks={"response": [self._look]}
        )

    async def _look(self, response: Any) -> None:
        self._kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        read = response.aiter_bytes

        async def watched(*how: Any) -> AsyncIterator[bytes]:
            async for part in read(*how):
                self._end = (self._end + part)[-64:]
                yield part

        response.aiter_bytes = watched

    @property
    def got_page(self) -> bool:
        """Whether the last response was a page, whatever its status."""
        return self._kind == "text/html"

    def client(self, **settings: Any) -> ChatOpenAI:
        return _model()(
            http_async_client=self._http,
            http_client=_unused(),
            http_socket_options=(),  # else it says that it overrides the environment's proxies, which `proxied` decides
            timeout=self.timeout,
            max_retries=0,
            # Of silence between words that the server fills with signs of life; `total_s` bounds it.
            stream_chunk_timeout=None,
            **settings,
        )

    def answer(self, asked: Any, conversation: list[Any], *, streams: bool) -> AIMessage:
        """What the client, bound to a form or not, is answered. Raises what openai raises, and the errors of this file."""
        return asyncio.run(self._answer(asked, conversation, streams))

    def _whole(self, answer: AIMessage, streams: bool) -> AIMessage:
        """The answer. Raises CutOff where its stream only ended: half a source may look like a whole one."""
        facts = answer.response_metadata
        ended = facts.get("finish_reason") or facts.get("status") or (b"[DONE]" in self._end)
        if facts.get("finish_reason") == "error" or (streams and self._kind == "text/event-stream" and not ended):
            raise CutOff
        return answer

    async def _answer(self, asked: Any, conversation: list[Any], streams: bool) -> AIMessage:
        try:
            async with self._http, asyncio.timeout(self.total_s):
                return self._whole(await asked.ainvoke(conversation), streams)
        except TimeoutError:
            raise Expired from None
        except AttributeError:  # the client gives text as it is
            raise NoJsonAnswer from None
        except (ValueError, KeyError, TypeError, IndexError):
            if self.got_page:
                raise NoJsonAnswer from None
            if streams and self._kind != "text/event-stream":
                raise NotStreamed from None
            raise
