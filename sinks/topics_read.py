"""From where each batch of the tables reads its topics, and what of them the tables have (R1).

A topic is not its name: one that was deleted and made anew begins at offset 0 once more. Spark
plans batches by names, and would leave out what the new one has before the old offset. So Kafka's
id of its topic stands beside each row, and the topics' ids are asked with each batch:

    another id than before, or than the rows have   the new topic is read from its beginning
    the id that the rows have                       what stands behind the last row is read
    no id (Kafka before 2.8), and an end that is
    before what was read                            as another id

What is read within a batch has one id: a topic that is made anew meanwhile ends it, and the next
start reads it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from ..protocol.errors import NotConnected
from ..sources.offset_ranges import BEGINNING, WAIT_S_MAX, Ranges, Scan
from ..sources.same_topic import TopicsNow
from ..sources.step_batch import PartitionId

log = logging.getLogger("lakequeue.tables")

AGAIN_S = 0.5
NO_ID = ""
NEVER = (1 << 63) - 1  # µs since 1970: no record is younger
At = tuple[int, int]
Rows = Mapping[PartitionId, Mapping[str, At]]
"""Of each partition what a table has: by topic id the last offset, and the newest time, in µs."""


class Topics(Protocol):
    """Asks Kafka, see `same_topic.TopicsNow`."""

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Of the topics that are there."""

    def ends(
        self, places: Iterable[PartitionId], spec: Any, committed: bool = False
    ) -> dict[PartitionId, int]:
        """Of the partitions that answer."""


class TopicsRead:
    """Of one query, from one of its starts on. rows: what the table has then.

    stored: of each partition the last offset that the table has of this very topic; where that is
    not known, also the newest time: then a record that is younger is not there.
    """

    @classmethod
    def of(cls, kafka: dict[str, Any], rows: Rows) -> TopicsRead:
        """kafka: how it is reached. In the driver: that Kafka is away the engine says itself."""
        return cls(TopicsNow({**kafka, "log_level": 0}), rows)

    def __init__(self, now: Topics, rows: Rows) -> None:
        self._now, self._rows = now, rows
        self._next: dict[PartitionId, int] = {}
        self._known: dict[PartitionId, str] = {}
        self.ids: dict[str, str] = {}
        self.stored: dict[PartitionId, At] = {}

    def plan(self, scan: Scan) -> Ranges:
        """What the next batch reads. Raises NotConnected where Kafka does not answer."""
        self.ids = self._ask(topic for topic, _ in scan.ends)
        ends = {place: end for place, end in scan.ends.items() if place[0] in self.ids}
        anew = {place for place, end in ends.items() if self._is_other(place, scan, end)}
        if anew:
            self._begin_anew(anew)
            there = self._now.ends(anew, OffsetSpec.latest(), committed=True)
            # Spark may have planned it while the old topic was there.
            ends |= {place: min(ends[place], there.get(place, 0)) for place in anew}
        self._known |= {p: self.ids[p[0]] or self._known.get(p, NO_ID) for p in ends}
        return {p: (self._next[p], end) for p, end in ends.items() if max(0, self._next[p]) < end}

    def read(self, ranges: Ranges) -> None:
        """They were read. Raises NotConnected where one is of another topic by now."""
        now = self._ask(topic for topic, _ in ranges)
        for topic in {topic for topic, _ in ranges}:
            if now.get(topic) != self.ids[topic]:
                raise NotConnected(f"topic {topic!r} was deleted or made anew while it was read")
        self._next |= {place: end for place, (_, end) in ranges.items()}

    def may_be_stored(self, ranges: Ranges) -> dict[PartitionId, At]:
        """`stored`, of those partitions of which a range has some of it."""
        return {p: at for p, at in self.stored.items() if p in ranges and ranges[p][0] <= at[0]}

    def _is_other(self, place: PartitionId, scan: Scan, end: int) -> bool:
        """Whether a partition is of another topic than what was read of it so far."""
        now = self.ids[place[0]]
        if place in self._known:
            known = self._known[place]
            return known != now if known and now else end < self._next[place]
        rows, begin = self._rows.get(place, {}), scan.begins.get(place, BEGINNING)
        self._next[place] = begin
        if now and now in rows:
            self.stored[place] = rows[now][0], NEVER
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
                "topic %r was deleted and made anew: the tables have it from its beginning; what "
                "they had not read of the old one is lost", topic,
            )  # fmt: skip

    def _ask(self, names: Iterable[str]) -> dict[str, str]:
        asked, until = set(names), time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return self._now.ids(asked)
            except KafkaException as error:
                if time.monotonic() > until:
                    raise NotConnected(f"the ids of topics are not answered: {error}") from error
                time.sleep(AGAIN_S)
