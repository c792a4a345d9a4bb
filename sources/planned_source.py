"""A Kafka source for micro-batches that no record can break.

Any program may write to a captured topic. Spark's own source creates a Java row from each record; a
record with a time in nanoseconds ends its query, again at each start. Here the driver plans a
batch's offsets, up to the first open transaction, and a Python worker reads them (`offset_ranges`),
so a batch gets the same records as a loop.

Offsets have the form of Spark's source, `{"topic": {"0": 123}}`, so homes that began with that
source continue. The topics' ids are stored beside them, `{"": [["topic", "id"]]}`. A recreated
topic is read from its beginning; if Kafka has no ids, it is recognised only if it ends before the
stored offset. If that happens with the same id, Kafka lost records: this is reported, and reading
continues at the new end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from ..protocol.errors import NotConnected
from .live import kafka_client
from .offset_ranges import BEGINNING, Offsets, Ranges, batch_of, places_of, read_ranges
from .same_topic import IDS, TopicsNow, changed, gone_back, ids_of
from .step_batch import PartitionId, header_columns

FORMAT = "lakequeue-kafka"
COLUMNS = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
        ("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary()),
        ("meta", pa.binary()), ("headers", pa.string()),
    ]
)  # fmt: skip
SIZES_S = 5.0  # a new partition is noticed within this time
BEHIND_S = 5.0  # a Kafka broker that has just become leader may report an older end for a moment
NOTHING: Mapping[str, str] = MappingProxyType({})


class PlannedRecords(DataSource):
    """Options: ``bootstrap``; ``topics``, separated by commas; ``most`` records of a batch, 0 for
    all."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns. A time is a number here, so any time that Kafka stores fits."""
        return from_arrow_schema(COLUMNS)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for `readStream`."""
        most, names = int(self.options["most"]), self.options["topics"].split(",")
        return PlannedReader(kafka_client(self.options["bootstrap"], FORMAT), names, most)


class RangesPartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges


class PlannedReader(DataSourceStreamReader):
    """Plans batches in the driver, and reads them in tasks, which get copies of this reader."""

    def __init__(self, kafka: dict[str, Any], names: list[str], most: int) -> None:
        self._kafka, self._names, self._most = kafka, names, most
        self._now = TopicsNow(kafka)
        self._places: list[PartitionId] = []
        self._ids: dict[str, str] = {}
        self._looked = -math.inf
        self._ends: dict[PartitionId, int] = {}
        self._behind: dict[PartitionId, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_kafka": self._kafka}

    # ------------------------------------------------------------ the driver

    def initialOffset(self) -> dict[str, Any]:
        """The beginning of each topic. Raises NotConnected."""
        try:
            self._look()
        except KafkaException as error:
            raise NotConnected(f"the topics cannot be read: {error}") from error
        first = self._now.ends(self._places, OffsetSpec.earliest())
        missing = [place for place in self._places if place not in first]
        if missing:
            raise NotConnected(f"Kafka does not report where partition {missing[0]} begins")
        return as_offsets(first, self._ids)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit from the options."""
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; its start if there are no records, or if Kafka does not
        answer."""
        before, known = places_of(start), ids_of(start)
        try:
            self._look()
            found = self._ends_now()
            if any(at != before.get(place) for place, at in found.items()):
                self._ids = self._now.ids(self._names)
                if changed(known, self._ids):  # these may be the ends of the deleted topics
                    found = self._ends_now()
        except KafkaException:
            return as_offsets(before, known)
        ids = known | {topic: now for topic, now in self._ids.items() if now}
        before = without(before, changed(known, ids))
        ends = self._without_regress(before, found)
        self._ends = before | ends
        before |= {place: ends[place] for place in gone_back(before, ends, known)}
        anew = [p for p in ends if p not in before or ends[p] < before[p]]
        first = self._now.ends(anew, OffsetSpec.earliest())
        begins = {p: at for p, at in before.items() if p in ends and p not in anew} | first
        ends = {p: at for p, at in ends.items() if p in begins}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return as_offsets(before | limited(begins, ends, most), ids)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the partitions, for the batch's progress."""
        return as_offsets(self._ends) if self._ends else None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return a single task, since one operator reads its rows."""
        known, after = ids_of(start), places_of(end)
        before = without(places_of(start), changed(known, ids_of(end)))
        before |= {place: after[place] for place in gone_back(before, after, known)}
        ranges = ranges_of(before, after)
        return [RangesPartition(ranges)] if ranges else []

    def _look(self) -> None:
        """Look up the partitions and the ids of their topics. Raises KafkaException."""
        now = time.monotonic()
        if now >= self._looked + SIZES_S:
            sizes, self._ids = self._now.sizes(self._names), self._now.ids(self._names)
            self._places = [(name, n) for name in sorted(sizes) for n in range(sizes[name])]
            self._looked = now

    def _ends_now(self) -> dict[PartitionId, int]:
        return self._now.ends(self._places, OffsetSpec.latest(), committed=True)

    def _without_regress(
        self, before: dict[PartitionId, int], ends: dict[PartitionId, int]
    ) -> dict[PartitionId, int]:
        """The ends, without recent ones before the stored offset. Such an end counts only if it
        stays: then the topic was recreated without ids, and is read from its beginning, or Kafka
        lost records (`gone_back`)."""
        now = time.monotonic()
        behind = {p for p, at in ends.items() if at < before.get(p, 0)}
        self._behind = {p: self._behind.get(p, now) for p in behind}
        return {p: at for p, at in ends.items() if now - self._behind.get(p, -math.inf) >= BEHIND_S}

    # ------------------------------------------------------------ a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition's records."""
        assert isinstance(partition, RangesPartition)
        yield from map(columns_of, read_ranges(self._kafka, partition.ranges))


