"""The spool: the content of each message, stored once for all its queues (S1, S2, S8, S12).

A content is in memory by message id until a row of it is *settled*: when the row is spilled, or
when a mark finds it. Then it is appended to the open block, and the row says where it is. A shared
message is settled once: `ContentLocation` says where it is to the rows that do not know it yet.

Whatever decides anything (counts, blocks, what is stored) is the same after a mark was loaded.
What is only kept for speed (contents of placed messages, blocks that were read) decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...protocol.ids import make_id
from ..limits import Limits
from .block_table import BlockInfo, BlockTable
from .blocks import (
    Block,
    BlockCache,
    Content,
    ContentLocation,
    Name,
    block_key,
    joined,
    length_of,
    parted,
    stored_length,
    written,
)  # fmt: skip
from .match_counts import PAGE_BITS, MatchCounts
from .row import IN_MEMORY, NO_KEY, Row
from .store import Store

__all__ = ["Content", "Spool", "SpoolState"]

OVERHEAD = 1_000  # bytes of memory that a message in memory takes beside its content: its row
SMALL = 4  # a mark closes the open block if it is fuller than a quarter; else it goes on growing
# Blocks are emptied of which at most so many sixteenths live. If less than half of all lives, there
# is one. Where files are short, more is moved to win less.
SHARE_MOST = 7
SHARE_MOST_PRESSED = 11


class SpoolState(msgspec.Struct, array_like=True):
    """The spool in the broker's page; its tables have pages of their own."""

    next_counter: int = 1
    messages: int = 0
    bytes: int = 0
    vpn_bytes: list[tuple[int, int]] = []
    next_block: int = 1
    open_block: int = 0
    blocks: list[int] = []  # pages of `BlockTable`
    matches: list[tuple[int, int]] = []  # of `MatchCounts`
    places: list[tuple[int, ContentLocation]] = []


