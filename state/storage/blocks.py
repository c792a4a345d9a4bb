"""Spool blocks: contents of messages, one after the other, in pages of about 1 MB.

A content is named by its block and its index there, and keeps this name for life. When a block is
emptied, its live contents are copied into another block, whose page lists their names.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from itertools import accumulate, chain, pairwise
from struct import pack, unpack_from

from ..limits import Limits
from .row import NO_KEY, Row
from .store import Store

Content = tuple[bytes, bytes | None, bytes | None]  # payload, key, headers
Name = tuple[int, int]  # a block, an index in it

_HEAD = 8  # bytes: the number of contents, and how many of them came from other blocks
_MOVED = 16  # bytes for each that came: its index here, the block and the index of its name


def length_of(content: Content) -> int:
    """The bytes of a content."""
    payload, key, headers = content
    if key is None and headers is None:  # most often
        return len(payload)
    return len(payload) + len(key or b"") + len(headers or b"")


def joined(content: Content) -> bytes:
    """A content as a block has it."""
    payload, key, headers = content
    return payload if key is None and headers is None else payload + (key or b"") + (headers or b"")


def parted(data: bytes, at: Row) -> Content | None:
    """A content from its bytes in a block; None if some of them are missing."""
    if at.key_length == NO_KEY and not at.header_length:  # most often
        return (data, None, None) if len(data) == at.length else None
    key_at, key = at.length, None
    headers_at = key_at
    if at.key_length != NO_KEY:
        headers_at += at.key_length
        key = data[key_at:headers_at]
    if len(data) != headers_at + at.header_length:
        return None
    return data[:key_at], key, data[headers_at:] or None


def head_bytes(start: bytes) -> int:
    """The bytes of a block's page before its contents. start: its first eight bytes."""
    count, moved = unpack_from("<II", start)
    return _HEAD + 4 * int(count) + _MOVED * int(moved)


def ends_of(head: bytes) -> tuple[int, ...] | None:
    """The end of each content, from the start of the first one. None if some contents came from
    other blocks."""
    count, moved = unpack_from("<II", head)
    return None if moved else unpack_from(f"<{count}I", head, _HEAD)


class Block:
    """A block that grows: its contents, and the index of each one that came from another block."""

    __slots__ = ("contents", "moved")

    def __init__(self, contents: list[bytes], moved: dict[Name, int]) -> None:
        self.contents, self.moved = contents, moved

    def content(self, index: int, at: Row) -> Content | None:
        """The content at an index; None if it is lost."""
        return parted(self.contents[index] if 0 <= index < len(self.contents) else b"", at)

    def page(self) -> bytes:
        """The block as it is stored."""
        contents, moved = self.contents, self.moved
        parts = [
            pack("<II", len(contents), len(moved)),
            pack(f"<{len(contents)}I", *accumulate(map(len, contents))),
            *[pack("<IQI", index, *name) for name, index in moved.items()],
        ]
        return b"".join(chain(parts, contents))


class ReadBlock:
    """A block that was read. Its contents are cut from the page when they are needed. bounds: the
    start of each content in the page, and the end of the last one; moved: as in `Block`."""

    __slots__ = ("_bounds", "_page", "moved")

    def __init__(self, page: bytes) -> None:
        """Raises struct.error if the page lacks a part of its head."""
        count, moved = unpack_from("<II", page)
        at = _HEAD + 4 * count
        begin = at + _MOVED * moved
        ends = unpack_from(f"<{count}I", page, _HEAD)
        self._bounds: list[int] = [begin, *[begin + end for end in ends]]
        self._page = page
        self.moved: dict[Name, int] = {}
        for _ in range(moved):
            index, block, there = unpack_from("<IQI", page, at)
            self.moved[block, there] = index
            at += _MOVED

    @property
    def size(self) -> int:
        """The bytes of the page."""
        return len(self._page)

    @property
    def is_whole(self) -> bool:
        """Whether the page has all bytes."""
        return self._bounds[-1] == len(self._page)

    def all(self) -> list[bytes]:
        """All contents. One with missing bytes is lost: it is shorter, or empty."""
        return [self._page[start:end] for start, end in pairwise(self._bounds)]

    def content(self, index: int, at: Row) -> Content | None:
        """The content at an index; None if it is lost."""
        page, bounds = self._page, self._bounds
        if not 0 <= index < len(bounds) - 1:
            return parted(b"", at)
        start, end = bounds[index], bounds[index + 1]
        if at.key_length == NO_KEY and not at.header_length:  # most often
            payload = page[start:end]
            return (payload, None, None) if len(payload) == at.length else None
        return parted(page[start:end], at)


class BlockCache:
    """The blocks that were read last. It affects speed only, so a replay may have others."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._most = limits.blocks_cached * limits.block_bytes
        self._blocks: OrderedDict[int, ReadBlock] = OrderedDict()
        self._size = 0

    def get(self, number: int) -> ReadBlock | None:
        """A block, or None if its page is missing or truncated."""
        block = self._blocks.get(number)
        if block is not None:
            self._blocks.move_to_end(number)
            return block
        page = self._store.get(block_key(number))
        try:
            return None if page is None else self.put(number, page)
        except struct.error:  # truncated: its contents are lost
            return None

    def put(self, number: int, page: bytes) -> ReadBlock:
        """Cache a block that was read, or that will be read soon."""
        block = self._blocks[number] = ReadBlock(page)
        self._size += block.size
        while self._size > self._most and len(self._blocks) > 1:
            self._size -= self._blocks.popitem(last=False)[1].size
        return block

    def forget(self, number: int) -> None:
        """Drop a block that was changed or deleted."""
        block = self._blocks.pop(number, None)
        if block is not None:
            self._size -= block.size


def block_key(number: int) -> str:
    """The key of a block's page."""
    return f"b/{number}"
