"""OpenTelemetry: a span for each publish and each delivery, and a link between them (extra `otel`).

A message carries its origin in the header `traceparent` (W3C Trace Context). The engine does not
read it, so it survives moves, the dead message queue, redrives, bridges and replays. A queue is not
a call: the publisher has gone on long before the delivery, and there may be several deliveries. So
a delivery's span *links* to the publish and is not its child. It ends when the application has
settled or lost the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..protocol import ConfigError
from ..protocol.bounds import shown
from .message import Message

NAME = "lakequeue"
PARENT, STATE = "traceparent", "tracestate"
Headers = Mapping[str, str | bytes]


class Spans:
    """The spans of one connection. provider: a TracerProvider; None for the process's. Raises
    ConfigError if OpenTelemetry is not installed."""

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                f"trace: needs Python packages ({error.name} is missing): "
                "pip install opentelemetry-api opentelemetry-sdk"
            ) from error
        if provider is not None and not callable(getattr(provider, "get_tracer", None)):
            raise ConfigError(f"tracer_provider: {shown(provider)} – allowed is a TracerProvider")
        self._trace = trace
        self._tracer = trace.get_tracer(NAME, tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def published(self, destination: str, headers: Headers | None) -> dict[str, str | bytes]:
        """Record a publish; returns the message's headers. A message that already has a
        `traceparent` keeps it."""
        kept = dict(headers or {})
        with self._tracer.start_as_current_span(
            f"{destination} publish", self._context(kept) if PARENT in kept else None,
            kind=self._trace.SpanKind.PRODUCER, attributes=_attributes(destination, "publish"),
        ):  # fmt: skip
            if PARENT not in kept:
                carrier: dict[str, str] = {}
                self._propagator.inject(carrier)
                kept |= carrier
        return kept

    def begin(self, message: Message, tracked: bool) -> None:
        """A message is handed over. tracked: the engine waits for it to be settled."""
        sent = self._trace.get_current_span(self._context(message.headers)).get_span_context()
        links = [self._trace.Link(sent)] if sent.is_valid else []
        attributes = _attributes(message.queue, "process") | {
            "messaging.message.id": message.id,
            "messaging.message.body.size": len(message.payload),
            "lakequeue.delivery_count": message.delivery_count,
        }
        message.span = self._tracer.start_span(
            f"{message.queue} process", kind=self._trace.SpanKind.CONSUMER, links=links,
            attributes=attributes,
        )  # fmt: skip
        if not tracked:
            message.end_span("removed")

    def current(self, message: Message) -> AbstractContextManager[Any]:
        """Make the delivery's span current, so that a callback's spans are its children."""
        if message.span is None:
            return nullcontext()
        return self._trace.use_span(message.span, end_on_exit=False)

    def _context(self, headers: Headers) -> Any:
        carrier = {name: _text(headers[name]) for name in (PARENT, STATE) if name in headers}
        return self._propagator.extract(carrier)  # which ignores what is no trace context


def _attributes(destination: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": NAME,
        "messaging.destination.name": destination,
        "messaging.operation.type": operation,
    }


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
