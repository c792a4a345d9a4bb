"""Gaps in Kafka's topics, each made on a real one. The loop continues behind a gap and reports lost
records. Transactions leave markers; retention and compaction remove records; topics are deleted and
recreated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lakequeue.sources import live
from lakequeue.sources.live import LiveInputs, kafka_client
from lakequeue.sources.live_reader import InputLimits
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job


class Captured:
    """A captured topic, and a loop's inputs that read it."""

    def __init__(self, kafka: EmbeddedKafka, name: str = "orders", **config: str) -> None:
        self.at = kafka.bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": self.at})
        self.producer = Producer({"bootstrap.servers": self.at})
        run = uuid4().hex[:8]
        self.topic = f"{name}-{run}" if name == "orders" else f"{run}.{name}"
        self.commands, self.control = f"{run}c.commands", f"{run}-ctl"
        self.make(self.commands, self.control)
        self.make(self.topic, **config)
        self.inputs = self.open(0)

    def open(self, offset: int, topic_id: str = "") -> LiveInputs:
        inputs = LiveInputs(kafka_client(self.at, "test"), InputLimits(), self.control, "run")
        place = self.topic, 0
        inputs.also({place: offset}, {place: topic_id} if topic_id else {})
        inputs.start({(self.commands, 0): 0})
        return inputs

    def again(self, offset: int, topic_id: str = "") -> None:
        """The engine stops and starts again."""
        self.inputs.close()
        self.inputs = self.open(offset, topic_id)

    def make(self, *names: str, **config: str) -> None:
        made = self.admin.create_topics([NewTopic(t, 1, 1, config=config) for t in names])
        for done in made.values():
            done.result(30)

    def delete(self) -> None:
        self.admin.delete_topics([self.topic])[self.topic].result(30)

    def make_again(self) -> None:
        until = time.monotonic() + 30
        while True:
            try:
                self.make(self.topic)
                # A client that sees a topic disappear drops at once the records that it has for it.
                self.producer = Producer({"bootstrap.servers": self.at})
                return
            except Exception:  # Kafka is still deleting the old one
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def write(self, *values: str, key: str | None = None) -> None:
        refused: list[KafkaError] = []

        def told(error: KafkaError | None, _: object) -> None:
            refused.extend([error] if error is not None else [])

        for value in values:
            self.producer.produce(self.topic, value, key, on_delivery=told)
        assert self.producer.flush(90) == 0
        assert not refused, refused[0].str()

    def trim(self, before: int) -> None:
        """Remove records as retention does."""
        place = TopicPartition(self.topic, 0, before)
        self.admin.delete_records([place])[place].result(30)

    def take(self, count: int, seconds: float = 60.0) -> list[str]:
        """Take steps until this many records came; then none may come for a moment."""
        found: list[str] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            taken = self.inputs.take(0.5)
            if taken is not None:
                for r in taken.ranges:
                    assert r.first <= r.last, "records of two topics in one range"
                values = (*taken.batch.commands.values, *taken.batch.publishes.values)
                found += [(value or b"").decode() for value in values]
            elif len(found) >= count:
                break
        return found

    @property
    def notes(self) -> list[str]:
        return [note.replace(self.topic, "orders") for note in self.inputs.notes]


@pytest.fixture
def captured(kafka: EmbeddedKafka, request: Any) -> Iterator[Captured]:
    one = Captured(kafka, **getattr(request, "param", {}))
    yield one
    one.inputs.close()


def test_transaction_markers_are_skipped(captured: Captured) -> None:
    """Also the markers of aborted transactions, whose records nobody receives."""
    foreign = Producer({"bootstrap.servers": captured.at, "transactional.id": captured.topic})
    foreign.init_transactions()
    for n in range(5):
        foreign.begin_transaction()
        foreign.produce(captured.topic, f"{n}")
        foreign.flush(10)
        if n == 2:
            foreign.abort_transaction()
        else:
            foreign.commit_transaction()
        if n < 4:
            found = captured.take(1 if n != 2 else 0)
            assert found == ([f"{n}"] if n != 2 else [])
    assert captured.take(1) == ["4"]
    assert captured.notes == []
    captured.inputs.watch({(captured.topic, 0): 10})
    assert captured.inputs.behind == 0, "the last marker counts as a waiting record"


def test_records_that_retention_removed_during_downtime_are_reported(captured: Captured) -> None:
    captured.write(*map(str, range(10)))
    assert len(captured.take(10)) == 10
    captured.inputs.close()
    captured.write(*map(str, range(10, 30)))
    captured.trim(25)
    captured.again(10)
    assert captured.take(5) == [str(n) for n in range(25, 30)]
    assert captured.notes == ["lost:orders:15"]


COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100", "delete.retention.ms": "0",
}  # fmt: skip


@pytest.mark.parametrize("captured", [COMPACTED], indirect=True)
def test_gaps_left_by_compaction_are_no_loss(captured: Captured) -> None:
    captured.write("first", key="a")
    assert captured.take(1) == ["first"]
    captured.inputs.close()
    for n in range(20):
        captured.write(f"{n}", key="b")
    until, ends = time.monotonic() + 120, 0
    while True:
        time.sleep(1.0)
        ends += 1
        captured.write(f"end {ends}", key="c")
        captured.again(1)
        found: list[str] = []
        while f"end {ends}" not in found:
            assert time.monotonic() < until, "the inputs did not continue behind the gaps"
            found += captured.take(1, 5.0)
        if len(found) < 20:
            break
        assert time.monotonic() < until, "Kafka compacted nothing"
    assert captured.notes == []


# ------------------------------------------------------------ a topic is more than its name


@pytest.mark.parametrize("captured", [{"name": "commands"}], indirect=True)
def test_a_recreated_topic_is_read_from_its_beginning(captured: Captured) -> None:
    """A topic of the VPN. The change is reported once, with the new topic's end at that time.
    (Captured topics: `tests/job/test_foreign_in_tables.py`. During downtime:
    `tests/job/test_damage.py`. The new position: `test_same_topic.py`.)"""
    captured.write(*(f"old{n}" for n in range(50)))
    assert len(captured.take(50)) == 50
    captured.delete()
    time.sleep(1.0)
    captured.make_again()
    captured.write(*(f"new{n}" for n in range(20)))
    assert captured.take(20) == [f"new{n}" for n in range(20)]
    assert captured.notes in [[f"anew:orders:{end}"] for end in range(21)]


def test_a_topic_of_others_that_is_made_anew_and_soon_longer_is_read_once(
    captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's client reads on in it at the old offset, and says nothing."""
    monkeypatch.setattr(live, "IDS_S", 60.0)  # the readers' own look comes too late
    captured.write("old0", "old1")
    assert captured.take(2) == ["old0", "old1"]
    captured.delete()
    captured.make_again()
    new = [f"new{n}" for n in range(40)]
    captured.write(*new[:20])
    found = captured.take(20)
    captured.write(*new[20:])
    assert found + captured.take(20) == new
    assert captured.notes in [[f"anew:orders:{end}"] for end in range(21)]
