"""Spool blocks: contents of messages, one behind the other, in pages of about 1 MB.

A message in a block is named by the block and its index there, and keeps this name for life. When
a block is emptied, its living contents are copied into another block, which says in its page whose
they are.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from itertools import accumulate, chain
from struct import pack, unpack_from

import msgspec

from ..limits import Limits
from .row import NO_KEY, Row
from .store import Store

Content = tuple[bytes, bytes | None, bytes | None]  # payload, key, headers
Name = tuple[int, int]  # a block, an index in it

_HEAD = 8  # bytes: how many contents, how many of them came from other blocks
_MOVED = 16  # bytes of each that came: its index here, the block and the index of its name


def length_of(content: Content) -> int:
    """The bytes that a content takes."""
    payload, key, headers = content
    if key is None and headers is None:  # most often
        return len(payload)
    return len(payload) + len(key or b"") + len(headers or b"")


class ContentLocation(msgspec.Struct, array_like=True):
    """Where a shared message is, for rows that do not say it yet; waiting: how many these are."""

    block: int
    index: int
    length: int
    key_length: int
    header_length: int
    waiting: int


def stored_length(at: Row | ContentLocation) -> int:
    """The bytes that a content takes, by its place."""
    return at.length + max(at.key_length, 0) + at.header_length


def joined(content: Content) -> bytes:
    """A content as it stands in a block."""
    payload, key, headers = content
    return payload if key is None and headers is None else payload + (key or b"") + (headers or b"")


def parted(data: bytes, at: Row | ContentLocation) -> Content | None:
    """A content as it stood in a block; None if part of it is missing."""
    if at.key_length == NO_KEY and not at.header_length:  # most often
        return (data, None, None) if len(data) == at.length else None
    if len(data) != stored_length(at):
        return None
    key_end = at.length + max(at.key_length, 0)
    key = None if at.key_length == NO_KEY else data[at.length : key_end]
    return data[: at.length], key, data[key_end:] or None


def written(contents: list[bytes], moved: dict[Name, int]) -> bytes:
    """The page of a block. moved: where the contents stand that came from other blocks."""
    parts = [
        pack("<II", len(contents), len(moved)),
        pack(f"<{len(contents)}I", *accumulate(map(len, contents))),
        *[pack("<IQI", index, *name) for name, index in moved.items()],
    ]
    return b"".join(chain(parts, contents))


def head_bytes(start: bytes) -> int:
    """How much of a block's page stands before its contents. start: its first eight bytes."""
    count, moved = unpack_from("<II", start)
    return _HEAD + 4 * int(count) + _MOVED * int(moved)


def ends_of(head: bytes) -> tuple[int, ...] | None:
    """Where each content of a block ends, counted from the first one's begin. None where some came
    from other blocks."""
    count, moved = unpack_from("<II", head)
    return None if moved else unpack_from(f"<{count}I", head, _HEAD)


class Block:
    """A block that was read. Bytes that are not there are a content that is lost."""

    __slots__ = ("_data", "_ends", "is_whole", "moved", "size")

    def __init__(self, page: bytes) -> None:
        count, moved = unpack_from("<II", page)
        at = _HEAD + 4 * count
        begin = at + _MOVED * moved
        self.size = len(page)
        self._data = page
        self._ends = (begin, *[begin + end for end in unpack_from(f"<{count}I", page, _HEAD)])
        self.is_whole = self._ends[-1] == len(page)
        self.moved: dict[Name, int] = {}
        for _ in range(moved):
            index, block, there = unpack_from("<IQI", page, at)
            self.moved[block, there] = index
            at += _MOVED

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        """The content at an index; shorter, or nothing, where the page is cut off."""
        return self._data[self._ends[index] : self._ends[index + 1]]

    def contents(self) -> list[bytes]:
        """All of them, in order."""
        return [self[index] for index in range(len(self))]


class BlockCache:
    """The blocks that were read last. It decides nothing, so a replay may have read others."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._most = limits.blocks_cached * limits.block_bytes
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self._size = 0

    def get(self, number: int) -> Block | None:
        """A block, or None if its page is not there."""
        block = self._blocks.get(number)
        if block is not None:
            self._blocks.move_to_end(number)
            return block
        page = self._store.get(block_key(number))
        try:
            return None if page is None else self.put(number, page)
        except struct.error:  # cut off, so that its contents are lost
            return None

    def put(self, number: int, page: bytes) -> Block:
        """Keep a block that was read, or one that will be read soon."""
        block = self._blocks[number] = Block(page)
        self._size += block.size
        while self._size > self._most and len(self._blocks) > 1:
            self._size -= self._blocks.popitem(last=False)[1].size
        return block

    def forget(self, number: int) -> None:
        """A block changed, or is gone."""
        block = self._blocks.pop(number, None)
        if block is not None:
            self._size -= block.size


def block_key(number: int) -> str:
    """The key of a block's page."""
    return f"b/{number}"
