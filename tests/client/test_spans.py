"""OpenTelemetry: `traceparent` is kept, and a span for each delivery links to its publish. The
spans are kept in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import lakequeue
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CONFIG = {
    "queues": [
        {"name": "orders", "message_type": "text", "dead_message_queue": "dead",
         "max_per_subscription_backlog": 10, "lease_period": "30s"},
        {"name": "dead", "message_type": "text"},
        {"name": "once", "message_type": "text", "semantics": "at-most-once"},
    ]
}  # fmt: skip


class Traced:
    """A connection in memory, and its ended spans."""

    def __init__(self) -> None:
        self.provider, self.kept = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.tracer = self.provider.get_tracer("application")
        self.connection = lakequeue.connect("memory://", config=CONFIG)
        self.connection.trace(self.provider)
        self.send = self.connection.producer().send

    def spans(self, kind: SpanKind = SpanKind.CONSUMER) -> list[ReadableSpan]:
        return [span for span in self.kept.get_finished_spans() if span.kind == kind]

    def deliver(self, parent: str) -> ReadableSpan:
        """The span of a delivery of a message with this traceparent."""
        headers: dict[str, str | bytes] = {"traceparent": parent}
        self.send("orders", b"x", headers=headers)
        with self.connection.consumer("orders") as consumer:
            message = consumer.receive(timeout=0)
            assert message.headers == headers
            message.ack()
        (span,) = self.spans()
        return span


@pytest.fixture
def traced() -> Iterator[Traced]:
    one = Traced()
    yield one
    one.connection.close()


def attributes(spans: list[ReadableSpan], name: str) -> list[Any]:
    return [span.attributes[name] for span in spans]


def test_a_traceparent_is_kept_without_the_extra() -> None:
    """Byte for byte, also through the dead message queue and a redrive."""
    with lakequeue.connect("memory://", config=CONFIG) as connection:
        headers: dict[str, str | bytes] = {"traceparent": PARENT, "tracestate": "vendor=1"}
        connection.producer().send("orders", b"x", headers=headers)
        with connection.consumer("orders", ack_mode="individual") as consumer:
            message = consumer.receive(timeout=0)
            assert message.headers == headers
            message.reject("no")
            connection.admin().redrive("dead")
            again = consumer.receive(timeout=0)
            assert headers.items() <= again.headers.items()


def test_each_delivery_links_to_the_publish(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("checkout") as checkout:
        receipt = traced.send("orders", b"five!")
    with traced.connection.consumer("orders", ack_mode="individual") as consumer:
        first = consumer.receive(timeout=0)
        assert first is not None
        assert traced.spans() == []  # it is in progress
        first.cancel()
        consumer.receive(timeout=0).ack()
    (publish,) = traced.spans(SpanKind.PRODUCER)
    assert publish.parent.span_id == checkout.get_span_context().span_id
    assert publish.name == "orders publish"
    deliveries, context = traced.spans(), publish.get_span_context()
    for span in deliveries:
        (link,) = span.links
        assert (link.context.span_id, link.context.trace_id) == (context.span_id, context.trace_id)
        assert span.parent is None
    assert attributes(deliveries, "messaging.message.id") == [receipt.message_id] * 2
    assert attributes(deliveries, "messaging.message.body.size") == [5, 5]
    assert attributes(deliveries, "lakequeue.outcome") == ["canceled", "acknowledged"]
    assert attributes(deliveries, "lakequeue.delivery_count") == [1, 2]


def test_a_foreign_traceparent_is_kept(traced: Traced) -> None:
    """A message with a traceparent keeps it; its deliveries link to that."""
    span = traced.deliver(PARENT)
    assert f"{span.links[0].context.span_id:016x}" == PARENT.split("-")[2]


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-0", "\x00" * 20, "é"])
def test_an_invalid_trace_context_links_to_nothing(traced: Traced, parent: str) -> None:
    assert traced.deliver(parent).links == ()


def test_spans_of_a_callback_are_children_of_the_delivery(traced: Traced) -> None:
    traced.send("orders", b"x")
    with traced.connection.consumer("orders", ack_mode="auto") as consumer:
        consumer.on_message(lambda _: traced.tracer.start_span("query").end())
    (delivery,) = traced.spans()
    (query,) = (s for s in traced.spans(SpanKind.INTERNAL) if s.name == "query")
    assert query.parent.span_id == delivery.get_span_context().span_id
    assert attributes([delivery], "lakequeue.outcome") == ["acknowledged"]


def test_every_span_ends(traced: Traced) -> None:
    """Spans of a message removed on send, one whose lease ended, and one returned by a close."""
    for queue in ("once", "orders", "orders"):
        traced.send(queue, b"x")
    once = traced.connection.consumer("once")
    assert once.receive(timeout=0) is not None
    consumer = traced.connection.consumer("orders", ack_mode="individual", max_backlog=1)
    held = consumer.receive(timeout=0)
    traced.connection.advance("31s")
    with pytest.raises(lakequeue.LeaseLost):
        held.ack()
    assert consumer.receive(timeout=0) is not None
    consumer.close()
    once.close()
    assert attributes(traced.spans(), "lakequeue.outcome") == ["removed", "lost", "lost"]


def test_missing_packages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with lakequeue.connect("memory://") as connection:
        with pytest.raises(lakequeue.ConfigError, match="opentelemetry is missing"):
            connection.trace()