def columns_of(messages: list[Any]) -> pa.RecordBatch:
    """Messages of Kafka's client as the source's columns."""
    headers = [header_columns(m) for m in messages]
    columns = [
        [m.topic() for m in messages], [m.partition() for m in messages],
        [m.offset() for m in messages], [m.timestamp()[1] for m in messages],
        [m.key() for m in messages], [m.value() for m in messages],
        [meta for meta, _, _ in headers], [rest for _, rest, _ in headers],
    ]  # fmt: skip
    return batch_of(columns, COLUMNS)


def ranges_of(before: Mapping[PartitionId, int], after: Mapping[PartitionId, int]) -> Ranges:
    """The ranges that a batch reads. A new partition is read from its beginning, and so is one that
    became shorter (see `PlannedReader.latestOffset`)."""
    found = {}
    for place, end in after.items():
        begin = before.get(place, BEGINNING)
        if begin != end and end > 0:
            found[place] = (begin if begin < end else BEGINNING, end)
    return found


def as_offsets(
    places: Mapping[PartitionId, int], ids: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """Convert our form of offsets to Spark's."""
    found: dict[str, Any] = {}
    for (topic, partition), at in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = at
    named = [[topic, ids[topic]] for topic in found if ids.get(topic)]
    return found | ({IDS: named} if named else {})


def without(places: Mapping[PartitionId, int], names: set[str]) -> dict[PartitionId, int]:
    """Remove the partitions of some topics. names: these topics."""
    return {place: at for place, at in places.items() if place[0] not in names}


def limited(
    begins: Mapping[PartitionId, int], ends: Mapping[PartitionId, int], most: int | None
) -> dict[PartitionId, int]:
    """The end of a batch of about this many records. Each partition gets its share, at least one
    record, so no partition's backlog keeps others out. Both mappings have the same partitions."""
    waiting = {p: max(0, at - begins[p]) for p, at in ends.items()}
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(ends)
    shares = {p: min(n, max(1, most * n // total)) for p, n in waiting.items()}
    return {p: begins[p] + shares[p] for p in ends}
