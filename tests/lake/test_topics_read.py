"""A topic is more than its name: how the tables read a recreated one, and which of its rows they
have already (R1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from lakequeue.protocol.errors import NotConnected
from lakequeue.sinks import topics_read
from lakequeue.sinks.topics_read import Rows, TopicsRead
from lakequeue.sources.offset_ranges import BEGINNING, Scan

PLACE = "t", 0
OTHER = "u", 0


class Kafka:
    """Topics with one partition each: their ids and ends."""

    def __init__(self, **topics: tuple[str, int]) -> None:
        self.topics = topics
        self.is_away = False

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return {name: self.topics[name][0] for name in names if name in self.topics}

    def ends(self, places: Iterable[Any], spec: Any, committed: bool = False) -> dict[Any, int]:
        return {place: self.topics[place[0]][1] for place in places}


def scan(begin: int | None, end: int, **others: tuple[int, int]) -> Scan:
    """A scan of the topic `t`, and of others."""
    begins = {} if begin is None else {PLACE: begin}
    begins |= {(name, 0): span[0] for name, span in others.items()}
    return Scan(begins, {PLACE: end} | {(n, 0): span[1] for n, span in others.items()}, None)


class Reading(TopicsRead):
    """A reading and its reports."""

    def __init__(self, now: Any, rows: Rows) -> None:
        self.back: list[tuple[str, int]] = []
        super().__init__(now, rows, lambda topic, count: self.back.append((topic, count)))


def read(topics: Reading, planned: Scan) -> dict[Any, tuple[int, int]]:
    """Read a batch."""
    ranges = topics.plan(planned)
    topics.read(ranges)
    return dict(ranges)


def test_R1_the_ranges_planned_by_spark_are_read() -> None:
    topics = Reading(Kafka(t=("A", 9), u=("U", 3)), {})
    assert read(topics, scan(None, 5, u=(2, 3))) == {PLACE: (BEGINNING, 5), OTHER: (2, 3)}
    assert read(topics, scan(5, 9, u=(3, 3))) == {PLACE: (5, 9)}
    assert topics.ids == {"t": "A", "u": "U"}


@pytest.mark.parametrize("end", [80, 50, 30, 1], ids=["longer", "as long", "shorter", "one"])
def test_R1_a_topic_that_is_made_anew_is_read_from_its_beginning(end: int) -> None:
    kafka = Kafka(t=("A", 50))
    topics = Reading(kafka, {})
    read(topics, scan(0, 50))
    kafka.topics["t"] = "B", end
    assert read(topics, scan(50, end)) == {PLACE: (BEGINNING, end)}
    assert read(topics, scan(end, end)) == {}
    assert read(topics, scan(end, end + 1)) == {PLACE: (end, end + 1)}


@pytest.mark.parametrize("now", [80, 30])
def test_R1_a_topic_recreated_while_no_query_ran_is_read_from_its_beginning(now: int) -> None:
    rows: Rows = {PLACE: {"A": (49, 1_000)}}
    topics = Reading(Kafka(t=("B", now)), rows)
    assert read(topics, scan(50, now)) == {PLACE: (BEGINNING, now)}
    assert topics.stored == {}, "no row is of this topic"


def test_R1_a_range_planned_for_the_old_topic_does_not_limit_the_new_one() -> None:
    """It was recreated between plan and batch, and has ten records by then."""
    kafka = Kafka(t=("A", 50))
    topics = Reading(kafka, {})
    read(topics, scan(0, 50))
    kafka.topics["t"] = "B", 10
    assert read(topics, scan(50, 60)) == {PLACE: (BEGINNING, 10)}
    assert read(topics, scan(60, 30)) == {PLACE: (10, 30)}
    again = Reading(kafka, {PLACE: {"A": (49, 1), "B": (29, 2)}})
    assert read(again, scan(60, 40)) == {PLACE: (30, 40)}, "the rows give their end"


def test_R1_the_tables_rows_of_this_topic_are_not_read_again() -> None:
    """The checkpoint is lost: everything is read again, and existing rows are left out."""
    topics = Reading(Kafka(t=("B", 40)), {PLACE: {"": (99, 5), "A": (79, 7), "B": (29, 9)}})
    ranges = topics.plan(scan(None, 40))
    assert ranges == {PLACE: (BEGINNING, 40)}
    assert topics.may_be_stored(ranges) == {PLACE: (29, 9)}
    assert topics.may_be_stored({PLACE: (30, 40)}) == {}


def test_R1_rows_of_an_earlier_version_name_no_topic() -> None:
    """Then only younger records count as another topic's."""
    topics = Reading(Kafka(t=("A", 60)), {PLACE: {"": (49, 1_000)}})
    ranges = topics.plan(scan(None, 60))
    assert topics.may_be_stored(ranges) == {PLACE: (49, 1_000)}


