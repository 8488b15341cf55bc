"""OpenTelemetry spans of a run, its nodes and its model calls, where that is installed and an exporter is named.

`pip install -e '.[otel]'` and OTEL_EXPORTER_OTLP_ENDPOINT; without either nothing is imported and nothing is sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernels.extras import install

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_provider: Any = None


class SpansMissing(Exception):
    """Spans are asked for by the environment, and their packages are not here; one sentence says what to install."""


@contextmanager
def exporting() -> Iterator[None]:
    """Send what is spanned inside to the collector that the environment names. Raises SpansMissing."""
    global _provider
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SpansMissing(
            "OTEL_EXPORTER_OTLP_ENDPOINT asks for OpenTelemetry spans, and its packages are not installed: "
            f"in the checkout: {install('otel')}; or unset it"
        ) from None
    name = os.environ.get("OTEL_SERVICE_NAME", "astrolabe")
    _provider = TracerProvider(resource=Resource.create({"service.name": name}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield
    finally:
        _provider.shutdown()  # sends what is still kept
        _provider = None


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[dict[str, str | int | float]]:
    """A span of that name; what is put into the dict by its end becomes attributes too. `__` in a name is a `.`."""
    more: dict[str, str | int | float] = {}
    if _provider is None:
        yield more
        return
    with _provider.get_tracer("astrolabe").start_as_current_span(name) as made:
        made.set_attributes({key.replace("__", "."): value for key, value in attributes.items()})
        try:
            yield more
        finally:
            made.set_attributes({key.replace("__", "."): value for key, value in more.items()})
