"""Mutated commands and records on the real job, and such as once ended it: no step fails, and every
one is counted.

The same records as `tests/fuzz` hands to the step in memory, by way of Kafka. `LAKEQUEUE_FUZZ_JOB`
says how many.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import lakequeue
import msgspec
import pytest
from fuzz.mutations import QUEUES, Incoming, Mutator
from job.processes import EngineProcess, until
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from lakequeue.protocol import commands
from lakequeue.protocol.messages import decode_publish_header
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

pytestmark = pytest.mark.job

RECORDS = int(os.environ.get("LAKEQUEUE_FUZZ_JOB", "4000"))
SECONDS_MAX = 150
KEYS = {
    "dead": {},
    "orders": {"dead_message_queue": "dead"},
    "copies": {"underlying_topic": "orders", "filter": "/k = 1"},
    "keyed": {"priority": "/p"},
    "plain": {},
    "after": {},
}
# `copies` captures the topic `orders`, so there is none of its own name.
TOPICS = ("default.commands", "default.publish", "orders", "dead", "plain", "keyed")
DELIVERIES, REJECTED = "default.deliveries", "default.rejected"


# Records that are well formed and cannot be answered. Each made the engine's query fail in every
# attempt, restarts included, until the process gave up.
COMMANDS, PUBLISH = "default.commands", "default.publish"


def reply_to(topic: str, partition: int) -> bytes:
    reply = {"topic": topic, "partition": partition, "request": "x"}
    return json.dumps({"command": "queues", "reply": reply}).encode()


def publish_header(**fields: object) -> list[tuple[str, bytes]]:
    return [("lq", json.dumps(fields).encode())]


REGEX = {
    "name": "rx", "message_type": "json", "underlying_topic": "(?P<a>foo).*",
    "default_publish_target": "foo1",
}  # fmt: skip
POISON: dict[str, tuple[str, bytes, list[tuple[str, bytes]]]] = {
    "plain_record_with_headers_of_its_own": ("orders", b"{}", [("colour", b"blue")]),
    "publish_with_headers_and_no_lq": (PUBLISH, b"{}", [("colour", b"blue")]),
    "command_with_headers": (COMMANDS, b'{"command": "tick"}', [("trace", b"1")]),
    "reply_to_a_partition_that_is_not_there": (COMMANDS, reply_to("default.deliveries", 99), []),
    "reply_to_a_topic_that_is_not_there": (COMMANDS, reply_to("nobody.there", 0), []),
    "reply_to_a_partition_of_more_than_32_bits": (
        COMMANDS, reply_to("default.deliveries", 1 << 40), [],
    ),
    "receipt_to_a_partition_that_is_not_there": (
        PUBLISH, b"{}", publish_header(to="orders", producer="p", seq=1, reply=99),
    ),
    "rejected_record_as_large_as_a_record_may_be": (PUBLISH, b"x" * 11_999_900, []),
    "expression_that_Java_does_not_read": (
        COMMANDS, json.dumps({"command": "define", "definition": REGEX}).encode(), [],
    ),
}  # fmt: skip


def made(seed: int, total: int) -> list[Incoming]:
    """Records for topics that are there."""
    mutator = Mutator(seed)
    out: list[Incoming] = []
    while len(out) < total:
        one = mutator.command() if mutator.random.random() < 0.6 else mutator.message()
        if one.topic not in TOPICS:
            continue
        if one.value is None and one.key is None:  # the producer sends no such record
            one = replace(one, key=b"k")
        out.append(one)
    return out


def send(servers: str, records: list[Incoming]) -> dict[tuple[str, int, int], Incoming]:
    """Write them as any Kafka client would; where each stands."""
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20, max_request_size=12_000_000)
    futures = []
    for one in records:
        headers = [] if one.meta is None else [("lq", one.meta)]
        time_ms = one.timestamp
        if time_ms is not None and not 0 < time_ms < time.time() * 1000:
            time_ms = None  # Kafka itself refuses what is more than an hour ahead
        futures.append(producer.send(one.topic, one.value, one.key, headers, timestamp_ms=time_ms))
    producer.flush(60)
    places = [future.get(30) for future in futures]
    producer.close()
    return {(p.topic, p.partition, p.offset): one for p, one in zip(places, records, strict=True)}


def read(servers: str, topic: str) -> list[Any]:
    """Everything in a topic."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, max_partition_fetch_bytes=16_000_000, consumer_timeout_ms=1000
    )
    places = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    found: list[Any] = []
    while any(consumer.position(p) < ends[p] for p in places):
        for records in consumer.poll(500).values():
            found += records
    consumer.close()
    return found


