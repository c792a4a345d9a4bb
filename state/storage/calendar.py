"""A calendar: which of many keys is due next, where the time of each may move.

It is a lazy heap. Each key has one entry that counts, at its time or before, so `watch` is needed
only if a time becomes earlier. When the entry is first in the heap, it moves to the present time of
its key.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from .row import NEVER

Key = TypeVar("Key", bound=Any)  # can be sorted: of equal times the smallest key comes first
_SLACK = 64


class Calendar(Generic[Key]):
    """The keys of one owner. time_of: the present time of a key, or NEVER."""

    __slots__ = ("_entries", "_heap", "_time_of")

    def __init__(self, time_of: Callable[[Key], int]) -> None:
        self._time_of = time_of
        self._entries: dict[Key, int] = {}  # the time of each entry that counts
        self._heap: list[tuple[int, Key]] = []

    def watch(self, key: Key, at: int) -> None:
        """Note that a key is due at this time, maybe earlier than before."""
        if at < self._entries.get(key, NEVER):
            self._entries[key] = at
            heappush(self._heap, (at, key))
            self._tidy()

    def forget(self, key: Key) -> None:
        """Drop a key that is gone for good."""
        self._entries.pop(key, None)
        self._tidy()

    def _tidy(self) -> None:
        """Drop the entries that do not count, if there are too many of them. In place, since `next`
        may be reading the heap."""
        heap = self._heap
        if len(heap) > 2 * len(self._entries) + _SLACK:
            heap[:] = [(at, one) for one, at in self._entries.items()]
            heapify(heap)

    def may_be_due(self, now: int) -> bool:
        """Whether a key may be due. Cheap: only False is certain."""
        return bool(self._heap) and self._heap[0][0] <= now

    def next(self) -> int:
        """The earliest time of a key, or NEVER."""
        heap, entries = self._heap, self._entries
        while heap:
            at, key = heap[0]
            counts = entries.get(key) == at
            if counts and self._time_of(key) == at:
                return at
            heappop(heap)
            if counts:
                del entries[key]
                self.watch(key, self._time_of(key))
        return NEVER

    def due(self, now: int) -> Key | None:
        """The key that is longest overdue; None if none is due."""
        return self._heap[0][1] if self.next() <= now else None

    def take(self, now: int, most: int = NEVER) -> list[Key]:
        """Remove up to ``most`` keys that are due; returns them, the longest overdue first. Each is
        due again after another `watch`."""
        found: list[Key] = []
        while len(found) < most and (key := self.due(now)) is not None:
            heappop(self._heap)
            del self._entries[key]
            found.append(key)
        return found
