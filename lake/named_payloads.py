"""Payload blocks that a snapshot only refers to, read from `messages` (R1).

A reference names `count` consecutive rows of `messages`, from an offset and item on, none of them
newer than its time. Without a topic, it stands for that many empty contents.
`sinks/block_references.py` writes references. All of them are read together. A block with a missing
row is omitted; the snapshot's sum then shows the damage, as it does for an altered row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any

from ..state.storage.blocks import Block
from .inputs import TOGETHER
from .opening import Lake

_ROWS = """
SELECT "offset", item, epoch_us(time),
  coalesce(payload, ''::BLOB) || coalesce(key, ''::BLOB) || coalesce(encode(headers), ''::BLOB),
  topic, "partition"
FROM messages WHERE "offset" BETWEEN $first AND $last
"""
Named = dict[str, list[dict[str, Any]]]
_PartitionId = tuple[str, int]
_Row = tuple[int, int, int, bytes, str, int]  # offset, item, time, content, topic, partition


class _Rows:
    """The rows of a partition that references name."""

    def __init__(self, references: list[dict[str, Any]]) -> None:
        spans = sorted((one["first"], one["last"]) for one in references)
        self._first = [first for first, _ in spans]
        self._last = list(accumulate((last for _, last in spans), max))
        self._rows: list[_Row] = []

    def offer(self, row: _Row) -> None:
        """Add a row of the partition, in any order, if a reference needs it."""
        at = bisect_right(self._first, row[0]) - 1
        if at >= 0 and row[0] <= self._last[at]:
            self._rows.append(row)

    def sort(self) -> None:
        """Sort the rows, after all were offered."""
        self._rows.sort()

    def of(self, one: dict[str, Any]) -> list[bytes] | None:
        """The contents that a reference names; None if some are missing."""
        begin = bisect_left(self._rows, (one["first"], one["item"]))
        end = bisect_left(self._rows, (one["last"] + 1,), begin)
        found = [row[3] for row in self._rows[begin:end] if row[2] <= one["time"]]
        return found[: one["count"]] if len(found) >= one["count"] else None


def blocks_of(lake: Lake, named: Named) -> Iterator[tuple[str, bytes]]:
    """Yield the blocks that these references name, if `messages` has all their rows."""
    places: dict[_PartitionId, list[dict[str, Any]]] = {}
    for one in chain.from_iterable(named.values()):
        if one["topic"]:
            places.setdefault((one["topic"], one["partition"]), []).append(one)
    there = {place: _Rows(theirs) for place, theirs in places.items()}
    if there:
        _read(lake, there, list(chain.from_iterable(places.values())))
    for page, theirs in named.items():
        contents = [
            there[one["topic"], one["partition"]].of(one) if one["topic"] else [b""] * one["count"]
            for one in theirs
        ]
        found = [c for c in contents if c is not None]
        if len(found) == len(contents):
            yield page, Block(list(chain.from_iterable(found)), {}).page()


def _read(
    lake: Lake,
    there: dict[_PartitionId, _Rows],
    references: list[dict[str, Any]],
) -> None:
    given = {
        "first": min(one["first"] for one in references),
        "last": max(one["last"] for one in references),
    }
    rows = lake.execute(_ROWS, given)
    while some := rows.fetchmany(TOGETHER):
        for row in some:
            if (wanted := there.get(row[4:])) is not None:
                wanted.offer(row)
    for of_place in there.values():
        of_place.sort()
