"""The plan of the micro-batch source (L12): shares of a batch, and the meaning of its offsets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.protocol.outputs import Deliveries
from lakequeue.sources import planned_source
from lakequeue.sources.kafka_source import to_batch
from lakequeue.sources.offset_ranges import BEGINNING
from lakequeue.sources.planned_source import (
    PlannedReader,
    as_offsets,
    columns_of,
    limited,
    places_of,
    ranges_of,
)
from lakequeue.streaming.watch.batch_notes import made_anew, notes_of_topics, went_back
from loop.memory import Message
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from rules.steps import Steps, define, subscribe

A, B = ("a", 0), ("b", 1)


class TopicsThen:
    """Stands for `TopicsNow`."""

    def __init__(self, ends: dict[Any, int]) -> None:
        self.latest = ends
        self.known: dict[str, str] = {}

    def ids(self, names: list[str]) -> dict[str, str]:
        return dict(self.known)

    def sizes(self, names: list[str]) -> dict[str, int]:
        return {"a": 1}

    def ends(self, places: list[Any], spec: Any, committed: bool = False) -> dict[Any, int]:
        return {p: self.latest[p] if committed else 0 for p in places if p in self.latest}


def reader_of(ends: dict[Any, int], monkeypatch: pytest.MonkeyPatch) -> PlannedReader:
    monkeypatch.setattr(planned_source, "TopicsNow", lambda _: TopicsThen(ends))
    return PlannedReader({}, ["a"], 0)


def spans(reader: PlannedReader, start: Any, end: Any) -> Any:
    """The ranges of a batch."""
    return [partition.ranges for partition in reader.partitions(start, end)]


def test_offsets_have_the_format_of_sparks_source() -> None:
    kept = '{"a":{"0":7},"b":{"1":9}}'  # of a home that began with Spark's source
    assert places_of(json.loads(kept)) == {A: 7, B: 9}
    assert json.dumps(as_offsets({B: 9, A: 7}), separators=(",", ":")) == kept


def test_a_deep_backlog_leaves_others_their_share_of_a_batch() -> None:
    assert limited({A: 0, B: 5}, {A: 10, B: 6}, 100) == {A: 10, B: 6}
    assert limited({A: 0, B: 5}, {A: 1_000_000, B: 6}, 100) == {A: 99, B: 6}
    assert limited({A: 0, B: 5}, {A: 1_000_000, B: 6}, None) == {A: 1_000_000, B: 6}


def test_new_and_recreated_topics_are_read_from_their_beginning() -> None:
    assert ranges_of({A: 3}, {A: 5, B: 2}) == {A: (3, 5), B: (BEGINNING, 2)}
    assert ranges_of({A: 30}, {A: 5}) == {A: (BEGINNING, 5)}
    assert ranges_of({A: 30}, {A: 30, B: 0}) == {}


def test_a_partition_without_an_answer_keeps_its_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = reader_of({}, monkeypatch)
    start = {"a": {"0": 3}, "gone": {"0": 8}}
    assert reader.latestOffset(start, ReadAllAvailable()) == start


@pytest.mark.parametrize("end", [80, 50, 30], ids=["longer", "as long", "shorter"])
def test_a_recreated_topic_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    ends = {A: 50}
    reader = reader_of(ends, monkeypatch)
    reader._now.known["a"] = "old"
    # A home that began before ids were stored, or with Spark's own source, learns them.
    start = reader.latestOffset({"a": {"0": 20}}, ReadAllAvailable())
    assert start == {"a": {"0": 50}, "": [["a", "old"]]}
    assert spans(reader, {"a": {"0": 20}}, start) == [{A: (20, 50)}]
    ends[A] = end
    reader._now.known["a"] = "new"
    reader._looked = -1e9
    part = reader.latestOffset(start, ReadMaxRows(2))
    assert part == {"a": {"0": 2}, "": [["a", "new"]]}
    assert spans(reader, start, part) == [{A: (BEGINNING, 2)}]
    whole = reader.latestOffset(part, ReadAllAvailable())
    assert whole == {"a": {"0": end}, "": [["a", "new"]]}
    assert spans(reader, part, whole) == [{A: (2, end)}]
    assert made_anew({"sources": [{"startOffset": start, "endOffset": part}]}) == {"a": 2}
    assert made_anew({"sources": [{"startOffset": part, "endOffset": whole}, {}]}) == {}


def test_the_end_of_a_deleted_topic_is_not_used_for_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is made anew between two questions. Up to the old end nothing would be read."""
    ends = {A: 50}
    reader = reader_of(ends, monkeypatch)
    reader._now.known["a"] = "old"
    start = reader.latestOffset({"a": {"0": 20}}, ReadAllAvailable())
    ends[A] = 60

    def ids(names: list[str]) -> dict[str, str]:
        ends[A] = 3
        return {"a": "new"}

    monkeypatch.setattr(reader._now, "ids", ids)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"a": {"0": 3}, "": [["a", "new"]]}
    assert spans(reader, start, end) == [{A: (BEGINNING, 3)}]


def test_a_kafka_that_lost_read_records_is_reported_and_read_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is the same one. Read from its beginning, all captured records would come twice."""
    ends = {A: 50, B: 9}
    reader = reader_of(ends, monkeypatch)
    reader._names = ["a", "b"]
    reader._now.sizes = lambda names: {"a": 1, "b": 2}
    reader._now.known |= {"a": "id", "b": "other"}
    start = reader.latestOffset({"a": {"0": 50}, "b": {"1": 9}}, ReadAllAvailable())
    ends |= {A: 30, B: 12}
    assert reader.latestOffset(start, ReadMaxRows(2))["a"] == {"0": 50}, "a broker that lags behind"
    monkeypatch.setattr(planned_source, "BEHIND_S", 0.0)
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert (end["a"], end["b"]) == ({"0": 30}, {"1": 11})
    assert spans(reader, start, end) == [{B: (9, 11)}]
    assert went_back({"sources": [{"startOffset": start, "endOffset": end}]}) == {"a": 20}
    told = {"sources": [{"startOffset": start, "endOffset": end}, {}]}
    assert notes_of_topics(told) == ["back:a:20"]
    ends[A] = 33
    after = reader.latestOffset(end, ReadAllAvailable())
    assert spans(reader, end, after) == [{A: (30, 33), B: (11, 12)}]
    assert notes_of_topics({"sources": [{"startOffset": end, "endOffset": after}]}) == []


def test_a_kafka_without_topic_ids_keeps_the_format_of_sparks_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = reader_of({A: 50}, monkeypatch)
    reader._now.known["a"] = ""
    assert reader.latestOffset({"a": {"0": 20}}, ReadAllAvailable()) == {"a": {"0": 50}}


def test_L12_timestamps_outside_the_calendar_mean_now_in_micro_batches_too() -> None:
    """Microseconds, nanoseconds, the largest and the smallest value: all are delivered."""
    steps = Steps()
    wide = {"underlying_topic": "plain", "max_per_subscription_backlog": 9}
    steps.run([define(message_type="text", **wide), subscribe("s")])
    odd = [steps.now * 1_000, steps.now * 1_000_000, (1 << 63) - 1, -1, -(1 << 63), 0]
    frame = columns_of(
        [Message("plain", 0, n, ms, None, b"x", None) for n, ms in enumerate(odd)]
    ).to_pandas()
    batch, now = to_batch([frame.assign(now=steps.now)])
    assert batch.publishes.timestamps == odd
    steps.now = now
    sent = [o for o in steps.step(batch) if isinstance(o, Deliveries)]
    assert [ms for one in sent for ms in one.times] == [now] * 5 + [0]
