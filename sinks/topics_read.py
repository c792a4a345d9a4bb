"""Plans the offsets that each batch of a table query reads, and finds records that the tables
already have (R1).

A recreated topic starts at offset 0. Spark plans batches by name, and would skip the new topic's
records before the old offset. So each row has Kafka's id of its topic, and each batch requests the
ids:

    the id differs from before, or from the rows    read the new topic from its beginning
    the id is that of the rows                      read from the last row on
    the same id, and the topic ends before the
    last offset read: Kafka lost records            read from its end on, and report it
    no id (Kafka before 2.8), and the topic ends
    before the last offset read                     as if the id differed

One batch reads one topic of a name. If the topic is recreated meanwhile, the batch fails, and the
next start reads the new one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from ..protocol.errors import NotConnected
from ..sources.offset_ranges import BEGINNING, WAIT_S_MAX, Ranges, Scan
from ..sources.same_topic import TopicsNow
from ..sources.step_batch import PartitionId

log = logging.getLogger("lakequeue.tables")

AGAIN_S = 0.5
NO_ID = ""
At = tuple[int, int]
Rows = Mapping[PartitionId, Mapping[str, At]]
"""For each partition, by topic id: the last offset that a table has, and the newest time, in µs."""


class TopicsRead:
    """The topics of one query, from its start on. rows: the table's contents at the start. on_back:
    called with a topic of which Kafka lost records that had been read, and their number.

    stored: the last offset and the newest time in the table, by partition. A newer record is not in
    the table, even at an earlier offset: it belongs to another topic, or to one of which Kafka lost
    records.
    """

    def __init__(self, now: TopicsNow, rows: Rows, on_back: Callable[[str, int], None]) -> None:
        self._now, self._rows, self._on_back = now, rows, on_back
        self._next: dict[PartitionId, int] = {}
        self._known: dict[PartitionId, str] = {}
        self.ids: dict[str, str] = {}
        self.stored: dict[PartitionId, At] = {}

    def plan(self, scan: Scan) -> Ranges:
        """The offsets that the next batch reads. Raises NotConnected if Kafka does not answer."""
        self.ids = self._ask(topic for topic, _ in scan.ends)
        ends = {place: end for place, end in scan.ends.items() if place[0] in self.ids}
        anew = {place for place, end in ends.items() if self._is_other(place, scan, end)}
        if anew:
            self._begin_anew(anew)
            there = self._now.ends(anew, OffsetSpec.latest(), committed=True)
            # Spark may have planned the batch while the old topic existed.
            ends |= {place: min(ends[place], there.get(place, 0)) for place in anew}
        self._go_back(ends)
        self._known |= {p: self.ids[p[0]] or self._known.get(p, NO_ID) for p in ends}
        return {p: (self._next[p], end) for p, end in ends.items() if max(0, self._next[p]) < end}

    def read(self, ranges: Ranges) -> None:
        """Record that these ranges were read. Raises NotConnected if a topic was recreated
        meanwhile."""
        now = self._ask(topic for topic, _ in ranges)
        for topic in {topic for topic, _ in ranges}:
            if now.get(topic) != self.ids[topic]:
                raise NotConnected(
                    f"topic {topic!r} was deleted or created again while it was read"
                )
        self._next |= {place: end for place, (_, end) in ranges.items()}

    def may_be_stored(self, ranges: Ranges) -> dict[PartitionId, At]:
        """The entries of `stored` that concern these ranges."""
        return {p: at for p, at in self.stored.items() if p in ranges and ranges[p][0] <= at[0]}

    def _is_other(self, place: PartitionId, scan: Scan, end: int) -> bool:
        """Whether a partition now belongs to another topic than the one that was read."""
        now = self.ids[place[0]]
        if place in self._known:
            known = self._known[place]
            return known != now if known and now else end < self._next[place]
        rows, begin = self._rows.get(place, {}), scan.begins.get(place, BEGINNING)
        self._next[place] = begin
        if now and now in rows:
            self.stored[place] = rows[now]
            self._next[place] = min(begin, rows[now][0] + 1)
            return False
        if now and any(rows):
            return True
        if rows:
            offsets, times = zip(*rows.values(), strict=True)
            self.stored[place] = max(offsets), max(times)
        return end < begin

    def _begin_anew(self, places: set[PartitionId]) -> None:
        for place in places:
            self._next[place] = BEGINNING
            if self.ids[place[0]]:
                self.stored.pop(place, None)
        for topic in sorted({topic for topic, _ in places}):
            log.warning(
                "topic %r was deleted and created again: the tables read it from its beginning; "
                "unread records of the old one are lost", topic,
            )  # fmt: skip

    def _go_back(self, ends: Mapping[PartitionId, int]) -> None:
        """Continue at the end of partitions that end before the last offset read: Kafka lost
        records. Spark has checked three times, so this is not the passing mistake of a new
        leader."""
        lost: dict[str, int] = {}
        for place, end in ends.items():
            if end < self._next[place]:
                lost[place[0]] = lost.get(place[0], 0) + self._next[place] - end
                self._next[place] = end
                self.stored.pop(place, None)
        for topic, count in lost.items():
            self._on_back(topic, count)

    def _ask(self, names: Iterable[str]) -> dict[str, str]:
        asked, until = set(names), time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return self._now.ids(asked)
            except KafkaException as error:
                if time.monotonic() > until:
                    raise NotConnected(f"Kafka does not report the topics' ids: {error}") from error
                time.sleep(AGAIN_S)
