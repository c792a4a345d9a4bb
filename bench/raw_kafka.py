"""Kafka alone: the same messages with the same client library, without an engine.

Two topics, one for each consumer, because Kafka distributes partitions, not messages. A message is
a record, it passes the broker once (with an engine twice), and is not acknowledged. The engine's
figures are compared with this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
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
    """Receive this many records of a topic. Puts the end time, and for each record when it was sent
    and its latency."""
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


@contextmanager
def _kafka() -> Iterator[str]:
    """A broker with the topics; yields its address."""
    with broker() as (kafka, _):
        ensure_topics(kafka.bootstrap_servers, [], TOPICS)
        yield kafka.bootstrap_servers


@contextmanager
def _sender(address: str) -> Iterator[Callable[[bytes], None]]:
    """A function that sends to the topics in turn. At the end, Kafka has everything."""
    transport, turn = open_kafka(address, "bench-raw"), cycle(TOPICS)
    yield lambda payload: transport.publish(next(turn), payload, None, [], 0)
    transport.flush(60)
    transport.close()


def _consumers(address: str, count: int) -> Any:
    each = [(address, topic, count // len(TOPICS)) for topic in TOPICS]
    return ready_processes(_consume, *each)[1]


def latency(rate: int, seconds: int, say: Say) -> dict[str, Any]:
    """Send to receive at a steady rate."""
    say("Kafka alone")
    with _kafka() as address:
        results = _consumers(address, rate * (WARM_UP_S + seconds))
        with _sender(address) as send:
            begin = at_rate(send, rate, WARM_UP_S + seconds) + WARM_UP_S
        taken: list[float] = []
        for _ in TOPICS:
            _, found = results.get(timeout=60)
            taken += [t * 1000 for sent, t in found if sent >= begin]
    return {"kafka_p50_ms": percentile(taken, 50), "kafka_p99_ms": percentile(taken, 99)}


def throughput(messages: int, say: Say) -> dict[str, Any]:
    """Messages a second from the first send until the last is received."""
    say("Kafka alone")
    with _kafka() as address:
        seconds = 0.0
        for count in (WARM_UP, messages):
            results = _consumers(address, count)
            with _sender(address) as send:
                begin = time.time()
                for _ in range(count):
                    send(PAYLOAD)
            seconds = max(results.get(timeout=60)[0] for _ in TOPICS) - begin
    return {"kafka_msgs_s": messages / seconds}
