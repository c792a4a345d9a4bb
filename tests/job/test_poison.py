"""Records that are well formed and cannot be answered: the job must outlive them too.

Each made the engine's query fail in every attempt, restarts included, until the process gave up.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess
from kafka import KafkaProducer
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.topics_admin import ensure_topics

pytestmark = pytest.mark.job

CONFIG = "queues:\n  - {name: orders, message_type: json, max_per_subscription_backlog: 100}\n"
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


def test_the_job_outlives_them(tmp_path: Path) -> None:
    """All of them, one after the other, then good messages in more than one batch."""
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        engine = EngineProcess(kafka.bootstrap_servers, tmp_path / "home", config)
        try:
            engine.wait_ready()
            ensure_topics(kafka.bootstrap_servers, [], ["orders"])
            raw = KafkaProducer(
                bootstrap_servers=kafka.bootstrap_servers, max_request_size=12_500_000
            )
            for topic, value, headers in POISON.values():
                raw.send(topic, value, key=b"k", headers=headers).get(30)
            raw.close()
            with lakequeue.connect(f"kafka://{kafka.bootstrap_servers}") as connection:
                producer = connection.producer()
                for n in range(4):  # more than one batch, and past a restart of the query
                    assert producer.send("orders", f"{n}", timeout=60).message_id, n
                    time.sleep(2)
            assert engine.terminate() == 0
        finally:
            engine.kill()
