"""Kafka alone: the same messages with the same client library, and no engine.

Two topics, one for each consumer, because Kafka shares out partitions and not messages. A message
is a record, it crosses the broker once (with an engine twice), and nobody acknowledges it. The
engine's figures are compared with this.
"""

from __future__ import annotations

import time
from typing import Any

from ..client.kafka import open_kafka
from ..streaming.kafka.topics_admin import ensure_topics
from .harness import PAYLOAD, Say, broker, percentile, ready_processes
from .steady import at_rate, made_at

TOPICS = ("raw-0", "raw-1")
WARM_UP_S = 3
WARM_UP = 20_000
IDLE_S = 10.0


def _consume(address: str, topic: str, count: int, results: Any) -> None:
    """Receive so many records of a topic. Puts when it ended, and for each record when it was sent
    and how long it took."""
    transport = open_kafka(address, "bench-raw")
    transport.listen(topic, 0)
    results.put("ready")
    taken: list[tuple[float, float]] = []
    while len(taken) < count and (records := transport.poll(IDLE_S)):
        now = time.time()
        for record in records:
            sent = made_at(record.value or b"")
            taken.append((sent, now - sent))
    results.put((time.time(), taken))
    transport.close()


class _Sender:
    """Sends to the topics in turn."""

    def __init__(self, address: str) -> None:
        self._transport = open_kafka(address, "bench-raw")
        self._count = 0

    def __call__(self, payload: bytes) -> None:
        topic = TOPICS[self._count % len(TOPICS)]
        self._transport.publish(topic, payload, None, [], 0)
        self._count += 1

    def close(self) -> None:
        self._transport.flush(60)
        self._transport.close()


def _consumers(address: str, count: int) -> Any:
    each = [(address, topic, count // len(TOPICS)) for topic in TOPICS]
    return ready_processes(_consume, *each)[1]


def latency(rate: int, seconds: int, say: Say) -> dict[str, Any]:
    """Send to receive at a steady rate."""
    say("Kafka alone")
    with broker() as (kafka, _):
        address = kafka.bootstrap_servers
        ensure_topics(address, [], TOPICS)
        results = _consumers(address, rate * (WARM_UP_S + seconds))
        sender = _Sender(address)
        begin = at_rate(sender, rate, WARM_UP_S + seconds) + WARM_UP_S
        sender.close()
        taken: list[float] = []
        for _ in TOPICS:
            _, found = results.get(timeout=60)
            taken += [t * 1000 for sent, t in found if sent >= begin]
    return {"kafka_p50_ms": percentile(taken, 50), "kafka_p99_ms": percentile(taken, 99)}


def throughput(messages: int, say: Say) -> dict[str, Any]:
    """Messages a second from the first send until the last is received."""
    say("Kafka alone")
    with broker() as (kafka, _):
        address = kafka.bootstrap_servers
        ensure_topics(address, [], TOPICS)
        seconds = 0.0
        for count in (WARM_UP, messages):
            results = _consumers(address, count)
            sender = _Sender(address)
            begin = time.time()
            for _ in range(count):
                sender(PAYLOAD)
            sender.close()
            seconds = max(results.get(timeout=60)[0] for _ in TOPICS) - begin
    return {"kafka_msgs_s": messages / seconds}
