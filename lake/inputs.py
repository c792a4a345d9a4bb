"""Reads steps and their inputs from the tables: Kafka's records, byte for byte (R1).

`messages` has a row for each message of a run; `commands` has whole records. The rows become
records with the interface of Kafka's client, so the loop's own code builds the step's input from
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from ..protocol.errors import LakequeueError
from ..protocol.messages import HEADER, count_of, encode_run
from ..protocol.steplog import FORMAT, LivePart, Opened, Range, StepRecord
from ..protocol.table_format import NO_RUN
from ..protocol.wire import headers_list
from ..sources.step_batch import PartitionId, goes_first, to_batch
from ..state import Batch
from .opening import Lake

TOGETHER = 1_000  # steps whose inputs are read at once
_STEPS = """
SELECT step, epoch_ms(now), acked, pages, outputs, code, ranges, sizes, parts, live, opened
FROM steps
WHERE broker = $broker AND step > $after AND step <= $last
-- A step that failed has a second record; use that one.
QUALIFY row_number() OVER (PARTITION BY step ORDER BY "offset" DESC) = 1 ORDER BY step
"""
_OPENED = """
SELECT step, opened FROM steps
WHERE broker = $broker AND step > $after AND opened IS NOT NULL ORDER BY step
"""
# In a table without topic ids, which is of version 3, `topic_id` means the outer one.
_MESSAGES = """
SELECT found.* FROM (SELECT NULL AS topic_id) AS no_ids, LATERAL (
  SELECT "offset", epoch_ms(time) AS ms, key, payload, lq, headers, topic_id, item FROM {table}
  WHERE topic = $topic AND "partition" = $partition AND "offset" BETWEEN $first AND $last
) AS found
ORDER BY "offset", ms, found.topic_id, item
"""
_COMMANDS = """
SELECT "offset", epoch_ms(time), key, value, NULL, headers, topic_id FROM {table}
WHERE topic = $topic AND "partition" = $partition AND "offset" BETWEEN $first AND $last
ORDER BY "offset", time
"""
_END = """
SELECT max("offset") FROM {table} WHERE topic = $topic AND "partition" = $partition
  AND ($id = '' OR coalesce(topic_id, $id) = $id)
"""
_live = msgspec.json.Decoder(LivePart).decode
_opened = msgspec.json.Decoder(tuple[Opened, ...]).decode
_Row = tuple[int, int, bytes | None, bytes | None, str | None, str | None, str | None]
NextOffsets = dict[PartitionId, tuple[int, str]]
"""For each partition the next offset, and the id of its topic; empty if unknown."""


class Lost(LakequeueError):
    """The tables lack records that a step read."""


@dataclass(slots=True)
class StoredRecord:
    """A record from the tables, with the interface of the Kafka client's messages."""

    place: PartitionId
    row: _Row

    def topic(self) -> str:
        return self.place[0]

    def offset(self) -> int:
        return self.row[0]

    def timestamp(self) -> tuple[int, int]:
        return 1, self.row[1]

    def key(self) -> bytes | None:
        return self.row[2]

    def value(self) -> bytes | None:
        return self.row[3]

    def topic_id(self) -> str:
        return self.row[6] or ""

    def headers(self) -> list[tuple[str, bytes]] | None:
        own = [] if self.row[4] is None else [(HEADER, self.row[4].encode())]
        return own + headers_list(self.row[5]) or None


@dataclass(slots=True)
class _StepRange:
    """A step that read a range. now: its time. topic_id: of the topic that it read, empty if
    unknown. next_id: of the topic that the broker read next under this name."""

    now: int
    topic_id: str
    next_id: str = ""

    def took(self, there: list[StoredRecord]) -> StoredRecord | None:
        """Choose the record that a step read among several at one offset. If none names its topic,
        it is the newest at that time."""
        if self.topic_id:
            of = {topic_id: [one for one in there if one.topic_id() == topic_id]
                  for topic_id in (self.topic_id, "", self.next_id)}  # fmt: skip
            there = of[self.topic_id] or of[""] or of[self.next_id]
        by_then = (one for one in reversed(there) if one.row[1] <= self.now)
        return next(by_then, (*there, None)[0])


def steps_between(lake: Lake, broker: str, after: int, last: int) -> Iterator[StepRecord]:
    """The records of a broker's log after one step, up to another."""
    given = {"broker": broker, "after": after, "last": last}
    for row in lake.execute(_STEPS, given).fetchall():
        step, now, acked, pages, outputs, code, ranges, sizes, parts, live, opened = row
        lie = msgspec.json.decode(parts) if parts else [()] * len(ranges)
        taken = tuple(
            Range(r["topic"], r["partition"], r["first"], r["last"], r["count"], tuple(p))
            for r, p in zip(ranges, lie, strict=True)
        )
        known = msgspec.json.decode(sizes, type=dict[str, int]) if sizes else {}
        begun = _opened(opened) if opened else ()
        record = StepRecord(FORMAT, step, now, acked, pages, outputs, code, taken, known, begun)
        yield _live(live).added_to(record) if live else record


def opened_behind(lake: Lake, broker: str, step: int) -> list[tuple[int, Opened]]:
    """The topics that a broker opened again after a step, and the step of each."""
    rows = lake.execute(_OPENED, {"broker": broker, "after": step}).fetchall()
    return [(at, one) for at, opened in rows for one in _opened(opened)]


