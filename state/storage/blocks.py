"""Spool blocks: payloads, keys and headers of messages, one behind the other.

A block is written once and read as a whole; the newest ones read are kept, so that messages that
came together cost one read. A block that is missing or too short holds nothing: what stood in it is
lost, which is not the same as empty.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .columns import Array
from .message_pages import NO_KEY
from .store import Store

BLOCKS_CACHED = 16

Content = tuple[bytes, bytes | None, bytes | None]


class Blocks:
    """Reads blocks during one step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: OrderedDict[int, bytes | None] = OrderedDict()

    def has(self, number: int) -> bool:
        """Whether a block was read and is still kept."""
        return number in self._read

    def span(self, number: int, offset: int, length: int) -> bytes | None:
        """Bytes of a block; None if they are not there."""
        if not length:
            return b""
        if number in self._read:
            self._read.move_to_end(number)
            data = self._read[number]
        else:
            data = self._read[number] = self._store.get(f"b/{number}")
            if len(self._read) > BLOCKS_CACHED:
                self._read.popitem(last=False)
        if data is None or len(data) < offset + length:
            return None
        return data[offset : offset + length]

    def content(
        self, number: int, offset: int, length: int, key_length: int, header_length: int
    ) -> Content | None:
        """Payload, key and headers of a message; None if they are not there."""
        key_end = length + (0 if key_length == NO_KEY else key_length)
        data = self.span(number, offset, key_end + header_length)
        if data is None:
            return None
        key = None if key_length == NO_KEY else data[length:key_end]
        return data[:length], key, data[key_end:] if header_length else None


def cut_into_blocks(spans: Array, block_bytes: int) -> list[tuple[int, int]]:
    """Which messages share a block: (start, stop) of as many as fit, and at least one."""
    ends = spans.cumsum()
    cuts: list[tuple[int, int]] = []
    start, total = 0, len(spans)
    if total and int(ends[-1]) <= block_bytes:
        return [(0, total)]
    while start < total:
        base = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, base + block_bytes, side="right")), start + 1)
        cuts.append((start, stop))
        start = stop
    return cuts
