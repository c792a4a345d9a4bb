"""The spool: the content of each message, stored once for all its queues (S1, S2, S8, S12).

A content stays in memory, by message id, until a row of it is spilled or a mark is made. Then
`write_to_blocks` appends it to the open block, and the row gets its location. The other rows of a
shared message copy the location from that row, at the latest at the mark.

Decisions depend only on facts that a loaded mark restores (counts, blocks, what is stored), never
on what is cached (contents that are also in blocks, blocks that were read).
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
    ReadBlock,
    block_key,
    joined,
    length_of,
    parted,
)  # fmt: skip
from .match_counts import PAGE_BITS, MatchCounts
from .ranges import Ranges
from .row import NO_KEY, Row
from .store import Store

OVERHEAD = 1_000  # bytes of memory that a message takes besides its content: its row
SMALL = 4  # a mark closes the open block if it is more than a quarter full
# Compaction empties blocks with at most this many live sixteenths. If less than half of all bytes
# are live, there is such a block. When files are short, it copies more to gain less.
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
    matches: Ranges = []  # of `MatchCounts`
    locations: list[Any] = []  # unused


class Spool:
    """The messages of one broker. A new one has an empty state."""

    def __init__(self, store: Store, broker_number: int, state: SpoolState, limits: Limits) -> None:
        self._store, self._limits = store, limits
        self._base = make_id(broker_number, 0)
        self.next_counter = state.next_counter
        self.messages = state.messages
        self.bytes = state.bytes  # as quotas count (Q8), each message once
        self.vpn_bytes: dict[int, int] = dict(state.vpn_bytes)
        self._contents: dict[int, Content] = {}
        self._unwritten_bytes = 0  # of contents that are in no block
        self._matches = MatchCounts(store, state.matches)
        # Of each shared message written since the last mark: a row with the location.
        self._located: dict[int, Row] = {}
        self._table = BlockTable(store, state.open_block, state.blocks)
        self._cache = BlockCache(store, limits)
        self._next_block = state.next_block
        self._open = Block([], {})
        self._changed = False  # the page of the open block lacks its newest contents
        self._soon = False  # it has contents of live rows, which are read soon
        if state.open_block:
            block = self._cache.get(state.open_block)
            if block is None:  # its page is missing
                self._table.close()
            else:
                self._open = Block(block.all(), block.moved)
                self._cache.forget(state.open_block)

    # ------------------------------------------------------------ storing

    def next_id(self) -> int:
        """The id that the next stored message gets."""
        return self._base | self.next_counter

    def skip_id(self) -> int:
        """Give out an id without storing a message."""
        number = self._base | self.next_counter
        self.next_counter += 1
        return number

    def store(self, vpn: int, contents: Sequence[Content], size: int, matches: int) -> int:
        """Store messages, each in this many queues; returns the first of their consecutive ids.
        size: of all together. Without headers, a content has None, never an empty value."""
        n = len(contents)
        first = self._base | self.next_counter
        self.next_counter += n
        known, unwritten = self._contents, 0
        for number, content in enumerate(contents, first):
            known[number] = content
            payload, key, headers = content
            plain = key is None and headers is None  # most often
            unwritten += len(payload) if plain else length_of(content)
        self._unwritten_bytes += unwritten
        self.messages += n
        self.bytes += size
        self.vpn_bytes[vpn] = self.vpn_bytes.get(vpn, 0) + size
        if matches != 1:
            for number in range(first, first + n):
                self._matches.set(number, matches)
        return first

    def adopt(self, number: int, vpn: int, content: Content | None, size: int) -> None:
        """Take over a message with its id, from a home of an earlier format. content: None if it
        is lost."""
        if content is not None:
            self._contents[number] = content
            self._unwritten_bytes += length_of(content)
        self.messages += 1
        self.bytes += size
        self.vpn_bytes[vpn] = self.vpn_bytes.get(vpn, 0) + size

    def matches(self, number: int) -> int:
        """How many queues have a message."""
        return self._matches.get(number)

    def add_match(self, row: Row) -> None:
        """Count one more queue for a message. The new row must be a copy of this one."""
        self._matches.set(row.stored, self._matches.get(row.stored) + 1)

    def release(self, rows: Sequence[Row], vpn: int) -> None:
        """Remove a queue's matches. A message without matches is removed, too (S2)."""
        contents, located, pages = self._contents, self._located, self._matches.pages
        messages = size = unplaced = 0
        # Neighbours in a queue are mostly in one block, so they are released together.
        indexes: list[int] = []
        block = length = 0
        for row in rows:
            number = row.stored
            if pages and number >> PAGE_BITS in pages:
                count = self._matches.get(number)
                if count > 1:
                    self._matches.set(number, count - 1)
                    continue
            messages += 1
            size += row.size
            at = located.pop(number, row) if located else row
            if at.block:
                if at.block != block:
                    if indexes:
                        self._release_from(block, indexes, length)
                    block, indexes, length = at.block, [], 0
                indexes.append(at.index)
                length += at.length + at.header_length
                if at.key_length > 0:
                    length += at.key_length
                continue
            content = contents.pop(number, None)
            if content is not None:  # None: it is lost
                payload, key, headers = content
                plain = key is None and headers is None
                unplaced += len(payload) if plain else length_of(content)
        if indexes:
            self._release_from(block, indexes, length)
        self.messages -= messages
        self.bytes -= size
        self.vpn_bytes[vpn] -= size
        self._unwritten_bytes -= unplaced

    def _release_from(self, block: int, indexes: list[int], length: int) -> None:
        """Release contents named by one block. length: their bytes together."""
        table = self._table
        home = table.home_of(block)
        is_open = home == table.open != 0
        if is_open:  # a dead content takes no room in the open block
            for index in indexes:
                at = index if home == block else self._open.moved[block, index]
                self._open.contents[at] = b""
            self._changed = True
        table.release(block, indexes, length)
        if home not in table.infos or not table.infos[home].messages:
            self._cache.forget(home)
            if is_open:
                self._open, self._changed = Block([], {}), False

    # ------------------------------------------------------------ reading

    def content(self, row: Row) -> Content | None:
        """Payload, key and headers; None if they are lost."""
        return self.contents([row])[0]

    def contents(self, rows: Sequence[Row]) -> list[Content | None]:
        """The `content` of each row. Neighbours in one block cost one look-up of the block."""
        found: list[Content | None] = []
        block = home = 0  # home: the block that has the contents named by `block`
        stored: Block | ReadBlock | None = None  # that one
        for row in rows:
            at = row
            if not row.block:
                content = self._contents.get(row.stored)
                at = row if content is not None else self._located.get(row.stored, row)
                if not at.block:
                    found.append(content)  # None: it is lost
                    continue
            if at.block != block:
                block = at.block
                home = self._table.home_of(block)
                stored = self._open if home == self._table.open else self._cache.get(home)
            if stored is None:
                found.append(parted(b"", at))  # it is lost, unless it is empty
                continue
            index = at.index if home == block else stored.moved.get((block, at.index), -1)
            found.append(stored.content(index, at))
        return found

    # ------------------------------------------------------------ writing to blocks

    def write_to_blocks(self, rows: Sequence[Row], live: bool = False) -> None:
        """Append the contents of rows to blocks, and set the rows' locations. live: the rows stay
        live, so their contents are read soon."""
        contents, located, counts = self._contents, self._located, self._matches
        given = [(contents.pop(row.stored, None), row) for row in rows if not row.block]
        found = [(content, row) for content, row in given if content is not None]
        if counts.pages:
            shared = [row for _, row in found if counts.get(row.stored) > 1]
            located.update((row.stored, row) for row in shared)
        self._append(found, live)
        for content, row in given if located else ():
            at = located.get(row.stored) if content is None else None
            if at is not None:  # else it is lost
                row.block, row.index, row.length = at.block, at.index, at.length
                row.key_length, row.header_length = at.key_length, at.header_length

    def _append(self, found: list[tuple[Content, Row]], soon: bool) -> None:
        """Append contents to the open block, and to new ones once it is full, and set their rows'
        locations. soon: they are read soon."""
        table, most = self._table, self._limits.block_bytes
        start = 0
        while start < len(found):
            info = table.infos[table.open] if table.open else self._begin()
            stored, size, room = self._open.contents, 0, most - info.bytes
            number, first = info.number, len(stored)
            for content, at in found[start:] if start else found:
                payload, key, headers = content
                length = len(payload)
                at.block, at.index, at.length = number, len(stored), length
                if key is None and headers is None:  # most often
                    at.key_length, at.header_length = NO_KEY, 0
                    stored.append(payload)
                    size += length
                else:
                    at.key_length = NO_KEY if key is None else len(key)
                    at.header_length = 0 if headers is None else len(headers)
                    stored.append(joined(content))
                    size += len(stored[-1])
                if size >= room:
                    break
            start += len(stored) - first
            table.append(info, len(stored) - first, size, own=True)
            self._unwritten_bytes -= size
            self._changed = True
            self._soon = self._soon or soon
            if info.bytes >= most:
                self._close()

    def _begin(self) -> BlockInfo:
        self._next_block += 1
        return self._table.begin(self._next_block - 1)

    def _write_open(self) -> bytes:
        page = self._open.page()
        self._store.put(block_key(self._table.open), page)
        self._changed = False
        return page

    def _close(self) -> None:
        """Write and close the open block."""
        page = self._write_open()
        if self._soon:
            self._cache.put(self._table.open, page)
        self._table.close()
        self._open, self._soon = Block([], {}), False

    # ------------------------------------------------------------ marks

    def mark(self) -> None:
        """Write the open block. Before, `write_to_blocks` got all rows with contents in memory."""
        self._located.clear()
        info = self._table.infos.get(self._table.open)
        if info is not None and SMALL * info.bytes >= self._limits.block_bytes:
            self._close()
        elif self._changed:
            self._write_open()

    def state(self) -> SpoolState:
        """Write the tables; returns the part for the broker's page. Call it after `mark`."""
        return SpoolState(
            self.next_counter, self.messages, self.bytes,
            sorted((vpn, size) for vpn, size in self.vpn_bytes.items() if size),
            self._next_block, self._table.open, self._table.state(), self._matches.state(),
        )  # fmt: skip

    # ------------------------------------------------------------ room (S8)

    def stored(self) -> int:
        """Bytes of all contents, in memory and in blocks, dead ones in blocks included."""
        return self._unwritten_bytes + self._table.bytes

    def files_in_use(self) -> int:
        """How many spool files these bytes fill (S8)."""
        return -(-self.stored() // self._limits.file_bytes)

    def file_room(self, files_max: int) -> int:
        """How many bytes may be stored before more than ``files_max`` files are needed (S8)."""
        return files_max * self._limits.file_bytes - self.stored()

    def memory_used(self) -> int:
        """Bytes of memory for contents that are in no block. Above `Limits.memory_bytes` the broker
        writes rows to blocks."""
        return self._unwritten_bytes + OVERHEAD * len(self._contents)

    # ------------------------------------------------------------ compaction

    def compact(self, pressed: bool = False) -> bool:
        """Copy the live contents of one block into the open one, if more than twice the live bytes
        plus a slack are stored, or files are short (pressed). Returns whether to call it again."""
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

    def _empty(self, source: BlockInfo, block: ReadBlock) -> None:
        table = self._table
        target = table.infos[table.open] if table.open else self._begin()
        names = {index: name for name, index in block.moved.items()}
        for index, data in enumerate(block.all()):
            name = names.get(index, (source.number, index))
            if not table.lives(name):
                continue
            self._open.moved[name] = len(self._open.contents)
            self._open.contents.append(data)
            table.append(target, 1, len(data), own=False)
            table.move(name, source, target, len(data))
        self._changed = True
        table.empty(source, target.number)
        self._cache.forget(source.number)
        if target.bytes >= self._limits.block_bytes:
            self._close()
