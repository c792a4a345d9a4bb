"""Ranges of ids, each until a time: which range an id is in, and which are over.

They have no id in common. Two indexes hold them, each in pages of its own: one by id, one by the
end of their time. So whoever asks for an id, adds a range or forgets what is over, reads and writes
the pages of these ranges, however many there are.

A key of the first is the last id, the first id, the time: the first key that is not below an id
names the range in which that id is, if it is in any. A key of the other has the time in front.
Pages are small, for ranges that change in a step lie anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import msgspec

from ..limits import Limits
from .columns import NEVER
from .ready_index import ReadyIndex
from .store import Store

LEAF_KEYS = 256
_TIME_BITS, _ID_BITS = 63, 64


class IdRangesTop(msgspec.Struct, array_like=True):
    """The tops of both indexes, in the owner's header."""

    by_id: list[list[int]] = []
    next_by_id: int = 0
    by_end: list[list[int]] = []
    next_by_end: int = 0


@dataclass(frozen=True, slots=True, order=True)
class IdRange:
    """The ids from first to last, until a time, epoch ms."""

    first: int
    last: int
    until: int


class IdRanges:
    """Ranges of ids during one step. ``top``: in the owner's header, brought up to date by
    `flush`."""

    def __init__(self, store: Store, prefix: str, top: IdRangesTop, limits: Limits) -> None:
        self._store, self._prefix, self._top, self._limits = store, prefix, top, limits
        self._made: tuple[ReadyIndex, ReadyIndex] | None = None  # few owners have any range

    def __len__(self) -> int:
        return len(self._by_id) if self else 0

    def __bool__(self) -> bool:
        return bool(self._top.by_id if self._made is None else self._made[0])

    @property
    def _by_id(self) -> ReadyIndex:
        return self._indexes()[0]

    @property
    def _by_end(self) -> ReadyIndex:
        return self._indexes()[1]

    def _indexes(self) -> tuple[ReadyIndex, ReadyIndex]:
        if self._made is None:
            top, limits = self._top, self._limits
            small = min(limits.leaf_keys, LEAF_KEYS)
            ids, ends = f"{self._prefix}id/", f"{self._prefix}end/"
            self._made = (
                ReadyIndex(self._store, ids, top.by_id, top.next_by_id, limits, small),
                ReadyIndex(self._store, ends, top.by_end, top.next_by_end, limits, small),
            )
        return self._made

    # ------------------------------------------------------------ changes

    def put(self, first: int, last: int, until: int, most: int) -> bool:
        """Put a range in: it replaces what was said of its ids before. What joins the range before
        it, and ends with it, is one with it. False, and nothing is done, where they would be more
        than ``most``."""
        met = self._meeting(max(first - 1, 0), last)
        beside = met.pop(0) if met and met[0].last < first else None
        new = [IdRange(first, last, until)]
        if met and met[0].first < first:
            new.insert(0, IdRange(met[0].first, first - 1, met[0].until))
        elif beside is not None and beside.until == until:
            met.insert(0, beside)
            new[0] = IdRange(beside.first, last, until)
        if met and met[-1].last > last:
            new.append(IdRange(last + 1, met[-1].last, met[-1].until))
        if len(self) - len(met) + len(new) > most:
            return False
        self.exchange(met, new)
        return True

    def exchange(self, gone: list[IdRange], new: list[IdRange]) -> None:
        """Take ranges out that are there, and put others in that have no id in common with any."""
        if gone:
            self._by_id.discard(sorted(map(_id_key, gone)))
            self._by_end.discard(sorted(map(_end_key, gone)))
        if new:
            self._by_id.add(sorted(map(_id_key, new)))
            self._by_end.add(sorted(map(_end_key, new)))

    def drop(self) -> None:
        """Forget all of them, and delete every page."""
        if self:
            self._by_id.drop()
            self._by_end.drop()

    # ------------------------------------------------------------ looking

    def find(self, number: int) -> IdRange | None:
        """The range in which an id is, or None; reads no page for one below all of them."""
        first = self._by_id.first() if self else None
        if first is None or _range_of(first).first > number:
            return None
        key = next(self._by_id.scan(number << _ID_BITS + _TIME_BITS), None)
        found = None if key is None else _range_of(key)
        return None if found is None or found.first > number else found

    def over(self, now: int, most: int) -> list[IdRange]:
        """Up to so many ranges whose time is over, the one that ended first in front."""
        keys = islice(self._by_end.scan(stop=now + 1 << 2 * _ID_BITS), most)
        mask = (1 << _ID_BITS) - 1
        return [IdRange(key & mask, key >> _ID_BITS & mask, key >> 2 * _ID_BITS) for key in keys]

    def next_end(self) -> int:
        """When the first of them is over, or NEVER; reads no page."""
        first = self._by_end.first() if self else None
        return NEVER if first is None else first >> 2 * _ID_BITS

    def overview(self) -> list[list[int]]:
        """Every range as ``[first, last, until]``, ascending; reads every page."""
        ranges = map(_range_of, self._by_id.scan())
        return [[one.first, one.last, one.until] for one in ranges]

    def _meeting(self, first: int, last: int) -> list[IdRange]:
        """The ranges that have an id in common with this one, ascending."""
        met = []
        for key in self._by_id.scan(first << _ID_BITS + _TIME_BITS):
            one = _range_of(key)
            if one.first > last:
                break
            met.append(one)
        return met

    # ------------------------------------------------------------ end of the step

    def flush(self) -> None:
        """Write what changed."""
        if self._made is None:
            return
        ids, ends = self._made
        ids.flush()
        ends.flush()
        top = self._top
        top.by_id, top.next_by_id = ids.directory(), ids.pages
        top.by_end, top.next_by_end = ends.directory(), ends.pages


def _id_key(one: IdRange) -> int:
    return ((one.last << _ID_BITS) + one.first << _TIME_BITS) + one.until


def _end_key(one: IdRange) -> int:
    return ((one.until << _ID_BITS) + one.last << _ID_BITS) + one.first


def _range_of(key: int) -> IdRange:
    ids = key >> _TIME_BITS
    mask = (1 << _ID_BITS) - 1
    return IdRange(ids & mask, ids >> _ID_BITS, key & (1 << _TIME_BITS) - 1)
