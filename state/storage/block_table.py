"""The table of spool blocks: bytes, live bytes, and where contents were moved.

A content's name is its first block and its index there; `BlockInfo.dead` marks dead contents.
Compaction moves all live contents of a block to one other block, its `home`. Names stay, so
compaction reads and changes no row.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .blocks import Name, block_key
from .calendar import Calendar
from .id_set import bits_of
from .row import NEVER
from .store import Store

PAGE_BITS = 5  # 2^5 infos share a page
SHARES = 16  # blocks are compared by the sixteenths of their bytes that are live

_encode = msgspec.msgpack.encode


class BlockInfo(msgspec.Struct, array_like=True):
    """One block."""

    number: int
    bytes: int = 0  # of all its contents; 0 once it is emptied
    live_bytes: int = 0  # of live contents
    messages: int = 0  # live contents in this block, whatever their names
    own: int = 0  # live contents named by this block, wherever they are
    home: int = 0  # the block that has its own contents; 0: this one
    dead: bytearray = msgspec.field(default_factory=bytearray)  # a bit for each own content


_decode = msgspec.msgpack.Decoder(list[BlockInfo]).decode


class BlockTable:
    """All blocks. At most one is open. It grows, and dead contents in it do not count."""

    def __init__(self, store: Store, open_block: int, pages: Iterable[int] = ()) -> None:
        self._store = store
        self.infos: dict[int, BlockInfo] = {}
        self._pages: dict[int, int] = {}  # how many infos each page has
        self._changed: dict[int, None] = {}  # pages
        self._closed = Calendar[int](self._share_of)  # closed blocks, the emptiest first
        self.open = open_block  # 0: none
        self.bytes = self.live_bytes = 0  # of all
        for number in pages:
            page = store.get(f"bi/{number}")
            assert page is not None, f"page bi/{number} of blocks is missing"
            for info in _decode(page):
                self._put(info)
                self.bytes += info.bytes
                self.live_bytes += info.live_bytes
                self._closed.watch(info.number, self._share_of(info.number))
        self._changed.clear()

    def state(self) -> list[int]:
        """Write the pages that changed; returns the constructor's ``pages``."""
        for at in self._changed:
            first = at << PAGE_BITS
            numbers = range(first, first + (1 << PAGE_BITS))
            infos = [info for number in numbers if (info := self.infos.get(number)) is not None]
            if infos:
                self._store.put(f"bi/{at}", _encode(infos))
            else:
                self._store.delete(f"bi/{at}")
        self._changed.clear()
        return sorted(self._pages)

    # ------------------------------------------------------------ the open block

    def begin(self, number: int) -> BlockInfo:
        """Open a new block."""
        info = BlockInfo(number)
        self._put(info)
        self.open = number
        return info

    def close(self) -> None:
        """Close the open block, which was written."""
        info = self.infos[self.open]
        self.open = 0
        self._touch(info.number)
        self._closed.watch(info.number, self.share(info))

    def append(self, info: BlockInfo, count: int, length: int, own: bool) -> None:
        """Note contents that were added to the open block. length: their bytes together."""
        info.bytes += length
        info.live_bytes += length
        info.messages += count
        info.own += count if own else 0
        self.bytes += length
        self.live_bytes += length
        self._changed[info.number >> PAGE_BITS] = None

    # ------------------------------------------------------------ messages that are removed

    def lives(self, name: Name) -> bool:
        """Whether a content is live."""
        info = self.infos.get(name[0])
        if info is None:
            return False
        at = name[1] >> 3
        return at >= len(info.dead) or not info.dead[at] >> (name[1] & 7) & 1

    def home_of(self, number: int) -> int:
        """The block that has the contents named by this block; 0 if there is none."""
        info = self.infos.get(number)
        return 0 if info is None else info.home or number

    def release(self, number: int, indexes: list[int], length: int) -> None:
        """Mark contents named by one block as dead. length: their bytes together."""
        info = self.infos.get(number)
        if info is None:
            return
        indexes.sort()
        before, more = int.from_bytes(info.dead, "little"), bits_of(indexes)
        assert not before & more, f"block {number}: a content is dead already"
        size = max(len(info.dead), (indexes[-1] >> 3) + 1)
        info.dead = bytearray((before | more).to_bytes(size, "little"))
        info.own -= len(indexes)
        self._touch(number)
        where = info
        if info.home:
            where = self.infos[info.home]
            self._touch(info.home)
        is_open = where.number == self.open
        where.live_bytes -= length
        where.messages -= len(indexes)
        self.live_bytes -= length
        if is_open:
            where.bytes -= length
            self.bytes -= length
        if not where.messages:
            self.empty(where, 0)
        elif not is_open:
            self._closed.watch(where.number, self.share(where))
        if not info.own and not info.bytes and not info.messages:
            self._remove(info)

    def empty(self, info: BlockInfo, home: int) -> None:
        """Delete the page of a block without live contents. home: the block that its contents moved
        to."""
        if info.number == self.open:
            self.open = 0
        self._closed.forget(info.number)
        self._store.delete(block_key(info.number))
        self.bytes -= info.bytes
        info.bytes = info.live_bytes = info.messages = 0
        info.home = home
        self._touch(info.number)
        if not info.own:
            self._remove(info)

    def move(self, name: Name, source: BlockInfo, target: BlockInfo, length: int) -> None:
        """Note that a live content was copied to the open block, where `append` counted it."""
        source.live_bytes -= length
        self.live_bytes -= length
        source.messages -= 1
        if name[0] != source.number:
            self.infos[name[0]].home = target.number
            self._touch(name[0])

    def lose(self, info: BlockInfo) -> None:
        """Note that a closed block's page is missing: it takes no room and cannot be emptied."""
        self.bytes -= info.bytes
        info.bytes = 0
        self._touch(info.number)

    def share(self, info: BlockInfo) -> int:
        """How many sixteenths of a block are live; all, if the block has no bytes."""
        return info.live_bytes * SHARES // info.bytes if info.bytes else SHARES

    def emptiest(self, most: int) -> BlockInfo | None:
        """The closed block with the smallest live share of at most ``most`` sixteenths, the oldest
        of equals."""
        number = self._closed.due(most)
        return None if number is None else self.infos[number]

    def _share_of(self, number: int) -> int:
        info = self.infos.get(number)
        if info is None or number == self.open or not info.messages:
            return NEVER
        return self.share(info)

    # ------------------------------------------------------------ within

    def _put(self, info: BlockInfo) -> None:
        self.infos[info.number] = info
        at = info.number >> PAGE_BITS
        self._pages[at] = self._pages.get(at, 0) + 1
        self._touch(info.number)

    def _remove(self, info: BlockInfo) -> None:
        if self.infos.pop(info.number, None) is None:
            return
        at = info.number >> PAGE_BITS
        self._pages[at] -= 1
        if not self._pages[at]:
            del self._pages[at]
        self._touch(info.number)

    def _touch(self, number: int) -> None:
        self._changed[number >> PAGE_BITS] = None