def is_understood(one: Incoming) -> bool:
    try:
        if one.topic == "default.commands":
            commands.decode_command(one.value)
        elif one.meta is not None:
            header = decode_publish_header(one.meta)
            return bool(header.to) or one.topic != "default.publish"
        else:
            return one.topic != "default.publish"
    except ValueError:
        return False
    return True


def asked(one: Incoming) -> str | None:
    """The request of a command that waits for an answer in an inbox that is there."""
    try:
        command = commands.decode_command(one.value)
    except ValueError:
        return None
    to = command.reply
    there = to is not None and (to.topic, to.partition) == (DELIVERIES, 0)
    return to.request if to is not None and there and one.request else None


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, str]]:
    """It runs through all that the tests of this file do to it, and ends in good order."""
    folder = tmp_path_factory.mktemp("fuzz")
    config = folder / "queues.yaml"
    queues = [{"name": n, "message_type": "json", **keys} for n, keys in KEYS.items()]
    config.write_text(json.dumps({"queues": queues}))
    with EmbeddedKafka(folder / "kafka") as kafka:
        servers = kafka.bootstrap_servers
        ensure_topics(servers, [], TOPICS[2:])
        engine = EngineProcess(servers, folder / "home", config)
        try:
            yield engine.wait_ready(), servers
            assert engine.process.poll() is None, engine.errors()
            assert not [e for e in engine.said if "failed" in e["event"]]
            assert engine.terminate() == 0
        finally:
            engine.kill()


def test_the_job_outlives_what_cannot_be_answered(engine: tuple[EngineProcess, str]) -> None:
    """All of them, one after the other, then good messages in more than one batch."""
    _, servers = engine
    raw = KafkaProducer(bootstrap_servers=servers, max_request_size=12_500_000)
    for topic, value, headers in POISON.values():
        raw.send(topic, value, key=b"k", headers=headers).get(30)
    raw.close()
    with lakequeue.connect(f"kafka://{servers}") as connection:
        producer = connection.producer()
        for n in range(4):  # more than one batch, and past a restart of the query
            assert producer.send("orders", f"{n}", timeout=60).message_id, n
            time.sleep(2)


def test_S1_nothing_stops_the_job_and_all_is_counted(engine: tuple[EngineProcess, str]) -> None:
    _, servers = engine
    records = made(1, RECORDS)
    places = send(servers, records)
    still_serves(servers)
    account(servers, places)


def still_serves(servers: str) -> None:
    """What came behind all of them is done."""
    with lakequeue.connect(f"kafka://{servers}") as connection:
        connection.request(commands.Queues(), timeout=SECONDS_MAX)
        connection.admin().define({"name": "after", "message_type": "json"})
        receipt = connection.producer().send("after", b"{}", timeout=60)
        with connection.consumer("after", ack_mode="auto") as consumer:
            found = until(lambda: consumer.receive(1.0), 60, "a good message")
            assert found.id == receipt.message_id


def account(servers: str, places: dict[tuple[str, int, int], Incoming]) -> None:
    """Not understood: in `default.rejected`, once. Asked: answered, or there."""
    rejected: Counter[tuple[str, int, int]] = Counter()
    for record in read(servers, REJECTED):
        headers = dict(record.headers)
        topic = headers.get("lq-topic", b"").decode()
        if "lq-offset" in headers:
            place = (topic, int(headers["lq-partition"]), int(headers["lq-offset"]))
            rejected[place] += 1
    assert not [p for p, n in rejected.items() if p in places and n > 1 and p[0] not in QUEUES]
    lost = [p for p, one in places.items() if not is_understood(one) and p not in rejected]
    assert not lost, f"{len(lost)} not understood and nowhere: {[places[p] for p in lost[:3]]}"
    answers = {
        msgspec.json.decode(record.value)["request"]
        for record in read(servers, DELIVERIES)
        if ("lq-framing", b"reply") in record.headers
    }
    waiting = {asked(one) for p, one in places.items() if p not in rejected} - {None}
    assert waiting, "no record asks for anything"
    assert waiting <= answers, f"{len(waiting - answers)} of {len(waiting)} have no answer"
