"""Compaction: one live message must not keep a whole spool file.

When more than twice what lives, and a slack, is stored, the live payloads of the emptiest closed
file are written into the open file once more; then the old file has no message and its blocks are
deleted. When files are short (S8) the same is done earlier. A call moves a bounded number of bytes
and reads a bounded number of pages; how far it came stands in the spool's header, so that the next
call goes on there. What a file holds is found by the ids it was written with.
"""

from __future__ import annotations

import numpy as np

from ..limits import Limits
from .blocks import Blocks
from .columns import Array
from .files import Files
from .message_pages import MessagePage, Messages

FILL_MAX = 500  # a file of which more lives is left alone
FILL_MAX_PRESSED = 750


class Compaction:
    """One call's work. ``header.compacting``: ``[file, page, moved page, offset in it]``."""

    def __init__(self, messages: Messages, blocks: Blocks, files: Files, limits: Limits) -> None:
        self._messages = messages
        self._blocks = blocks
        self._files = files
        self._header = messages.header
        self._limits = limits
        self._looks = limits.compact_looks_per_step
        self._bytes = limits.compact_bytes_per_step
        self._picked: list[tuple[MessagePage, int, bytes | None]] = []

    def run(self, pressed: bool) -> bool:
        """Move what one call may; whether something was done, so that there may be more to do."""
        if self._files.has_empty():  # deleting comes first: it costs less and gives more
            return True
        if not self._choose(pressed):
            return False
        file = self._header.compacting[0]
        ended = self._look(file)
        self._write()
        if not self._files.row(file)["messages"]:
            self._header.compacting = []
        assert not ended or not self._header.compacting, f"file {file}: a message is in no page"
        return True

    def _choose(self, pressed: bool) -> bool:
        """The file that is emptied: the one begun, else the emptiest that is worth it."""
        header = self._header
        stored_max = 2 * header.live_bytes + self._limits.store_slack_bytes
        if not pressed and header.stored_bytes <= stored_max:
            return False
        if header.compacting and self._files.row(header.compacting[0])["messages"]:
            return True
        header.compacting = []
        found = self._files.emptiest()
        if found is None or found[1] > (FILL_MAX_PRESSED if pressed else FILL_MAX):
            return False
        first = self._files.row(found[0])["first_counter"]
        header.compacting = [found[0], first >> self._limits.page_bits, 0, 0]
        return True

    # ------------------------------------------------------------ looking

    def _look(self, file: int) -> bool:
        """Pick live messages of the file; whether all its messages were looked at."""
        at = self._header.compacting
        row = self._files.row(file)
        arrived = row["first_counter"] > 0
        while arrived and at[1] <= row["last_counter"] >> self._limits.page_bits:
            if self._looks <= 0 or not self._pick(file, at[1]):
                return False
            at[1] += 1
        while at[2] < row["moved"]:
            if self._looks <= 0:
                return False
            self._looks -= 1
            pages = self._files.moved(file, at[2]) >> self._limits.page_bits
            while at[3] < len(pages):
                if self._looks <= 0 or not self._pick(file, int(pages[at[3]])):
                    return False
                others = np.flatnonzero(pages[at[3] :] != pages[at[3]])
                at[3] = at[3] + int(others[0]) if len(others) else len(pages)
            at[2], at[3] = at[2] + 1, 0
        return True

    def _pick(self, file: int, number: int) -> bool:
        """Pick the live messages of a file in one page; whether all of them were taken."""
        self._looks -= 1
        page = self._messages.page(number)
        if page is None:
            return True
        rows = np.flatnonzero((page.queue[: page.used] > 0) & (page.file[: page.used] == file))
        rows = rows[np.isin(rows, self._rows_picked(page), invert=True)]
        columns = (rows.tolist(), page.spans(rows).tolist(), page.block[rows].tolist(),
                   page.offset[rows].tolist())  # fmt: skip
        for row, span, block, offset in zip(*columns, strict=True):
            looks = int(span > 0 and not self._blocks.has(block))
            if self._picked and (span > self._bytes or looks > self._looks):
                return False
            self._looks -= looks
            self._bytes -= span
            self._picked.append((page, row, self._blocks.span(block, offset, span)))
        return True

    def _rows_picked(self, page: MessagePage) -> list[int]:
        return [row for picked, row, _ in self._picked if picked is page]

    # ------------------------------------------------------------ writing

    def _write(self) -> None:
        """Write what was picked as one block of the open file."""
        if not self._picked:
            return
        self._picked.sort(key=lambda p: (p[0].number, p[1]))
        counters = np.array([page.base + row for page, row, _ in self._picked], np.int64)
        live = 0
        for page, rows in self._by_page():
            live += int(page.spans(rows).sum())
            self._messages.leave_files(page, rows)
        data = b"".join(span for _, _, span in self._picked if span)
        block, file = self._files.put_moved(data, counters, live)
        offset = 0
        for page, row, span in self._picked:
            page.file[row] = file
            page.dirty = True
            if span is None:
                continue  # lost: its row goes on naming a block that is not there
            page.block[row] = block
            page.offset[row] = offset
            offset += len(span)

    def _by_page(self) -> list[tuple[MessagePage, Array]]:
        rows: dict[int, list[int]] = {}
        for page, row, _ in self._picked:
            rows.setdefault(page.number, []).append(row)
        pages = {page.number: page for page, _, _ in self._picked}
        return [(pages[n], np.array(r, np.intp)) for n, r in rows.items()]
