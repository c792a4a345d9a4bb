"""Spool files: blocks of payloads that are freed together, and what of each still lives (S8).

Payloads stand in *blocks* of at most about 1 MB; blocks are grouped in files of about 8 MB. One
file is open and takes every new block; when it is full it is closed and the next one opened. A
closed file only empties. When its last message goes its blocks are deleted, a bounded number in a
step. Per file a row says how many messages and bytes live in it and how many bytes are stored;
`fill` sums that up, so that the emptiest closed file is found by going down a tree (`tree`).

Which messages a file was written with: those that arrived have ids that follow each other; ids that
compaction moved there stand in pages beside it, ``f/moved/<file>/<n>``.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ..limits import Limits
from .columns import Array, ColumnPage
from .store import Store
from .tree import SummaryTree

OPEN = 0xFFFF  # the fill of a file that still takes blocks
FULL = 1000


class SpoolHeader(msgspec.Struct):
    """Changes whenever a message is stored or goes."""

    next_counter: int = 1
    next_block: int = 1
    file: int = 1  # the open one
    file_bytes: int = 0  # stored in the open one
    files: int = 0  # files that hold messages
    bytes: int = 0  # of messages, as quotas count (Q8)
    messages: int = 0
    vpn_bytes: dict[int, int] = {}
    stored_bytes: int = 0  # in blocks that exist
    live_bytes: int = 0  # of those, of messages that live
    tree: list[int] = []  # the root of the files' tree
    compacting: list[int] = []  # a file that is emptied, and how far its messages were looked at
    foreign: list[list[int]] = []  # the top of the index of ids that other brokers gave
    next_foreign: int = 0


class FilePage(ColumnPage):
    """One row per file. fill: live bytes in 1,000 stored ones; 0 only where no message lives."""

    FIELDS = (
        ("messages", "<u4", 0),
        ("live_bytes", "<u8", 0),
        ("stored_bytes", "<u8", 0),
        ("fill", "<u2", OPEN),
        ("blocks", "<u4", 0),
        ("first_block", "<u8", 0),
        ("first_counter", "<u8", 0),  # of the messages that arrived in it; 0 if none did
        ("last_counter", "<u8", 0),
        ("moved", "<u4", 0),  # pages of ids that were moved to it
    )
    __slots__ = tuple(name for name, _, _ in FIELDS)


class FileSummary(ColumnPage):
    """One row per page below."""

    FIELDS = (("fill", "<u2", OPEN), ("blocks", "<u8", 0))
    __slots__ = tuple(name for name, _, _ in FIELDS)


class Files(SummaryTree):
    """The spool files of one broker during one step."""

    LEAF = FilePage
    INNER = FileSummary
    SUMMED = (("fill", "min"), ("blocks", "sum"))
    PRESENT = "blocks"

    def __init__(self, store: Store, header: SpoolHeader, limits: Limits) -> None:
        super().__init__(store, "f/", header.tree, limits.chunk_bits)
        self._header = header
        self._limits = limits
        self._open: dict[int, dict[str, int]] = {}  # rows that changed and are not in their page

    # ------------------------------------------------------------ rows

    def row(self, number: int) -> dict[str, int]:
        """A file's row. A small step counts into one several times before its page must have it."""
        known = self._open.get(number)
        return super().row(number) if known is None else known

    def write(self, number: int, values: dict[str, int]) -> None:
        """Set all columns of a row; the tree has them when it is asked next."""
        self._open[number] = values

    def settle(self) -> None:
        """Bring pages and summaries up to date with the rows that changed."""
        changed, self._open = self._open, {}  # to write a row may settle first
        for number, values in sorted(changed.items()):
            super().write(number, values)
        super().settle()

    # ------------------------------------------------------------ blocks in, messages out

    def put(
        self, data: bytes, messages: int, live: int, arrived: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Append a block to the open file, closing the file when it is full.

        live: bytes that its messages count. arrived: the first and last counter of messages that
        came in; None for a block of messages that were moved. Returns (block, file).
        """
        header = self._header
        block, file = header.next_block, header.file
        header.next_block += 1
        if data:
            self._store.put(f"b/{block}", data)
        row = self.row(file)
        header.files += row["messages"] == 0
        row["messages"] += messages
        row["live_bytes"] += live
        row["stored_bytes"] += len(data)
        row["first_block"] = row["first_block"] or block
        row["blocks"] += 1
        if arrived is not None:
            row["first_counter"] = row["first_counter"] or arrived[0]
            row["last_counter"] = arrived[1]
        header.file_bytes += len(data)
        header.stored_bytes += len(data)
        header.live_bytes += live
        self.write(file, row)
        if header.file_bytes >= self._limits.file_bytes:
            self._close()
        return block, file

    def put_moved(self, data: bytes, counters: Array, live: int) -> tuple[int, int]:
        """Append a block of messages that were moved, with their counters beside it."""
        block, file = self.put(data, len(counters), live, None)
        row = self.row(file)
        self._store.put(f"f/moved/{file}/{row['moved']}", counters.astype("<u8").tobytes())
        row["moved"] += 1
        self.write(file, row)
        return block, file

    def moved(self, file: int, page: int) -> Array:
        """The counters in one page of those that were moved to a file."""
        data = self._store.get(f"f/moved/{file}/{page}")
        assert data is not None, f"page {page} of what was moved to file {file} is missing"
        return np.frombuffer(data, "<u8").astype(np.int64)

    def remove(self, file: int, messages: int, live: int) -> None:
        """Messages of a file went."""
        row, header = self.row(file), self._header
        assert row["messages"] >= messages, f"file {file}: {messages} of {row['messages']} go"
        row["messages"] -= messages
        row["live_bytes"] -= live
        header.files -= row["messages"] == 0
        header.live_bytes -= live
        if file != header.file:
            row["fill"] = _fill(row)
        self.write(file, row)

    def _close(self) -> None:
        """No block is added to the open file any more."""
        header = self._header
        row = self.row(header.file)
        row["fill"] = _fill(row)
        self.write(header.file, row)
        header.file += 1
        header.file_bytes = 0

    # ------------------------------------------------------------ counting (S8)

    def room(self, files_max: int) -> int:
        """How many bytes may be stored before a file beyond ``files_max`` is begun (S8).

        A file takes blocks until it is full, so a message is stored whole where less than the room
        is taken.
        """
        others = self._header.files - (self.row(self._header.file)["messages"] > 0)
        return (files_max - others) * self._limits.file_bytes - self._header.file_bytes

    # ------------------------------------------------------------ freeing

    def emptiest(self) -> tuple[int, int] | None:
        """The closed file of which least lives, and its fill; the earliest of equal ones."""
        fill = self.total("fill")
        if fill is None or fill == OPEN:
            return None
        number = 0
        for level in range(self.root[0] - 1, -1, -1):
            number = (number << self._bits) + int(np.argmin(self._node(level, number).fill))
        return number, fill

    def has_empty(self) -> bool:
        """Whether there are blocks in which nothing lives, of files that are closed."""
        return self.total("fill") == 0

    def free(self) -> None:
        """Delete blocks of closed files without a message, as many as a step may. An open file
        without a message is closed first: an empty engine keeps no payload."""
        if self._nodes:  # else no file has changed
            row = self.row(self._header.file)
            if row["blocks"] and not row["messages"]:
                self._close()
        left = self._limits.deletes_per_step
        while left and (found := self.emptiest()) is not None and found[1] == 0:
            file, row = found[0], self.row(found[0])
            pages = range(max(row["moved"] - left, 0), row["moved"])
            for page in pages:
                self._store.delete(f"f/moved/{file}/{page}")
            row["moved"] -= len(pages)
            left -= len(pages)
            blocks = range(row["first_block"], row["first_block"] + min(left, row["blocks"]))
            for block in blocks:
                self._store.delete(f"b/{block}")
            row["first_block"] += len(blocks)
            row["blocks"] -= len(blocks)
            left -= len(blocks)
            if not row["blocks"]:
                self._header.stored_bytes -= row["stored_bytes"]
            self.write(file, row)


def _fill(row: dict[str, int]) -> int:
    if not row["messages"]:
        return 0
    return min(max(row["live_bytes"] * FULL // max(row["stored_bytes"], 1), 1), FULL)
