"""Records of other programs on a captured topic: aborted ones are not delivered in micro-batches
(in the loop: `tests/loop/test_gaps.py`); a time in micro- or nanoseconds means now (S1, L12). And
headers that are too large for a topic."""

from __future__ import annotations

import json
import time

import lakequeue
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from job.conftest import Job
from job.processes import SLOWER, until, write_at
from lakequeue.protocol.errors import Rejected

pytestmark = pytest.mark.job

TOPIC = "plain"


def received(connection: lakequeue.Connection, payload: bytes) -> list[lakequeue.Message]:
    """All deliveries, up to this message."""
    found: list[lakequeue.Message] = []
    with connection.consumer(TOPIC, ack_mode="auto") as consumer:

        def more() -> bool:
            message = consumer.receive(1.0)
            found.extend([message] if message is not None else [])
            return message is not None and message.payload == payload

        until(more, 60, f"{payload!r} is delivered")
    return found


def configure(job: Job, topic: str, key: str, value: int) -> None:
    admin = AdminClient({"bootstrap.servers": job.kafka.bootstrap_servers})
    entry = ConfigEntry(key, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(90)


@pytest.mark.usefixtures("micro_batches")
def test_S1_aborted_records_are_not_delivered(job: Job) -> None:
    settings = {"bootstrap.servers": job.kafka.bootstrap_servers, "transactional.id": "foreign-in"}
    foreign = Producer(settings)
    foreign.init_transactions(90)
    for payload, end in (
        (b'{"tx": 1}', foreign.commit_transaction),
        (b'{"tx": "taken back"}', foreign.abort_transaction),
        (b'{"tx": 2}', foreign.commit_transaction),
    ):
        foreign.begin_transaction()
        foreign.produce(TOPIC, payload, partition=0)
        foreign.flush(90)
        end(90)
    with job.connect() as connection:
        found = [m.payload for m in received(connection, b'{"tx": 2}')]
    assert found == [b'{"tx": 1}', b'{"tx": 2}']


def test_L12_timestamps_outside_the_calendar_mean_now(job: Job) -> None:
    """Micro- and nanoseconds, and the largest value."""
    # As every Kafka before 4.0 is by default.
    configure(job, TOPIC, "message.timestamp.after.max.ms", 2**63 - 1)
    producer = Producer({"bootstrap.servers": job.kafka.bootstrap_servers})
    odd = (int(time.time() * 1e6), int(time.time() * 1e9), 2**63 - 1)
    payloads = [json.dumps({"time": one}).encode() for one in odd]
    for one, payload in zip(odd, payloads, strict=True):
        write_at(producer, TOPIC, payload, one)
    with job.connect() as connection:
        found = received(connection, payloads[-1])
        assert [m.payload for m in found] == payloads
        for message in found:
            assert message.published_at is not None
            assert abs((message.published_at - connection.now()).total_seconds()) < 90 * SLOWER


def test_S3_headers_that_fit_no_delivery_are_refused(job: Job) -> None:
    with job.connect() as connection:
        connection.admin().define({"name": "heavy", "message_type": "binary"})
        producer = connection.producer()
        with pytest.raises(Rejected) as refused:
            producer.send("heavy", b"x", headers={"stack": b"s" * 9_500_000})
        assert refused.value.reason == "message_too_large"
        producer.send("heavy", b"x", headers={"stack": b"s" * 8_700_000})
        with connection.consumer("heavy", ack_mode="auto") as consumer:
            assert until(lambda: consumer.receive(1.0), 60, "a large one").payload == b"x"
