"""L12, P7: a delivery time as a moment or as a delay, of a message or of all of a producer's."""

from datetime import timedelta
from typing import Any

import pytest
from lakequeue.protocol import ConfigError
from lakequeue.state import Batch
from rules.harness import Bench, drain
from rules.steps import Steps, define, delivered, described, subscribe


def arrives_after(bench: Bench, consumer: Any) -> int | None:
    """How many seconds pass until a message comes; None: none comes within a minute."""
    for second in range(60):
        if drain(consumer):
            return second
        bench.advance("1s")
    return None


@pytest.mark.parametrize(("delay", "seconds"), [("5s", 5), (3, 3), ("0s", 0), (0, 0)])
def test_L12_a_delay(bench: Bench, delay: Any, seconds: int) -> None:
    consumer = bench.consumer()
    bench.producer.send("orders", b"{}", delay=delay)
    assert arrives_after(bench, consumer) == seconds


def test_P7_L12_a_producers_delay_counts_from_each_send(bench: Bench) -> None:
    producer = bench.connection.producer(delay="10s")
    consumer = bench.consumer()
    producer.send("orders", b"{}")
    assert arrives_after(bench, consumer) == 10
    producer.send("orders", b"{}")
    assert arrives_after(bench, consumer) == 10


def test_L12_X4_a_delay_and_a_ttl_count_from_when_kafka_took_the_message() -> None:
    """The record's time is Kafka's; this machine's clock is ten minutes ahead of it."""
    steps = Steps()
    steps.run([define(), subscribe("s")])
    sent = [("orders", b"{}", {"delay_ms": 5_000}), ("orders", b"{}", {"ttl_ms": 5_000})]
    records = steps.publish_records(sent)
    steps.now += 3_000
    out = steps.step(Batch(publishes=records))
    assert delivered(out) == [2]
    assert described(steps)["delayed"] == 1
    assert delivered(steps.tick(1_999)) == []
    assert delivered(steps.tick(1)) == [1]
    assert described(steps)["expired"] == 1


def test_L12_a_delay_is_said_as_such(bench: Bench) -> None:
    """So the client's clock does not matter: it says no moment."""
    producer = bench.connection.producer()
    bench.connection.now_ms = lambda: 0
    producer.send("orders", b"{}", delay="5s")
    assert arrives_after(bench, bench.consumer()) == 5


def test_P7_a_message_says_otherwise(bench: Bench) -> None:
    producer = bench.connection.producer(delay="10s")
    consumer = bench.consumer()
    producer.send("orders", b"{}", delay=0)
    assert arrives_after(bench, consumer) == 0
    producer.send("orders", b"{}", deliver_at=bench.connection.now() + timedelta(seconds=3))
    assert arrives_after(bench, consumer) == 3


def test_L12_one_of_both(bench: Bench) -> None:
    both = {"delay": "1s", "deliver_at": "2026-01-31T12:00:00Z"}
    for make in (lambda: bench.producer.send("orders", b"{}", **both),
                 lambda: bench.connection.producer(**both)):  # fmt: skip
        with pytest.raises(ConfigError, match="deliver_at, delay: both are given"):
            make()
