"""How a worker reads a batch's ranges: each record once, even where other things occupy offsets
(R1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from lakequeue.protocol.errors import NotConnected
from lakequeue.sources import offset_ranges
from lakequeue.sources.live import kafka_client
from lakequeue.sources.offset_ranges import BEGINNING, read_ranges
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

NAMES = ("r-plain", "r-cut", "r-emptied", "r-marked", "r-short", "r-two", "r-open", "r.steps")


@pytest.fixture(scope="module")
def bootstrap(kafka: EmbeddedKafka) -> str:
    ensure_topics(kafka.bootstrap_servers, [], list(NAMES))
    return kafka.bootstrap_servers


def read(bootstrap: str, ranges: dict[tuple[str, int], tuple[int, int]]) -> list[Any]:
    parts = read_ranges(kafka_client(bootstrap, "test"), ranges)
    return [(m.topic(), m.offset(), m.value()) for part in parts for m in part]


def put(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=0)
    producer.flush(30)


def remove(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)


@pytest.mark.job
def test_R1_a_range_is_read_as_far_as_kafka_still_has_it(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the records inside the range. Removed records are skipped, and the read does not wait
    for a recreated or deleted topic."""
    put(bootstrap, "r-plain", 5_000)
    put(bootstrap, "r-two", 10)
    found = read(bootstrap, {("r-plain", 0): (1_000, 4_500), ("r-two", 0): (BEGINNING, 3)})
    assert [at for topic, at, _ in found if topic == "r-plain"] == list(range(1_000, 4_500))
    assert [value for topic, _, value in found if topic == "r-two"] == [b"0", b"1", b"2"]
    assert read(bootstrap, {}) == []
    put(bootstrap, "r-cut", 10)
    remove(bootstrap, "r-cut", 6)
    assert [at for _, at, _ in read(bootstrap, {("r-cut", 0): (2, 9)})] == [6, 7, 8]
    put(bootstrap, "r-emptied", 10)
    remove(bootstrap, "r-emptied", 10)
    assert read(bootstrap, {("r-emptied", 0): (0, 10)}) == []
    monkeypatch.setattr(offset_ranges, "WAIT_S_MAX", 2.0)
    put(bootstrap, "r-short", 3)
    wanted = {("r-short", 0): (1, 10), ("there-is-none", 0): (0, 5)}
    assert [at for _, at, _ in read(bootstrap, wanted)] == [1, 2]


def transactions(bootstrap: str, topic: str, ends: str) -> Producer:
    """One record in each: c committed, a aborted, o still open, which must be the last."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for end in ends:
        producer.begin_transaction()
        producer.produce(topic, end.encode(), partition=0)
        producer.flush(30)
        if end == "c":
            producer.commit_transaction(30)
        elif end == "a":
            producer.abort_transaction(30)
    return producer


@pytest.mark.job
def test_R1_aborted_records_are_skipped_and_open_transactions_waited_for(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop skips aborted records too, so the tables contain exactly the steps' inputs."""
    transactions(bootstrap, "r-marked", "caac")
    assert [at for _, at, _ in read(bootstrap, {("r-marked", 0): (0, 8)})] == [0, 6]
    assert read(bootstrap, {("r-marked", 0): (2, 6)}) == []
    assert [at for _, at, _ in read(bootstrap, {("r-marked", 0): (0, 4)})] == [0]
    transactions(bootstrap, "r.steps", "ca")
    found = read(bootstrap, {("r.steps", 0): (0, 4), ("r-marked", 0): (0, 2)})
    assert found == [("r-marked", 0, b"c"), ("r.steps", 0, b"c"), ("r.steps", 2, b"a")]
    monkeypatch.setattr(offset_ranges, "WAIT_S_MAX", 2.0)
    producer = transactions(bootstrap, "r-open", "co")
    with pytest.raises(NotConnected, match="records 1 to 2 of partition 0 of topic 'r-open'"):
        read(bootstrap, {("r-open", 0): (0, 3)})
    producer.commit_transaction(30)
    assert [at for _, at, _ in read(bootstrap, {("r-open", 0): (0, 3)})] == [0, 2]


def test_an_unreachable_kafka_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_ranges, "WAIT_S_MAX", 1.0)
    with pytest.raises(NotConnected, match="topic 'r-plain' cannot be read"):
        read("127.0.0.1:9", {("r-plain", 0): (3, 9)})
