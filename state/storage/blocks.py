"""Spool blocks: payloads, keys and headers of messages, one behind the other.

A block is written once and read as a whole; the newest ones read are kept, so that messages that
came together cost one read. A block that is missing or too short holds nothing: what stood in it is
lost, which is not the same as empty.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

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
        data = self._block(number)
        if data is None or len(data) < offset + length:
            return None
        return data[offset : offset + length]

    def contents(self, places: Iterable[tuple[int, int, int, int, int]]) -> list[Content | None]:
        """Payload, key and headers of messages; None if they are not there.

        places: of each the block, the offset there, and the lengths of payload, key and headers.
        """
        out: list[Content | None] = []
        last, data, size = -1, None, 0
        for number, offset, length, key_length, header_length in places:
            key_end = offset + length + (0 if key_length == NO_KEY else key_length)
            end = key_end + header_length
            if number != last and end > offset:  # what has no bytes needs no block
                last, data = number, self._block(number)
                size = -1 if data is None else len(data)
            if end == offset:
                out.append((b"", None if key_length == NO_KEY else b"", None))
            elif data is None or end > size:
                out.append(None)
            elif key_length == NO_KEY and not header_length:
                out.append((data[offset:end], None, None))
            else:
                key = None if key_length == NO_KEY else data[offset + length : key_end]
                headers = data[key_end:end] if header_length else None
                out.append((data[offset : offset + length], key, headers))
        return out

    def _block(self, number: int) -> bytes | None:
        if number in self._read:
            self._read.move_to_end(number)
            return self._read[number]
        data = self._read[number] = self._store.get(f"b/{number}")
        if len(self._read) > BLOCKS_CACHED:
            self._read.popitem(last=False)
        return data


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
