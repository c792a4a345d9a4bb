"""Records of any bytes on any topic: the job continues, and each is in `default.rejected`. It also
continues after well-formed records that cannot be answered. (Thousands of both, in memory:
`tests/fuzz`.)"""

from __future__ import annotations

import json
import random

import lakequeue
import pytest
from job.conftest import Job
from job.crafted import NoUtf8
from job.processes import until
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

pytestmark = pytest.mark.job

COMMANDS, PUBLISH, REJECTED = "default.commands", "default.publish", "default.rejected"
PLACE = TopicPartition(REJECTED, 0)
NOISE = random.Random(7).randbytes
GOOD = b'{"good": true}'
Headers = list[tuple[str, bytes]]


def command(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def lq(**fields: object) -> Headers:
    return [("lq", json.dumps(fields).encode())]


BAD: dict[str, tuple[str, bytes | None, Headers]] = {
    "command_of_random_bytes": (COMMANDS, NOISE(300), []),
    "command_empty": (COMMANDS, b"", []),
    "command_null": (COMMANDS, None, []),
    "command_of_5_MB": (COMMANDS, NOISE(5_000_000), []),
    "command_broken_json": (COMMANDS, b'{"command": "ack", ', []),
    "command_deep_json": (COMMANDS, b"[" * 100_000, []),
    "command_a_list": (COMMANDS, b"[1, 2]", []),
    "command_unknown": (COMMANDS, command(command="explode"), []),
    "command_unknown_field": (COMMANDS, command(command="tick", when="now"), []),
    "command_wrong_type": (COMMANDS, command(command="ack", queue=7), []),
    "command_missing_field": (COMMANDS, command(command="subscribe", queue="bad"), []),
    "command_not_utf8": (COMMANDS, b'{"command": "delete", "queue": "\xff\xfe"}', []),
    "engines_configure": (COMMANDS, command(command="configure", system={}), []),
    "engines_peers": (COMMANDS, command(command="peers", brokers={"broker-0": 0, "x": 1}), []),
    "engines_begin_again": (COMMANDS, command(command="begin_again", queue="bad"), []),
    "publish_without_header": (PUBLISH, GOOD, []),
    "publish_random_without_header": (PUBLISH, NOISE(1000), []),
    "publish_5_MB_without_header": (PUBLISH, NOISE(5_000_000), []),
    "publish_null_without_header": (PUBLISH, None, []),
    "publish_header_random": (PUBLISH, GOOD, [("lq", NOISE(50))]),
    "publish_header_empty": (PUBLISH, GOOD, [("lq", b"")]),
    "publish_header_broken_json": (PUBLISH, GOOD, [("lq", b'{"to": "bad"')]),
    "publish_header_a_number": (PUBLISH, GOOD, [("lq", b"12")]),
    "publish_header_no_destination": (PUBLISH, GOOD, lq(priority=3)),
    "publish_header_wrong_type": (PUBLISH, GOOD, lq(to="bad", ttl_ms="soon")),
    "publish_header_priority_range": (PUBLISH, GOOD, lq(to="bad", priority=256)),
    "publish_header_negative_ttl": (PUBLISH, GOOD, lq(to="bad", ttl_ms=-1)),
    "publish_header_huge_number": (PUBLISH, GOOD, lq(to="bad", ttl_ms=10**30)),
    "publish_header_sequence_zero": (PUBLISH, GOOD, lq(to="bad", producer="p", seq=0)),
    "underlying_header_random": ("bad", NOISE(100), [("lq", NOISE(50))]),
    "underlying_header_wrong_type": ("bad", GOOD, lq(priority="high")),
    "publish_name_not_utf8": (PUBLISH, GOOD, [*lq(to="bad"), (NoUtf8(), b"1")]),
    "underlying_name_not_utf8": ("bad", GOOD, [(NoUtf8(), b"1")]),
    "underlying_name_replaced": ("bad", GOOD, [("\ufffd", b"1")]),
    "command_name_not_utf8": (COMMANDS, NOISE(100), [(NoUtf8(), b"1")]),
}


def reply_to(topic: str, partition: int) -> bytes:
    return command(command="queues", reply={"topic": topic, "partition": partition, "request": "x"})


# Each of these made the engine's query fail in every attempt, restarts included.
UNANSWERABLE: dict[str, tuple[str, bytes, Headers]] = {
    "plain_record_with_headers_of_its_own": ("bad", b"{}", [("colour", b"blue")]),
    "publish_with_headers_and_no_lq": (PUBLISH, b"{}", [("colour", b"blue")]),
    "command_with_headers": (COMMANDS, command(command="tick"), [("trace", b"1")]),
    "reply_to_a_partition_that_is_not_there": (COMMANDS, reply_to("default.deliveries", 99), []),
    "reply_to_a_topic_that_is_not_there": (COMMANDS, reply_to("nobody.there", 0), []),
    "reply_to_a_partition_of_more_than_32_bits": (
        COMMANDS, reply_to("default.deliveries", 1 << 40), [],
    ),
    "receipt_to_a_partition_that_is_not_there": (
        PUBLISH, b"{}", lq(to="bad", producer="p", seq=1, reply=99),
    ),
    "rejected_record_as_large_as_a_record_may_be": (PUBLISH, b"x" * 11_999_900, []),
}  # fmt: skip


def rejected(job: Job, start: int, count: int) -> list[tuple[dict, bytes | None]]:
    """The records of `default.rejected` from an offset on, once there are so many."""
    found: list[tuple[dict, bytes | None]] = []
    consumer = reader(job)
    consumer.seek(PLACE, start)

    def all_there() -> bool:
        for records in consumer.poll(500).values():
            found.extend((dict(r.headers), r.value) for r in records)
        is_at_end = consumer.position(PLACE) >= consumer.end_offsets([PLACE])[PLACE]
        return len(found) >= count and is_at_end

    until(all_there, 60, f"{count} records are rejected")
    consumer.close()
    return found


def reader(job: Job) -> KafkaConsumer:
    """A reader of `default.rejected`."""
    address = job.kafka.bootstrap_servers
    consumer = KafkaConsumer(bootstrap_servers=address, max_partition_fetch_bytes=16_000_000)
    consumer.assign([PLACE])
    return consumer


def malformed(job: Job) -> float:
    """The number of records that the engine has counted as malformed."""
    name, labels = "lakequeue_malformed_records_total", {"vpn": "default"}
    return job.engine.metrics.registry.get_sample_value(name, labels) or 0.0


def send_and_receive(connection: lakequeue.Connection) -> None:
    receipt = connection.producer().send("bad", GOOD)
    with connection.consumer("bad", ack_mode="auto") as consumer:
        assert until(lambda: consumer.receive(1.0), 30, "a good message").id == receipt.message_id


def test_each_bad_record_is_rejected_once_with_the_reason_and_counted(
    job: Job, connection: lakequeue.Connection
) -> None:
    """The job continues. Bytes that are no JSON are an ordinary message: a captured topic accepts
    anything, and only expressions read the payload (Q1, Q6)."""
    producer = KafkaProducer(
        bootstrap_servers=job.kafka.bootstrap_servers, max_request_size=12_000_000
    )
    with reader(job) as before:  # other tests may have sent such records too
        start, counted = before.end_offsets([PLACE])[PLACE], malformed(job)
    futures = {
        name: producer.send(topic, value, key=name.encode(), headers=headers)
        for name, (topic, value, headers) in BAD.items()
    }
    sent = {name: (f.get(30).partition, f.get(30).offset) for name, f in futures.items()}
    send_and_receive(connection)  # it was delivered after them
    places: dict[tuple[str, int, int], list[tuple[dict, bytes | None]]] = {}
    for headers, kept in rejected(job, start, len(BAD)):
        at = tuple(int(headers[f"lq-{part}"]) for part in ("partition", "offset"))
        places.setdefault((headers["lq-topic"].decode(), *at), []).append((headers, kept))
    for name, (topic, value, _) in BAD.items():
        found = places.pop((topic, *sent[name]), [])
        assert len(found) == 1, f"{name}: {len(found)} records in {REJECTED}"
        headers, kept = found[0]
        assert headers["lq-error"].decode().strip(), name
        assert kept == value or (not kept and not value), name
    assert not places, "nothing else is rejected"
    until(lambda: malformed(job) == counted + len(sent), 30, "the counter moves")
    payload = NOISE(1000)
    producer.send("bad", payload).get(30)
    producer.close()
    with connection.consumer("bad", ack_mode="auto") as consumer:
        assert until(lambda: consumer.receive(1.0), 30, "the message").payload == payload
    assert not job.failures


def test_unanswerable_records_end_no_query(job: Job, connection: lakequeue.Connection) -> None:
    """The same query and worker continue: nothing failed, nothing was restarted."""
    before = job.query
    producer = KafkaProducer(
        bootstrap_servers=job.kafka.bootstrap_servers, max_request_size=12_500_000
    )
    for topic, value, headers in UNANSWERABLE.values():
        producer.send(topic, value, key=b"k", headers=headers).get(30)
    producer.close()
    admin = connection.admin()
    for n in range(3):
        assert connection.producer().send("bad", f"{n}", timeout=60).message_id, n
    until(lambda: admin.describe("bad")["depth"] >= 3, 30, "they are stored")
    admin.purge("bad")
    assert job.query is before
    assert before.isActive
    assert not job.failures
