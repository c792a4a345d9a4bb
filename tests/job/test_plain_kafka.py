"""A queue used with only a Kafka client: docs/reference/protocol.md is enough. (The example for it
runs in `tests/docs/test_commands_run.py`.)"""

from __future__ import annotations

import lakequeue
import pytest
from job.conftest import Job
from job.processes import until
from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.job


def test_a_plain_producer_feeds_a_queue(job: Job, connection: lakequeue.Connection) -> None:
    """Without a header or key of ours; its own key is kept."""
    producer = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    producer.send("plain", b'{"n": 1}').get(30)
    producer.send("plain", b"\x00\xff", key=b"k").get(30)
    producer.close()
    found: list[lakequeue.Message] = []
    with connection.consumer("plain", ack_mode="auto", max_backlog=10) as consumer:
        while len(found) < 2:
            found.append(until(lambda: consumer.receive(1.0), 30, "a plain record's delivery"))
    assert [m.payload for m in found] == [b'{"n": 1}', b"\x00\xff"]
    assert [m.key for m in found] == [None, b"k"]
    assert [m.headers for m in found] == [{}, {}]
    assert [m.delivery_count for m in found] == [1, 1]


def test_Q2_a_topic_created_later_is_read(job: Job, connection: lakequeue.Connection) -> None:
    """It was created after the engine's start; the expression is one that Java cannot read."""
    producer = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    producer.send("late-1", b"in time").get(30)
    producer.close()
    with connection.consumer("late", ack_mode="auto") as consumer:
        found = until(lambda: consumer.receive(1.0), 60, "a record of a topic that was made late")
    assert found.payload == b"in time"
    there = KafkaConsumer(bootstrap_servers=job.kafka.bootstrap_servers).topics()
    assert {"plain", "late-1", "default.publish"} <= there
    assert not there & {"clock", "late"}, "nobody creates a topic for a queue"