class Spool:
    """The messages of one broker."""

    def __init__(self, store: Store, broker_number: int, limits: Limits) -> None:
        self._set_up(store, broker_number, SpoolState(), limits)

    @classmethod
    def load(cls, store: Store, broker_number: int, state: SpoolState, limits: Limits) -> Spool:
        """The spool that `state` has packed."""
        self = cls.__new__(cls)
        self._set_up(store, broker_number, state, limits)
        return self

    def _set_up(self, store: Store, broker_number: int, state: SpoolState, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._base = make_id(broker_number, 0)
        self.next_counter = state.next_counter
        self.messages = state.messages
        self.bytes = state.bytes  # as quotas count (Q8), each message once
        self.vpn_bytes: dict[int, int] = dict(state.vpn_bytes)
        self._contents: dict[int, Content] = {}
        self._unplaced = 0  # bytes of contents that are in no block
        self._kept = 0  # contents that are in a block too, for rows that do not say so yet
        self._matches = MatchCounts(store, state.matches)
        self._places: dict[int, ContentLocation] = dict(state.places)
        self._table = BlockTable(store, state.open_block, state.blocks)
        self._cache = BlockCache(store, limits)
        self._next_block = state.next_block
        self._open: list[bytes] = []  # contents of the open block
        self._moved: dict[Name, int] = {}  # those that came from other blocks
        self._changed = False  # the open block has no page of its newest contents
        self._soon = False  # some of them are of live rows
        if state.open_block:
            block = self._cache.get(state.open_block)
            if block is None:  # what stood there is lost
                self._table.close()
            else:
                self._open, self._moved = block.contents(), block.moved
                self._cache.forget(state.open_block)

    # ------------------------------------------------------------ storing

    def next_id(self) -> int:
        """The id that the next stored message gets."""
        return self._base | self.next_counter

    def skip_id(self) -> int:
        """Give an id that no message here has."""
        number = self._base | self.next_counter
        self.next_counter += 1
        return number

    def store(self, vpn: int, contents: Sequence[Content], size: int, matches: int) -> int:
        """Store messages that so many queues hold; returns the id of the first, the others' follow.
        size: of all. Headers are None where there are none, never empty."""
        n = len(contents)
        first = self._base | self.next_counter
        self.next_counter += n
        self._contents.update(zip(range(first, first + n), contents, strict=True))
        self._unplaced += sum(map(length_of, contents))
        self.messages += n
        self.bytes += size
        self.vpn_bytes[vpn] = self.vpn_bytes.get(vpn, 0) + size
        if matches != 1:
            self._matches.set_run(first, n, matches)
        return first

    def adopt(self, number: int, vpn: int, content: Content | None, size: int) -> None:
        """A message that has its id already, from an earlier core; None: its content is lost."""
        if content is not None:
            self._contents[number] = content
            self._unplaced += length_of(content)
        self.messages += 1
        self.bytes += size
        self.vpn_bytes[vpn] = self.vpn_bytes.get(vpn, 0) + size

    def matches(self, number: int) -> int:
        """How many queues hold a message."""
        return self._matches.get(number)

    def add_match(self, row: Row) -> None:
        """One more queue holds the message. Its row is a copy with the same place."""
        self._matches.set(row.stored, self._matches.get(row.stored) + 1)
        if row.block == IN_MEMORY:
            place = self._places.get(row.stored)
            if place is not None:
                place.waiting += 1

    def release(self, rows: Sequence[Row], vpn: int) -> None:
        """A queue's matches go; with the last one of each the message (S2)."""
        contents, pages = self._contents, self._matches.pages
        messages = size = unplaced = 0
        # Neighbours in a queue mostly stand in one block: they leave it together.
        block, indexes, length = 0, list[int](), 0
        for row in rows:
            number = row.stored
            at: Row | ContentLocation | None = row if row.block else None
            if at is None and self._places:
                at = self._places.get(number)
                if at is not None:
                    self._learn(number, at)
            if pages and number >> PAGE_BITS in pages:
                count = self._matches.get(number)
                if count > 1:
                    self._matches.set(number, count - 1)
                    continue
            messages += 1
            size += row.size
            if at is not None:
                if at.block != block:
                    self._release_from(block, indexes, length)
                    block, indexes, length = at.block, [], 0
                indexes.append(at.index)
                length += stored_length(at)
                continue
            content = contents.pop(number, None)
            if content is not None:  # else it is lost
                payload, key, headers = content
                plain = key is None and headers is None
                unplaced += len(payload) if plain else length_of(content)
        self._release_from(block, indexes, length)
        self.messages -= messages
        self.bytes -= size
        self.vpn_bytes[vpn] -= size
        self._unplaced -= unplaced

    def _learn(self, number: int, place: ContentLocation) -> None:
        """One row less does not know where a shared message is."""
        place.waiting -= 1
        if not place.waiting:
            del self._places[number]
            self._kept -= self._contents.pop(number, None) is not None

    def _release_from(self, block: int, indexes: list[int], length: int) -> None:
        """Messages named by one block go. length: of their contents together, in bytes."""
        if not indexes:
            return
        table = self._table
        home = table.home_of(block)
        is_open = home == table.open != 0
        if is_open:  # what dies in the open block takes no room
            for index in indexes:
                self._open[index if home == block else self._moved[block, index]] = b""
            self._changed = True
        table.release(block, indexes, length)
        if home not in table.infos or not table.infos[home].messages:
            self._cache.forget(home)
            if is_open:
                self._open, self._moved, self._changed = [], {}, False

    # ------------------------------------------------------------ reading

    def content(self, row: Row) -> Content | None:
        """Payload, key and headers; None where they are lost."""
        return self.contents([row])[0]

    def contents(self, rows: Sequence[Row]) -> list[Content | None]:
        """As `content`, of each row. Neighbours of one block cost one look for it."""
        found: list[Content | None] = []
        block = 0
        stored: list[bytes] | Block | None = None  # where the contents named by `block` stand
        moved: dict[Name, int] | None = None  # None: at the index of their name
        for row in rows:
            at: Row | ContentLocation = row
            if not row.block:
                content = self._contents.get(row.stored)
                place = self._places.get(row.stored) if content is None else None
                if place is None:
                    found.append(content)
                    continue
                at = place
            if at.block != block:
                block = at.block
                stored, moved = self._stored(block)
            index = at.index if moved is None else moved.get((block, at.index), -1)
            if stored is not None and 0 <= index < len(stored):
                found.append(parted(stored[index], at))
            else:  # it is lost, unless it has no bytes
                found.append(parted(b"", at))
        return found

    def _stored(self, block: int) -> tuple[list[bytes] | Block | None, dict[Name, int] | None]:
        """The contents among which those stand that are named by a block (None: its page is
        missing), and at which index each if they were moved there."""
        home = self._table.home_of(block)
        if not home:
            return None, None
        if home == self._table.open:
            return self._open, None if home == block else self._moved
        stored = self._cache.get(home)
        return stored, None if stored is None or home == block else stored.moved

    # ------------------------------------------------------------ settling

    def settle(self, rows: Sequence[Row], live: bool = False) -> None:
        """Contents of rows get places in blocks, and the rows say where. live: the rows stay live,
        so they may be read soon."""
        contents, places = self._contents, self._places
        for row in rows:
            if row.block:
                continue
            self._soon = self._soon or live
            place = places.get(row.stored) if places else None
            if place is None:
                content = contents.get(row.stored)
                if content is None:
                    continue  # lost
                self._append(content, row)
                pages = self._matches.pages
                count = self._matches.get(row.stored) if pages else 1
                if count == 1:  # most often
                    del contents[row.stored]
                    continue
                place = places[row.stored] = _place_of(row, count)
                self._kept += 1
            row.block, row.index, row.length = place.block, place.index, place.length
            row.key_length, row.header_length = place.key_length, place.header_length
            self._learn(row.stored, place)

    def _append(self, content: Content, at: Row | ContentLocation) -> None:
        """Put a content into the open block."""
        payload, key, headers = content
        data = joined(content)
        length = len(data)
        table = self._table
        info = table.infos[table.open] if table.open else self._begin()
        at.block, at.index, at.length = info.number, len(self._open), len(payload)
        at.key_length = NO_KEY if key is None else len(key)
        at.header_length = 0 if headers is None else len(headers)
        self._open.append(data)
        table.append(info, length, own=True)
        self._unplaced -= length
        self._changed = True
        if info.bytes >= self._limits.block_bytes:
            self._close()

    def _begin(self) -> BlockInfo:
        """A new block is open."""
        self._next_block += 1
        return self._table.begin(self._next_block - 1)

    def _write_open(self) -> bytes:
        page = written(self._open, self._moved)
        self._store.put(block_key(self._table.open), page)
        self._changed = False
        return page

    def _close(self) -> None:
        """The open block is full."""
        page = self._write_open()
        if self._soon:
            self._cache.put(self._table.open, page)
        self._table.close()
        self._open, self._moved, self._soon = [], {}, False

    # ------------------------------------------------------------ marks

    def mark(self) -> None:
        """Settle what no queue has settled, and write the open block."""
        for number in [n for n in self._contents if n not in self._places]:
            self._soon = True
            place = ContentLocation(0, 0, 0, NO_KEY, 0, self._matches.get(number))
            self._append(self._contents[number], place)
            self._places[number] = place
            self._kept += 1
        info = self._table.infos.get(self._table.open)
        if info is not None and SMALL * info.bytes >= self._limits.block_bytes:
            self._close()
        elif self._changed:
            self._write_open()

    def state(self) -> SpoolState:
        """Write the tables; returns what the broker's page keeps. After `mark`."""
        return SpoolState(
            self.next_counter, self.messages, self.bytes,
            sorted((vpn, size) for vpn, size in self.vpn_bytes.items() if size),
            self._next_block, self._table.open, self._table.state(), self._matches.state(),
            sorted(self._places.items()),
        )  # fmt: skip

    # ------------------------------------------------------------ room (S8)

    def stored(self) -> int:
        """Bytes of contents that are stored: in memory only, and in blocks, dead ones too."""
        return self._unplaced + self._table.bytes

    def files_in_use(self) -> int:
        """Spool files that what is stored fills (S8)."""
        return -(-self.stored() // self._limits.file_bytes)

    def file_room(self, files_max: int) -> int:
        """How many bytes may be stored before a file beyond ``files_max`` is begun (S8)."""
        return files_max * self._limits.file_bytes - self.stored()

    def held_in_memory(self) -> int:
        """What contents take that are in no block. Above `Limits.memory_bytes` settle rows."""
        return self._unplaced + OVERHEAD * (len(self._contents) - self._kept)

    # ------------------------------------------------------------ compaction

    def compact(self, pressed: bool = False) -> bool:
        """Empty one block, if more than twice what lives, and a slack, is stored, or files are
        short (pressed): copy what lives there into the open block. Whether there may be more."""
        table, limits = self._table, self._limits
        if not pressed and table.bytes <= 2 * table.live_bytes + limits.store_slack_bytes:
            return False
        source = table.emptiest(SHARE_MOST_PRESSED if pressed else SHARE_MOST)
        if source is None:
            return False
        block = self._cache.get(source.number)
        if block is None or not block.is_whole:
            table.lose(source)
            return True
        self._empty(source, block)
        return True

    def _empty(self, source: BlockInfo, block: Block) -> None:
        table = self._table
        share = table.share(source)
        target = table.infos[table.open] if table.open else self._begin()
        names = {index: name for name, index in block.moved.items()}
        for index in range(len(block)):
            name = names.get(index, (source.number, index))
            if not table.lives(name):
                continue
            data = block[index]
            self._moved[name] = len(self._open)
            self._open.append(data)
            table.append(target, len(data), own=False)
            table.move(name, source, target, len(data))
        self._changed = True
        table.empty(source, target.number, share)
        self._cache.forget(source.number)
        if target.bytes >= self._limits.block_bytes:
            self._close()

    def overview(self) -> dict[str, Any]:
        """What is stored, for people."""
        table = self._table
        return {
            "messages": self.messages, "bytes": self.bytes, "files": self.files_in_use(),
            "stored_bytes": self.stored(), "live_bytes": self._unplaced + table.live_bytes,
            "blocks": sum(info.messages > 0 for info in table.infos.values()),
        }  # fmt: skip


def _place_of(row: Row, waiting: int) -> ContentLocation:
    return ContentLocation(
        row.block, row.index, row.length, row.key_length, row.header_length, waiting
    )
