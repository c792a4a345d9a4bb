"""A real Kafka that lost the end of a topic, as after a power cut or an unclean election: the
tables continue at its new end, and report it (R1). (The loop's inputs: `test_same_topic.py`.)"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import OffsetSpec
from lakequeue.sinks.topics_read import TopicsRead
from lakequeue.sources.live import kafka_client
from lakequeue.sources.offset_ranges import Scan, read_ranges
from lakequeue.sources.same_topic import TopicsNow
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

pytestmark = pytest.mark.job
PLACE = "went-back", 0


def write(kafka: EmbeddedKafka, *values: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(PLACE[0], value, partition=0)
    assert producer.flush(60) == 0


class Tables:
    """A table query's treatment of each batch: one query with the planned source."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.back: list[tuple[str, int]] = []
        self._kafka = kafka_client(kafka.bootstrap_servers, "test")
        self._now, self._begin = TopicsNow(self._kafka), 0
        self._topics = TopicsRead(self._now, {}, lambda *lost: self.back.append(lost))

    def _end(self) -> int:
        until = time.monotonic() + 60
        while not (found := self._now.ends([PLACE], OffsetSpec.latest())):
            assert time.monotonic() < until, "Kafka does not answer"
        return found[PLACE]

    def batch(self) -> list[str]:
        end = self._end()
        ranges = self._topics.plan(Scan({PLACE: self._begin}, {PLACE: end}, None))
        found: list[Any] = [m for part in read_ranges(self._kafka, ranges) for m in part]
        self._topics.read(ranges)
        self._begin = end
        return [m.value().decode() for m in found]


def test_R1_a_topic_that_lost_its_end_is_read_on_from_there(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ensure_topics(kafka.bootstrap_servers, [], [PLACE[0]])
    write(kafka, "0", "1", "2")
    tables = Tables(kafka)
    assert tables.batch() == ["0", "1", "2"]
    (log,) = kafka.home.rglob("went-back-0")
    shutil.copytree(log, tmp_path / "earlier")
    write(kafka, "3", "4", "5", "6")
    assert tables.batch() == ["3", "4", "5", "6"]
    kafka.kill()
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "earlier", log)
    kafka.start()
    assert (tables.batch(), tables.back) == ([], [("went-back", 4)])
    write(kafka, "new 3", "new 4")
    assert (tables.batch(), tables.back) == (["new 3", "new 4"], [("went-back", 4)])
