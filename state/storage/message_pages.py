"""Message pages: what is known of each stored message, and which queues hold it (S1, S2).

A message gets the broker's next id when it is stored. Ids fill pages of rows in order, so a page's
number is computed, never looked up. A row says where the payload lies and which queues still hold
the message: its *matches*, each the queue and the message's place in it. When the last match goes,
the message goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ...protocol.ids import COUNTER_BITS, COUNTER_MASK, Ranges, join_ranges, make_id, without
from ..few import total_of
from ..limits import Limits
from .columns import NEVER, Array, ColumnPage, by_page
from .files import Files, SpoolHeader
from .foreign import Foreign
from .store import Store

NO_KEY = 0xFFFFFFFF
ROWS_OF_ONE = 64  # rows in which one message may stand
PAST = -1
_COUNTER_MASK = np.uint64(COUNTER_MASK)
_ONE = np.zeros(1, np.intp)


class MessagePage(ColumnPage):
    """What is known of a message whichever queue holds it.

    `extras[row]`: further matches ``[queue, seq]``; seq `PAST` says that the queue held it once.
    """

    FIELDS = (
        ("queue", "<u4", 0),  # first match: queue number, 0 when the message is gone
        ("seq", "<u8", 0),  # first match: the place in that queue
        ("block", "<u4", 0),
        ("offset", "<u4", 0),
        ("length", "<u4", 0),
        ("key_length", "<u4", NO_KEY),
        ("header_length", "<u4", 0),
        ("size", "<u4", 0),  # payload and application headers (Q8)
        ("file", "<u4", 0),
        ("time", "<i8", 0),  # publish time, epoch ms
        ("ttl_ends", "<i8", NEVER),  # publisher's TTL, epoch ms (X4)
        ("priority", "|u1", 0),  # publisher's priority
        ("dmq", "|u1", 1),  # may go to a dead message queue
        ("vpn", "<u2", 0),
        ("past", "<u4", 0),  # a queue that held it before the first match does, 0: none
        ("origin", "<u8", 0),  # the id that another broker gave it; 0: its id is of this row
    )
    __slots__ = tuple(name for name, _, _ in FIELDS)
    queue: Array
    seq: Array
    block: Array
    offset: Array
    length: Array
    key_length: Array
    header_length: Array
    size: Array
    file: Array
    time: Array
    ttl_ends: Array
    priority: Array
    dmq: Array
    vpn: Array
    past: Array
    origin: Array

    def spans(self, rows: Array) -> Array:
        """Bytes that payload, key and headers of rows take in a block."""
        keys = self.key_length[rows].astype(np.int64)
        keys[keys == NO_KEY] = 0
        spans: Array = self.length[rows].astype(np.int64) + keys + self.header_length[rows]
        return spans


_DTYPES = {name: dtype for name, dtype, _ in MessagePage.FIELDS}


class Messages:
    """The message pages of one broker during one step."""

    def __init__(
        self, store: Store, header: SpoolHeader, broker: int, limits: Limits, files: Files
    ) -> None:
        self._store = store
        self.header = header
        self._broker = broker
        self._bits = limits.page_bits
        self._files = files
        self.foreign = Foreign(store, header, limits)
        self._pages: dict[int, MessagePage | None] = {}

    def page(self, number: int, create: bool = False) -> MessagePage | None:
        """A message page, or None if all its messages are gone."""
        page = self._pages.get(number)
        if page is None and number not in self._pages:
            data = self._store.get(f"m/{number}")
            page = MessagePage.read(number, data, self._bits) if data else None
            self._pages[number] = page
        if page is None and create:
            page = self._pages[number] = MessagePage(number, self._bits)
        return page

    def rows(self, ids: Array) -> list[tuple[MessagePage | None, Array, Array | slice]]:
        """The page rows of messages, grouped by page; None for a page that is gone."""
        counters = np.asarray(ids, np.uint64) & _COUNTER_MASK
        return [
            (self.page(number), rows, where)
            for number, rows, where in by_page(counters.astype(np.int64), self._bits)
        ]

    def gather(self, ids: Array, name: str) -> Array:
        """One column of the message pages for many messages; 0 where a page is gone."""
        return self.columns(ids, name)[0]

    def columns(self, ids: Array, *names: str) -> list[Array]:
        """Columns of the message pages for many messages."""
        out = [np.zeros(len(ids), dtype=_DTYPES[name]) for name in names]
        for page, rows, where in self.rows(ids):
            if page is not None:
                for column, name in zip(out, names, strict=True):
                    column[where] = getattr(page, name)[rows]
        return out

    def origins(self, ids: Array) -> Array:
        """By which ids these messages are known outside: those of the broker that took them in."""
        if not self.foreign.pages:  # nothing ever came from another broker
            return ids
        origins = self.gather(ids, "origin")
        given: Array = np.where(origins == 0, ids, origins)
        return given

    def rows_of(self, ranges: Ranges, most: int, queue: int) -> Ranges:
        """Ids as they are known outside, as ids of this broker's rows; of those that stand in rows
        of other numbers up to ``most``. A message may stand here in several rows, if queues have
        come here with it: then the one that this queue holds is meant."""
        if not self.foreign:
            return ranges
        moved: list[tuple[int, int]] = []
        for low, high in ranges:
            moved += self.foreign.within(low, high, most - len(moved))
        times = Counter(number for number, _ in moved)
        moved = [
            (number, counter) for number, counter in moved
            if (times[number] == 1 and number >> COUNTER_BITS != self._broker)
            or self.holds(make_id(self._broker, counter), queue)
        ]  # fmt: skip
        rows = [(make_id(self._broker, counter),) * 2 for _, counter in moved]
        return join_ranges([*without(ranges, (number for number, _ in moved)), *rows])

    def held_by(self, ranges: list[tuple[int, int]], queue: int) -> tuple[Array, Array]:
        """Ids within ranges that a queue holds, and their places in it: (ids, seqs)."""
        found_ids: list[Array] = []
        found_seqs: list[Array] = []
        base = make_id(self._broker, 0)
        for low, high in ranges:
            first = max(low - base, 1)
            last = min(high - base, self.header.next_counter - 1)
            if last < first:
                continue
            for number in range(first >> self._bits, (last >> self._bits) + 1):
                page = self.page(number)
                if page is None:
                    continue
                start = max(first - (number << self._bits), 0)
                stop = min(last - (number << self._bits) + 1, page.used)
                if stop - start == 1:  # one message, as most often
                    hits = _ONE[:0] if page.queue[start] != queue else _ONE + start
                else:
                    hits = (page.queue[start:stop] == queue).nonzero()[0] + start
                found_ids.append((hits + (page.base + base)).astype(np.uint64))
                found_seqs.append(page.seq[hits].astype(np.int64))
                for row, matches in page.extras.items():
                    for owner, seq in matches:
                        if owner == queue and seq != PAST and start <= row < stop:
                            one = (number << self._bits) + row + base
                            found_ids.append(np.array([one], np.uint64))
                            found_seqs.append(np.array([seq], np.int64))
        if not found_ids:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
        if len(found_ids) == 1:
            return found_ids[0], found_seqs[0]
        return np.concatenate(found_ids), np.concatenate(found_seqs)

    # ------------------------------------------------------------ letting go

    def release(self, queue: int, ids: Array) -> None:
        """Delete the match of a queue for each message; with the last match the message goes."""
        for page, rows, _ in self.rows(ids):
            if page is None:
                continue
            if page.extras:
                rows = self._release_shared(page, rows, queue)
            dead = rows[page.queue[rows] == queue]
            if not len(dead):
                continue
            page.queue[dead] = 0
            page.dirty = True
            self._count_gone(page, dead)

    def _release_shared(self, page: MessagePage, rows: Array, queue: int) -> Array:
        """Take a match from messages that have several; returns the rows without another."""
        single = []
        for row in rows.tolist():
            matches = page.extras.get(row) or []
            others = [m for m in matches if m[1] != PAST and m[0] != queue]
            if not others:
                if page.queue[row] == queue:
                    single.append(row)
                    page.extras.pop(row, None)
                    continue
                page.extras[row] = [m for m in matches if m[0] != queue] + [[queue, PAST]]
                page.dirty = True
                continue
            page.dirty = True
            rest = [m for m in matches if m[0] != queue] + [[queue, PAST]]
            if page.queue[row] == queue:
                page.queue[row], page.seq[row] = others[0]
                rest.remove(others[0])
            page.extras[row] = rest
        return np.array(single, np.intp)

    def _count_gone(self, page: MessagePage, rows: Array) -> None:
        sizes = page.size[rows]
        header = self.header
        header.bytes -= total_of(sizes)
        header.messages -= len(rows)
        for vpn, mine in _groups(page.vpn[rows]):
            header.vpn_bytes[vpn] -= total_of(sizes[mine])
        self.leave_files(page, rows)
        if not self.foreign.pages:  # nothing ever came from another broker
            return
        foreign = rows[page.origin[rows] != 0]
        if len(foreign):
            counters = foreign.astype(np.int64) + page.base
            self.foreign.drop_rows(
                list(zip(page.origin[foreign].tolist(), counters.tolist(), strict=True))
            )

    def leave_files(self, page: MessagePage, rows: Array) -> None:
        """Count the payloads of rows out of the files in which they lie."""
        spans = page.spans(rows)
        for file, mine in _groups(page.file[rows]):
            gone = spans[mine]
            self._files.remove(file, len(gone), total_of(gone))

    def move(self, number: int, queue: int, to: tuple[int, int]) -> None:
        """Replace a message's match with a queue by another match."""
        for page, rows, _ in self.rows(np.array([number], np.uint64)):
            assert page is not None
            row = int(rows[0])
            page.dirty = True
            rest = [m for m in page.extras.get(row, []) if m[0] not in (queue, to[0])]
            if page.queue[row] == queue:
                page.queue[row], page.seq[row] = to
            else:
                rest.append(list(to))
            page.extras[row] = [*rest, [queue, PAST]]

    def may_move(self, ids: Array, queue: int, to: int) -> Array:
        """Which messages have a match with one queue only, so that `move_all` can move it."""
        out = np.zeros(len(ids), bool)
        for page, rows, where in self.rows(ids):
            if page is None:
                continue
            past = page.past[rows]
            alone = (page.queue[rows] == queue) & ((past == 0) | (past == to) | (past == queue))
            if page.extras:
                alone &= np.array([row not in page.extras for row in rows.tolist()], bool)
            out[where] = alone
        return out

    def move_all(self, ids: Array, queue: int, to: int, first: int) -> None:
        """Replace the only match of each message by one with another queue, at places from
        ``first`` on; for messages of which `may_move` says so."""
        seqs = np.arange(first, first + len(ids), dtype=np.uint64)
        for page, rows, where in self.rows(ids):
            assert page is not None
            page.queue[rows] = to
            page.seq[rows] = seqs[where]
            page.past[rows] = queue
            page.dirty = True

    def add(self, number: int, to: tuple[int, int]) -> None:
        """Give a stored message one more match."""
        for page, rows, _ in self.rows(np.array([number], np.uint64)):
            assert page is not None
            row = int(rows[0])
            rest = [m for m in page.extras.get(row, []) if m[0] != to[0]]
            page.extras[row] = [*rest, list(to)]
            page.dirty = True

    def holds(self, number: int, queue: int) -> bool:
        """Whether a queue holds a message now."""
        for page, rows, _ in self.rows(np.array([number], np.uint64)):
            if page is None:
                return False
            row = int(rows[0])
            return page.queue[row] == queue or any(
                m[0] == queue and m[1] != PAST for m in page.extras.get(row, [])
            )
        return False

    def held_as(self, number: int, queue: int) -> int | None:
        """By which row a queue holds the message of this row now; None: it does not. Where several
        queues came here with a message, or got it as a dead one, it stands in several rows."""
        if self.holds(number, queue):
            return number
        if not self.foreign:
            return None
        known = int(self.origins(np.array([number], np.uint64))[0])
        return self.held_under(known, queue)

    def held_under(self, known: int, queue: int) -> int | None:
        """By which row a queue holds a message, by its id as it is known outside."""
        ids, _ = self.held_by(self.rows_of([(known, known)], ROWS_OF_ONE, queue), queue)
        return int(ids[0]) if len(ids) else None

    def may_stand_twice(self, ids: Array) -> Array:
        """Which of these messages may stand here in another row too."""
        if not self.foreign:
            return np.zeros(len(ids), bool)
        known = self.origins(ids)
        most = 2 * len(ids)
        found = self.foreign.within(int(known.min()), int(known.max()), most + 1)
        if len(found) > most:
            return np.ones(len(ids), bool)
        rows = dict(zip(known.tolist(), (ids & _COUNTER_MASK).tolist(), strict=True))
        twice = [one for one, counter in found if rows.get(one, counter) != counter]
        return np.isin(known, np.array(twice, np.uint64))

    def were_held(self, ids: Array, queue: int) -> Array:
        """Which messages a queue holds or held; True for those that are gone altogether."""
        held = np.ones(len(ids), bool)
        for page, rows, where in self.rows(ids):
            if page is None:
                continue
            mine = (page.queue[rows] == 0) | (page.queue[rows] == queue)
            mine |= page.past[rows] == queue
            for at in np.flatnonzero(~mine).tolist() if page.extras else ():
                mine[at] = any(m[0] == queue for m in page.extras.get(int(rows[at]), ()))
            held[where] = mine
        return held

    # ------------------------------------------------------------ end of the step

    def flush_pages(self) -> None:
        """Write pages that changed; one without a message is deleted."""
        self.foreign.flush()
        last_page = self.header.next_counter >> self._bits
        for number, page in sorted(self._pages.items()):
            if page is None:
                continue
            if page.dirty and number < last_page and not page.queue[: page.used].any():
                self._store.delete(f"m/{number}")
            else:
                page.settle(self._store, f"m/{number}")
        self._pages.clear()


def _groups(values: Array) -> Iterator[tuple[int, Array | slice]]:
    """Each distinct value, ascending, and where it stands; mostly there is one."""
    known = values.tolist()
    if known.count(known[0]) == len(known):
        yield known[0], slice(None)
        return
    for value in np.unique(values).tolist():
        yield value, values == value