def test_R1_without_topic_ids_a_shorter_topic_counts_as_recreated() -> None:
    """A topic that ends before the position was recreated."""
    kafka = Kafka(t=("", 50))
    topics = Reading(kafka, {PLACE: {"": (19, 1_000)}})
    assert read(topics, scan(20, 50)) == {PLACE: (20, 50)}
    kafka.topics["t"] = "", 30
    ranges = topics.plan(scan(50, 30))
    assert ranges == {PLACE: (BEGINNING, 30)}
    assert topics.may_be_stored(ranges) == {PLACE: (19, 1_000)}, "by its time"


def test_R1_a_topic_recreated_during_a_read_is_read_again() -> None:
    kafka = Kafka(t=("A", 50))
    topics = Reading(kafka, {})
    ranges = topics.plan(scan(0, 50))
    kafka.topics["t"] = "B", 50
    with pytest.raises(
        NotConnected, match="topic 't' was deleted or created again while it was read"
    ):
        topics.read(ranges)


def test_R1_a_kafka_that_lost_read_records_is_read_from_its_end() -> None:
    """The topic is the same, so nothing of it is read again, and the loss is reported."""
    kafka = Kafka(t=("A", 50), u=("U", 3))
    topics = Reading(kafka, {PLACE: {"A": (19, 1_000)}})
    assert read(topics, scan(20, 50, u=(0, 3))) == {PLACE: (20, 50), OTHER: (0, 3)}
    assert (read(topics, scan(50, 30, u=(3, 3))), topics.back) == ({}, [("t", 20)])
    assert read(topics, scan(30, 33, u=(3, 4))) == {PLACE: (30, 33), OTHER: (3, 4)}
    assert topics.back == [("t", 20)], "once"


@pytest.mark.parametrize("begin", [50, None], ids=["its checkpoint is there", "it is lost"])
def test_R1_a_loss_while_no_query_ran_is_handled_alike(begin: int | None) -> None:
    """Without a checkpoint everything is read again, and only records younger than the rows are
    new."""
    topics = Reading(Kafka(t=("A", 33)), {PLACE: {"A": (49, 1_000)}})
    ranges = topics.plan(scan(begin, 33))
    if begin is None:
        assert (ranges, topics.back) == ({PLACE: (BEGINNING, 33)}, [])
        assert topics.may_be_stored(ranges) == {PLACE: (49, 1_000)}
        return
    assert (ranges, topics.back) == ({}, [("t", 17)])
    ranges = topics.plan(scan(33, 40))
    assert (ranges, topics.may_be_stored(ranges)) == ({PLACE: (33, 40)}, {})


def test_R1_a_deleted_topic_is_not_read() -> None:
    kafka = Kafka(u=("U", 3))
    assert read(Reading(kafka, {}), scan(5, 9, u=(0, 3))) == {OTHER: (0, 3)}


def test_an_unreachable_kafka_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(t=("A", 5))
    kafka.is_away = True
    monkeypatch.setattr(topics_read.time, "sleep", lambda s: setattr(kafka, "is_away", False))
    assert read(Reading(kafka, {}), scan(0, 5)) == {PLACE: (0, 5)}
    kafka.is_away = True
    monkeypatch.setattr(topics_read.time, "sleep", lambda s: None)
    monkeypatch.setattr(topics_read, "WAIT_S_MAX", 0.01)
    with pytest.raises(NotConnected, match="Kafka does not report the topics' ids"):
        Reading(kafka, {}).plan(scan(0, 5))
