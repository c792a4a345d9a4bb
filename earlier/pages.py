"""Pages of state format 7, as rows and facts.

Headers and small facts are msgpack maps. Rows of queues and messages are columns: equal values are
one value, consecutive values are the first one in a list, others are raw bytes, little-endian.
Extras are small data of a few rows, beside the columns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from ..protocol.ids import COUNTER_MASK
from ..state import Store

FORMAT = 7
PAGE_BITS = 10  # a page of rows has 2 to that power
MESSAGE_PAGES_CACHED = 64  # pages of a thousand rows
QUEUE_PAGES_CACHED = 64
BLOCKS_CACHED = 16  # about 1 MB each
BUCKETS = 64  # buckets of names, in paged maps
EVENTS_PER_PAGE = 50
EVENTS = 1_000  # the newest events that the engine keeps
NO_KEY = 0xFFFFFFFF
GONE = 0  # the state of a row without a message

Content = tuple[bytes, bytes | None, bytes | None]
"""Payload, key and headers of a message."""

_decode = msgspec.msgpack.decode


class StoredMessage(NamedTuple):
    """A message's facts besides its queues', column by column. queue, seq: its first match, queue
    0: the message is gone; past: the queue that had it before; origin: its id at other brokers, 0:
    that of its row."""

    queue: int
    seq: int
    block: int
    offset: int
    length: int
    key_length: int
    header_length: int
    size: int
    file: int
    time: int
    ttl_ends: int
    priority: int
    dmq: int
    vpn: int
    past: int
    origin: int


class KnownEntry(NamedTuple):
    """A message in a queue, column by column."""

    id: int
    state: int
    barrier: int
    priority: int
    generation: int
    lane: int
    size: int
    entered: int
    expires: int
    until: int
    holder: int
    deliveries: int
    cancels: int
    delivery: int


_MESSAGE = "IQIIIIIIIqqBBHIQ"  # types of the columns, as `struct` names them
_ENTRY = "QBBQIQIqqqIIIQ"
# A message whose page is missing, which only damage can cause.
_LOST = StoredMessage(0, 0, 0, 0, 1, NO_KEY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

Rows = tuple[list[Any], dict[int, Any]]
"""The rows of a page, and the extras of some of them."""


class EarlierPages:
    """The pages of a broker. keys: of all pages; bits: a page has 2 to that power rows."""

    def __init__(self, store: Store, keys: Iterable[str], bits: int = PAGE_BITS) -> None:
        self._store = store
        self.keys = sorted(keys)
        self.bits = bits
        self.facts: dict[str, Any] = self.read("broker")
        self.number: int = self.facts["number"]
        self._of_queue: dict[int, list[int]] = {}
        for key in self.keys:
            if key.startswith("p/"):
                _, queue, number = key.split("/")
                self._of_queue.setdefault(int(queue), []).append(int(number))
        self.next_counter: int = self.facts["spool"]["next_counter"]  # of message ids
        self.vpn_names: dict[int, str] = {n: name for name, n in self.facts["vpns"].items()}
        self._message_page = lru_cache(MESSAGE_PAGES_CACHED)(self._read_messages)
        self._block = lru_cache(BLOCKS_CACHED)(lambda number: store.get(f"b/{number}"))
        self._ids = lru_cache(QUEUE_PAGES_CACHED)(self._read_ids)

    def read(self, key: str) -> Any:
        """A page of small facts; None if it does not exist."""
        page = self._store.get(key)
        return None if page is None else _decode(page, strict=False)

    def under(self, prefix: str) -> list[str]:
        """The rest of all keys with a prefix."""
        return [key[len(prefix) :] for key in self.keys if key.startswith(prefix)]

    def events(self) -> list[list[Any]]:
        """The notable events, the oldest first."""
        end = self.facts.get("events", 0)
        numbers = range(max(end - EVENTS, 0) // EVENTS_PER_PAGE, end // EVENTS_PER_PAGE + 1)
        found = [event for number in numbers for event in self.read(f"e/{number}") or []]
        return found[-EVENTS:]

    # ------------------------------------------------------------ rows

    def entries(self, queue: int) -> Iterator[tuple[int, KnownEntry, Any]]:
        """The messages of a queue in order of entry: position, row, extras."""
        for number in sorted(self._of_queue.get(queue, ())):
            page = self._store.get(f"p/{queue}/{number}")
            assert page is not None, f"page {number} of queue {queue} was there"
            rows, extras = _rows(page, _ENTRY, KnownEntry)
            for row, entry in enumerate(rows):
                if entry.state != GONE:
                    yield (number << self.bits) + row, entry, extras.get(row)

    def id_at(self, queue: int, place: int) -> int:
        """The message that is or was at a position of a queue; 0 if its page is gone."""
        ids, row = self._ids(queue, place >> self.bits), place & (1 << self.bits) - 1
        return ids[row] if row < len(ids) else 0

    def _read_ids(self, queue: int, number: int) -> list[int]:
        page = self._store.get(f"p/{queue}/{number}")
        return [] if page is None else [entry.id for entry in _rows(page, _ENTRY, KnownEntry)[0]]

    def message(self, stored: int) -> tuple[StoredMessage, bool]:
        """A message by its row's id; and whether it has, or had, more than one match."""
        counter = stored & COUNTER_MASK
        found = self._message_page(counter >> self.bits)
        row = counter & (1 << self.bits) - 1
        if found is None or row >= len(found[0]):
            return _LOST, False
        return found[0][row], row in found[1]

    def _read_messages(self, number: int) -> Rows | None:
        page = self._store.get(f"m/{number}")
        return None if page is None else _rows(page, _MESSAGE, StoredMessage)

    # ------------------------------------------------------------ contents

    def content(self, message: StoredMessage) -> Content | None:
        """A message's content; None if it is lost."""
        has_key = message.key_length != NO_KEY
        key_at = message.offset + message.length
        headers_at = key_at + (message.key_length if has_key else 0)
        end = headers_at + message.header_length
        if end == message.offset:  # an empty content needs no block
            return b"", b"" if has_key else None, None
        block = self._block(message.block)
        if block is None or end > len(block):
            return None
        key = block[key_at:headers_at] if has_key else None
        return block[message.offset : key_at], key, block[headers_at:end] or None

    # ------------------------------------------------------------ early acks

    def early_acks(self, queue: int, facts: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
        """Ids that were acknowledged before they arrived (L9): first, last, end of the deferred
        ack."""
        yield from (tuple(one) for one in facts.get("deferred", ()))
        top = facts.get("early") or [[]]
        for *_, page, level in top[0]:
            for last, first, until in self._index_keys(f"early/{queue}/id/", page, level):
                yield first, last, until

    def _index_keys(self, prefix: str, page: int, level: int) -> Iterator[tuple[int, int, int]]:
        """The keys below an entry of the index. A key is the last id, the first id, and 63 bits of
        time; a page has the high words of all its keys, then the middle ones, then the low ones. A
        branch has the number of its pages, the number of keys in each, and the pages' numbers."""
        data = self._store.get(f"{prefix}{page}")
        assert data is not None, f"page {page} of {prefix} is missing"
        words = struct.unpack(f"<{len(data) // 8}Q", data)
        if level:
            for below in words[1 + words[0] : 1 + 2 * words[0]]:
                yield from self._index_keys(prefix, below, level - 1)
            return
        n = len(words) // 3
        for high, middle, low in zip(words[:n], words[n : 2 * n], words[2 * n :], strict=True):
            key = (high << 128) + (middle << 64) + low
            yield key >> 127, key >> 63 & (1 << 64) - 1, key & (1 << 63) - 1


def bucket(name: str) -> int:
    """The bucket of a name in paged maps."""
    return crc32(name.encode()) % BUCKETS


def _rows(page: bytes, types: str, kind: type[Any]) -> Rows:
    used, packed, extras = _decode(page)
    columns = [_column(one, code, used) for one, code in zip(packed, types, strict=True)]
    return [kind._make(row) for row in zip(*columns, strict=True)], dict(extras)


def _column(packed: int | list[int] | bytes, code: str, used: int) -> Iterable[int]:
    if isinstance(packed, bytes):
        return struct.unpack(f"<{used}{code}", packed)
    if isinstance(packed, list):
        return range(packed[0], packed[0] + used)
    return [packed] * used
