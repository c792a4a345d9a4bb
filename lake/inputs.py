"""Steps and what they took, from the tables: records as Kafka gave them, byte for byte (R1).

`messages` has a row for each message of a run, `commands` has records as they are. Rows become
records again with the face of Kafka's client, so that the loop's own code makes the step's input of
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol.errors import LakequeueError
from ..protocol.messages import HEADER, encode_run
from ..protocol.steplog import FORMAT, LivePart, Range, StepRecord
from ..protocol.wire import headers_list
from ..sources.step_batch import Place, goes_first, to_batch
from ..state import Batch

if TYPE_CHECKING:
    import duckdb

TOGETHER = 1_000  # steps whose inputs are read at once
_STEPS = """
SELECT step, epoch_ms(now), acked, pages, outputs, code, ranges, sizes, {parts}, {live} FROM steps
WHERE broker = $broker AND step > $after AND step <= $last
-- A step that failed has a second record, and that one counts.
QUALIFY row_number() OVER (PARTITION BY step ORDER BY "offset" DESC) = 1 ORDER BY step
"""
_MESSAGES = """
SELECT "offset", epoch_ms(time), key, payload, lq, headers FROM messages
WHERE topic = $topic AND "partition" = $partition AND "offset" BETWEEN $first AND $last
ORDER BY "offset", time, item
"""
_COMMANDS = """
SELECT "offset", epoch_ms(time), key, value, NULL, headers FROM commands
WHERE topic = $topic AND "partition" = $partition AND "offset" BETWEEN $first AND $last
ORDER BY "offset", time
"""
_END = """
SELECT max("offset") FROM {table} WHERE topic = $topic AND "partition" = $partition
"""
_live = msgspec.json.Decoder(LivePart).decode
_Row = tuple[int, int, bytes | None, bytes | None, str | None, str | None]


class Lost(LakequeueError):
    """The tables do not have what a step took."""


@dataclass(slots=True)
class Stored:
    """A record from the tables, with the face of the Kafka client's messages."""

    place: Place
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

    def headers(self) -> list[tuple[str, bytes]] | None:
        own = [] if self.row[4] is None else [(HEADER, self.row[4].encode())]
        return own + headers_list(self.row[5]) or None


def steps_between(
    lake: duckdb.DuckDBPyConnection, broker: str, after: int, last: int
) -> Iterator[StepRecord]:
    """The records of a broker's log behind a step, up to a step."""
    given = {"broker": broker, "after": after, "last": last}
    columns = [name for name, *_ in lake.execute("SELECT * FROM steps LIMIT 0").description]
    newer = {name: name if name in columns else "NULL" for name in ("parts", "live")}
    for row in lake.execute(_STEPS.format(**newer), given).fetchall():
        step, now, acked, pages, outputs, code, ranges, sizes, parts, live = row
        lie = msgspec.json.decode(parts) if parts else [()] * len(ranges)
        taken = tuple(
            Range(r["topic"], r["partition"], r["first"], r["last"], r["count"], tuple(p))
            for r, p in zip(ranges, lie, strict=True)
        )
        known = msgspec.json.decode(sizes, type=dict[str, int]) if sizes else {}
        record = StepRecord(FORMAT, step, now, acked, pages, outputs, code, taken, known)
        yield _live(live).added_to(record) if live else record


class FromTables:
    """What steps took, see `driver.Again`: for steps that follow each other.

    A topic that was deleted and made anew has two records at one offset. A step took the one that
    was the newest by then.
    """

    def __init__(self, lake: duckdb.DuckDBPyConnection, records: list[StepRecord]) -> None:
        spans: dict[Place, tuple[int, int]] = {}
        self._times: dict[Range, list[int]] = {}  # of the steps that took it, in their order
        for record in records:
            for r in record.ranges:
                place = r.topic, r.partition
                first, last = spans.get(place, (r.first, r.last))
                spans[place] = min(first, r.first), max(last, r.last)
                self._times.setdefault(r, []).append(record.now)
        self._found = {place: _read(lake, place, *span) for place, span in spans.items()}
        self._last = {place: last for place, (_, last) in spans.items()}
        self._lake = lake

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """The same records once more; raises Lost when the tables do not have them all."""
        found = to_batch({(r.topic, r.partition): self.records(r) for r in ranges}).batch
        for times in (self._times[r] for r in ranges):
            if len(times) > 1:
                del times[0]
        return found

    def records(self, r: Range) -> list[Stored]:
        """The records of one range, for the step that is next to take it."""
        there, now = self._found[r.topic, r.partition], self._times[r][0]
        found = [_as_of(there[at], now) for at in r.offsets() if at in there]
        if len(found) != r.count:
            raise Lost(
                f"a step took {r.count:,} records, {r.first} to {r.last}, of partition "
                f"{r.partition} of topic {r.topic!r}, and the table {_table(r.topic)!r} has "
                f"{len(found):,} of them"
            )
        return found

    def until_the_end(self, records: list[StepRecord]) -> list[StepRecord]:
        """The steps before the first that took what lies behind the end of a table: each table is
        written by itself, and that of the steps may be ahead. What is missing before such an end
        is lost, and told where it is taken."""
        ends = {
            place: self._end(place) for place, last in self._last.items()
            if last not in self._found[place]
        }  # fmt: skip
        for n, record in enumerate(records):
            if any(r.last > ends.get((r.topic, r.partition), r.last) for r in record.ranges):
                return records[:n]
        return records

    def _end(self, place: Place) -> int:
        """The last offset that the table has; -1: none."""
        topic, partition = place
        given = {"topic": topic, "partition": partition}
        (end,) = self._lake.execute(_END.format(table=_table(topic)), given).fetchone() or (None,)
        return -1 if end is None else int(end)

    def close(self) -> None:
        """Let go of everything."""
        self._found.clear()


def _table(topic: str) -> str:
    return "commands" if goes_first(topic) else "messages"


def _read(
    lake: duckdb.DuckDBPyConnection, place: Place, first: int, last: int
) -> dict[int, list[Stored]]:
    """By offset; of several at one the oldest first."""
    topic, partition = place
    given = {"topic": topic, "partition": partition, "first": first, "last": last}
    if goes_first(topic):
        rows = lake.execute(_COMMANDS, given).fetchall()
    else:
        messages = lake.execute(_MESSAGES, given).fetchall()
        rows = [_whole(list(items)) for _, items in groupby(messages, lambda row: row[:2])]
    found: dict[int, list[Stored]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(Stored(place, row))
    return found


def _as_of(records: list[Stored], now: int) -> Stored:
    """Of the records at one offset the one that was there at this time."""
    return next((one for one in reversed(records) if one.row[1] <= now), records[0])


def _whole(items: list[Any]) -> _Row:
    """One record of the rows of its messages."""
    first = items[0]
    if _count(first) != len(items):
        return first  # no run; or one that was none, and stands there as it came
    return (*first[:3], encode_run([row[3] for row in items]), *first[4:])


def _count(row: _Row) -> int:
    """How many messages the record says that it has; 0: it is no run."""
    _, _, key, _, lq, headers = row
    if lq is None or '"count"' not in lq or key is not None or headers is not None:
        return 0
    try:
        said = msgspec.json.decode(lq)
    except msgspec.DecodeError:
        return 0
    count = said.get("count") if isinstance(said, dict) else None
    return count if isinstance(count, int) else 0