class FromTables:
    """The inputs of consecutive steps, see `driver.Again`.

    A recreated topic has two records at one offset. A step read the record of its own topic. If the
    tables have none of that topic, it read the next topic's: the broker had not noticed the change
    yet. If rows or steps do not name their topic (table version 3, or a Kafka without ids), it read
    the newest record of that time.

    known: the topics before the first step; updated to those after the last one. later: the topics
    that the broker opened again after the last step.
    """

    def __init__(
        self,
        lake: Lake,
        records: list[StepRecord],
        known: NextOffsets | None = None,
        later: Iterable[Opened] = (),
    ) -> None:
        known = {} if known is None else known
        spans: dict[PartitionId, tuple[int, int]] = {}
        self._taken: dict[Range, list[_StepRange]] = {}  # in their order
        waiting: dict[PartitionId, list[_StepRange]] = {}  # for the next topic of this name
        for record in records:
            for o in record.opened:
                known[o.topic, o.partition] = o.at, o.topic_id
                _tell_next(waiting, o)
            for r in record.ranges:
                place = r.topic, r.partition
                first, last = spans.get(place, (r.first, r.last))
                spans[place] = min(first, r.first), max(last, r.last)
                following, topic_id = known.get(place, (0, ""))
                if r.first < following:  # another topic, although the log does not name it
                    topic_id = ""
                known[place] = r.last + 1, topic_id
                taker = _StepRange(record.now, topic_id)
                self._taken.setdefault(r, []).append(taker)
                waiting.setdefault(place, []).append(taker)
        for o in later:
            _tell_next(waiting, o)
        self._found = {place: _read(lake, place, *span) for place, span in spans.items()}
        self._ends: dict[tuple[PartitionId, str], int] = {}
        self._lake = lake

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """Read the records of a step again; raises Lost if the tables do not have them all."""
        found = to_batch({(r.topic, r.partition): self.records(r) for r in ranges}).batch
        for takers in (self._taken[r] for r in ranges):
            if len(takers) > 1:
                del takers[0]
        return found

    def records(self, r: Range) -> list[StoredRecord]:
        """The records of one range, for the next step that read it."""
        there, taker = self._found[r.topic, r.partition], self._taken[r][0]
        of_each = (taker.took(there.get(at, [])) for at in r.offsets())
        found = [one for one in of_each if one is not None]
        if len(found) != r.count:
            raise Lost(
                f"a step read {r.count:,} records, {r.first} to {r.last}, of partition "
                f"{r.partition} of topic {r.topic!r}, but the table {_name(r.topic)!r} has "
                f"{len(found):,} of them"
            )
        return found

    def until_the_end(self, records: list[StepRecord]) -> list[StepRecord]:
        """The steps before the first one that read a record beyond the end of a table. Each table
        is written separately, so `steps` may be ahead. A gap before such an end is a loss, and is
        reported when the step is replayed."""
        for n, record in enumerate(records):
            if any(self._is_behind(r) for r in record.ranges):
                return records[:n]
        return records

    def _is_behind(self, r: Range) -> bool:
        place, taker = (r.topic, r.partition), self._taken[r][-1]
        if taker.took(self._found[place].get(r.last, [])) is not None:
            return False
        topic_id = taker.topic_id
        if (place, topic_id) not in self._ends:
            self._ends[place, topic_id] = self._end(place, topic_id)
        return r.last > self._ends[place, topic_id]

    def _end(self, place: PartitionId, topic_id: str) -> int:
        """The last offset of a topic in the table; -1 if there is none."""
        topic, partition = place
        given = {"topic": topic, "partition": partition, "id": topic_id}
        query = _END.format(table=_name(topic))
        (end,) = self._lake.execute(query, given).fetchone() or (None,)
        return -1 if end is None else int(end)

    def close(self) -> None:
        self._found.clear()


def _tell_next(waiting: dict[PartitionId, list[_StepRange]], opened: Opened) -> None:
    for taker in waiting.pop((opened.topic, opened.partition), ()):
        taker.next_id = opened.topic_id


def _name(topic: str) -> str:
    return "commands" if goes_first(topic) else "messages"


def _read(lake: Lake, place: PartitionId, first: int, last: int) -> dict[int, list[StoredRecord]]:
    """The records by offset; of several at one offset the oldest is first."""
    topic, partition = place
    given = {"topic": topic, "partition": partition, "first": first, "last": last}
    if goes_first(topic):
        rows = lake.execute(_COMMANDS.format(table=_name(topic)), given).fetchall()
    else:
        messages = lake.execute(_MESSAGES.format(table=_name(topic)), given).fetchall()
        of_record = groupby(messages, lambda row: (*row[:2], row[6]))
        rows = [_whole(list(items)) for _, items in of_record]
    found: dict[int, list[StoredRecord]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(StoredRecord(place, row))
    return found


def _whole(items: list[Any]) -> _Row:
    """Build one record from the rows of its messages."""
    first = items[0]
    if first[7] == NO_RUN or _count(first) != len(items):
        return first[:7]  # not a run, or a broken one that was stored unchanged
    return (*first[:3], encode_run([row[3] for row in items]), *first[4:7])


def _count(row: _Row) -> int:
    """The number of messages that the record claims; 0 if it is not a run."""
    _, _, key, _, lq, headers, *_ = row
    return 0 if key is not None or headers is not None else count_of(lq)
