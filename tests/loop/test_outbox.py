"""Records that Kafka refuses for good: clients name topics, so they must not fill the log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from lakequeue.protocol.wire import WireRecord
from lakequeue.sinks import outbox
from lakequeue.sinks.outbox import NARROW_S, NEWS_TOPICS_MAX, Outbox

INSTRUCTIONS = "broker-0.instructions"


class Refusing:
    """Kafka without any topic but the broker's instructions."""

    def __init__(self, settings: object) -> None:
        self.took: list[str] = []

    def produce(self, topic: str, *_: Any, on_delivery: Any, **__: Any) -> None:
        if topic != INSTRUCTIONS:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
        self.took.append(topic)
        on_delivery(None, None)

    def poll(self, timeout: float) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(outbox, "Producer", Refusing)
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def refuse(writer: Outbox, step: int, *topics: str) -> None:
    writer.send(step, [WireRecord(topic, 0, None, b"x", None) for topic in topics])
    assert writer.acked() is None, "nothing waits for a refused record"


def test_a_topic_that_is_not_there_is_told_once_a_minute(clock: list[float]) -> None:
    writer = Outbox({}, lambda: False, INSTRUCTIONS)
    for step in range(3):
        refuse(writer, step, *["default.deliveries.mine"] * 500)
    assert (writer.refused, len(writer.notes)) == (1_500, 1)
    assert writer._wide.took == [INSTRUCTIONS]  # type: ignore[attr-defined]
    clock[0] += NARROW_S
    refuse(writer, 3, "default.deliveries.mine", "default.deliveries.other")
    assert len(writer.notes) == 3


def test_topics_without_end_fill_nothing(clock: list[float]) -> None:
    writer = Outbox({}, lambda: False, INSTRUCTIONS)
    refuse(writer, 0, *[f"default.deliveries.{n}" for n in range(3 * NEWS_TOPICS_MAX)])
    assert len(writer.notes) == len(writer._logged._until) == NEWS_TOPICS_MAX
    clock[0] += NARROW_S
    refuse(writer, 1, "default.deliveries.one-more")
    assert len(writer._logged._until) == 1
