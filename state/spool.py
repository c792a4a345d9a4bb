"""The spool: each message stored once, with its matches (S1, S2, S8, S12).

A message gets the broker's next id when it is stored. Ids fill *message pages* of 1,024 rows in
order, so a page's number is computed, never looked up. A row says where the payload lies and which
queues still hold the message: its *matches*, each the queue and the message's place in it.

Payloads of a step are written together in *blocks* of at most about 1 MB; blocks are grouped in
spool files of about 8 MB. When the last match of a message goes, the message goes; when the last
message of a full file goes, the file's blocks are deleted, one call each.
What arrived in this step is read from memory, never back from the store (S12).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ..protocol.ids import COUNTER_MASK, make_id
from .columns import NEVER, PAGE_BITS, PAGE_ROWS, ROW_MASK, Array, ColumnPage, by_page
from .store import Notes, Store

BLOCK_BYTES = 1_000_000
FILE_BYTES = 8_000_000
FILES_PER_NOTE = 64
BLOCKS_CACHED = 16
NO_KEY = 0xFFFFFFFF
PAST = -1


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


class SpoolHeader(msgspec.Struct):
    """Changes whenever a message is stored or goes."""

    next_counter: int = 1
    next_block: int = 1
    file: int = 1
    file_bytes: int = 0
    files: int = 0  # files that hold messages
    bytes: int = 0
    messages: int = 0
    vpn_bytes: dict[int, int] = {}


@dataclass(slots=True)
class Staged:
    """Messages of this step, in columns of one length; ids are consecutive."""

    first: int = 0
    payloads: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    ttl_ends: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    dmq: list[int] = field(default_factory=list)
    vpns: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    seqs: list[int] = field(default_factory=list)
    more: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


Content = tuple[bytes, bytes | None, bytes | None]


class Spool:
    """The messages of one broker during one step."""

    def __init__(self, store: Store, notes: Notes, header: SpoolHeader, broker: int) -> None:
        self._store = store
        self._notes = notes
        self.header = header
        self._broker = broker
        self._pages: dict[int, MessagePage | None] = {}
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._staged = Staged(first=header.next_counter)
        self._freed: dict[int, list[int]] = {}  # file → [messages, bytes] that went in this step
        self._arrived: dict[int, Content] = {}  # flushed in this step, by counter

    # ------------------------------------------------------------ storing

    def stage(
        self,
        payloads: list[bytes],
        key: bytes | None,
        headers: bytes | None,
        sizes: list[int],
        time: int,
        ttl_ends: int,
        priority: int,
        dmq: bool,
        vpn: int,
        matches: list[tuple[int, int]],
    ) -> int:
        """Store messages that differ only in payload and size, with their matches ``(queue, first
        seq)``; returns the id of the first, the others' follow."""
        s = self._staged
        row, n = len(s.payloads), len(payloads)
        s.payloads += payloads
        s.keys += [key] * n
        s.headers += [headers] * n
        s.sizes += sizes
        s.times += [time] * n
        s.ttl_ends += [ttl_ends] * n
        s.priorities += [priority] * n
        s.dmq += [dmq] * n
        s.vpns += [vpn] * n
        queue, seq = matches[0]
        s.queues += [queue] * n
        s.seqs += range(seq, seq + n)
        if len(matches) > 1:
            for i in range(n):
                s.more[row + i] = [(queue, seq + i) for queue, seq in matches[1:]]
        header = self.header
        size = sum(sizes)
        header.bytes += size
        header.vpn_bytes[vpn] = header.vpn_bytes.get(vpn, 0) + size
        header.messages += n
        header.next_counter += n
        return make_id(self._broker, s.first + row)

    def next_id(self) -> int:
        """The id that the next stored message gets."""
        return make_id(self._broker, self.header.next_counter)

    def settle_staged(self) -> None:
        """Write what was staged into pages and blocks; before messages are read or released."""
        s = self._staged
        total = len(s.payloads)
        if not total:
            return
        place = self._write_blocks(s)
        done = 0
        while done < total:
            counter = s.first + done
            row = counter & ROW_MASK
            n = min(PAGE_ROWS - row, total - done)
            page = self._page(counter >> PAGE_BITS, create=True)
            assert page is not None
            rows, part = slice(row, row + n), slice(done, done + n)
            for name, column in place.items():
                getattr(page, name)[rows] = column[part]
            page.queue[rows] = s.queues[part]
            page.seq[rows] = s.seqs[part]
            page.size[rows] = s.sizes[part]
            page.time[rows] = s.times[part]
            page.ttl_ends[rows] = s.ttl_ends[part]
            page.priority[rows] = s.priorities[part]
            page.dmq[rows] = s.dmq[part]
            page.vpn[rows] = s.vpns[part]
            page.used = row + n
            page.dirty = True
            done += n
        for at, matches in s.more.items():
            counter = s.first + at
            page = self._page(counter >> PAGE_BITS)
            assert page is not None
            page.extras[counter & ROW_MASK] = [list(m) for m in matches]
        self._arrived.update(
            zip(
                range(s.first, s.first + total),
                zip(s.payloads, s.keys, s.headers, strict=True),
                strict=True,
            )
        )
        self._staged = Staged(first=self.header.next_counter)

    def _write_blocks(self, s: Staged) -> dict[str, Array]:
        """Write the payloads; returns the columns that say where each lies."""
        total = len(s.payloads)
        lengths = np.fromiter(map(len, s.payloads), np.int64, total)
        if any(s.keys):
            key_lengths = np.array([NO_KEY if k is None else len(k) for k in s.keys], np.int64)
        else:
            key_lengths = np.array([NO_KEY if k is None else 0 for k in s.keys], np.int64)
        stored_keys = np.where(key_lengths == NO_KEY, 0, key_lengths)
        header_lengths = np.array([len(h) if h else 0 for h in s.headers], np.int64)
        spans = lengths + stored_keys + header_lengths
        blocks = np.zeros(total, np.int64)
        offsets = np.zeros(total, np.int64)
        files = np.zeros(total, np.int64)
        ends = np.cumsum(spans)
        plain = not stored_keys.any() and not header_lengths.any()
        start = 0
        while start < total:
            base = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, base + BLOCK_BYTES, side="right")), start + 1)
            if plain:
                data = b"".join(s.payloads[start:stop])
            else:
                parts: list[bytes] = []
                for i in range(start, stop):
                    parts += (s.payloads[i], s.keys[i] or b"", s.headers[i] or b"")
                data = b"".join(parts)
            blocks[start:stop] = self.header.next_block
            offsets[start:stop] = ends[start:stop] - spans[start:stop] - base
            files[start:stop] = self._put_block(data, stop - start)
            start = stop
        return {
            "block": blocks,
            "offset": offsets,
            "file": files,
            "length": lengths,
            "key_length": key_lengths,
            "header_length": header_lengths,
        }

    def _put_block(self, data: bytes, messages: int) -> int:
        """Append a block to the open file, closing the file when it is full; returns the file."""
        header = self.header
        number = header.next_block
        header.next_block += 1
        if data:
            self._store.put(f"b/{number}", data)
        note_key = f"f/{header.file // FILES_PER_NOTE}"
        note = self._notes.read(note_key) or {}
        entry = note.get(header.file)
        if entry is None:
            entry = note[header.file] = [0, number, number]  # live messages, first, last block
        if entry[0] == 0:
            header.files += 1
        entry[0] += messages
        entry[2] = number
        self._notes.write(note_key, note)
        file = header.file
        header.file_bytes += len(data)
        if header.file_bytes >= FILE_BYTES:
            header.file += 1
            header.file_bytes = 0
        return file

    # ------------------------------------------------------------ reading

    def _page(self, number: int, create: bool = False) -> MessagePage | None:
        page = self._pages.get(number)
        if page is None and number not in self._pages:
            data = self._store.get(f"m/{number}")
            page = MessagePage.unpack(number, data) if data else None
            self._pages[number] = page
        if page is None and create:
            page = self._pages[number] = MessagePage(number)
        return page

    def rows(self, ids: Array) -> list[tuple[MessagePage | None, Array, Array | slice]]:
        """The page rows of messages, grouped by page; None for a page that is gone."""
        counters = np.asarray(ids, np.uint64) & np.uint64(COUNTER_MASK)
        return [
            (self._page(number), rows, where)
            for number, rows, where in by_page(counters.astype(np.int64))
        ]

    def gather(self, ids: Array, name: str) -> Array:
        """One column of the message pages for many messages."""
        out = np.zeros(len(ids), dtype=next(d for n, d, _ in MessagePage.FIELDS if n == name))
        for page, rows, where in self.rows(ids):
            if page is not None:
                out[where] = getattr(page, name)[rows]
        return out

    def contents(self, ids: Array) -> list[Content]:
        """Payload, key and headers of each message, in order of ``ids``."""
        counters = (np.asarray(ids, np.uint64) & np.uint64(COUNTER_MASK)).tolist()
        arrived = self._arrived
        if all(c in arrived for c in counters):
            return [arrived[c] for c in counters]
        out: list[Content] = [(b"", None, None)] * len(counters)
        for page, rows, where in self.rows(ids):
            if page is None:
                continue
            positions = range(len(counters)) if isinstance(where, slice) else where.tolist()
            columns = [
                getattr(page, name)[rows].tolist()
                for name in ("block", "offset", "length", "key_length", "header_length")
            ]
            for position, block, offset, length, keys, heads in zip(
                positions, *columns, strict=True
            ):
                known = arrived.get(counters[position])
                out[position] = known or _cut(self._block(block), offset, length, keys, heads)
        return out

    def _block(self, number: int) -> bytes:
        data = self._blocks.get(number)
        if data is None:
            data = self._store.get(f"b/{number}") or b""
            self._blocks[number] = data
            if len(self._blocks) > BLOCKS_CACHED:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(number)
        return data

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
            for number in range(first >> PAGE_BITS, (last >> PAGE_BITS) + 1):
                page = self._page(number)
                if page is None:
                    continue
                start = max(first - (number << PAGE_BITS), 0)
                stop = min(last - (number << PAGE_BITS) + 1, page.used)
                hits = np.flatnonzero(page.queue[start:stop] == queue) + start
                found_ids.append((hits + (number << PAGE_BITS) + base).astype(np.uint64))
                found_seqs.append(page.seq[hits].astype(np.int64))
                for row, matches in page.extras.items():
                    for owner, seq in matches:
                        if owner == queue and seq != PAST and start <= row < stop:
                            one = (number << PAGE_BITS) + row + base
                            found_ids.append(np.array([one], np.uint64))
                            found_seqs.append(np.array([seq], np.int64))
        if not found_ids:
            return np.zeros(0, np.uint64), np.zeros(0, np.int64)
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
        sizes = page.size[rows].astype(np.int64)
        header = self.header
        header.bytes -= int(sizes.sum())
        header.messages -= len(rows)
        vpns = page.vpn[rows]
        for vpn in np.unique(vpns).tolist():
            header.vpn_bytes[vpn] -= int(sizes[vpns == vpn].sum())
        files, counts = np.unique(page.file[rows], return_counts=True)
        for file, count in zip(files.tolist(), counts.tolist(), strict=True):
            self._freed.setdefault(file, [0])[0] += count

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

    def were_held(self, ids: Array, queue: int) -> Array:
        """Which messages a queue holds or held; True for those that are gone altogether."""
        held = np.ones(len(ids), bool)
        for page, rows, where in self.rows(ids):
            if page is None:
                continue
            mine = (page.queue[rows] == 0) | (page.queue[rows] == queue)
            for at in np.flatnonzero(~mine).tolist() if page.extras else ():
                mine[at] = any(m[0] == queue for m in page.extras.get(int(rows[at]), ()))
            held[where] = mine
        return held

    # ------------------------------------------------------------ files

    def _emptied(self) -> int:
        """Files, but for the open one, whose last message went in this step."""
        n = 0
        for file, (count,) in self._freed.items():
            if file != self.header.file:
                n += self._notes.read(f"f/{file // FILES_PER_NOTE}")[file][0] == count
        return n

    def _open_file(self) -> tuple[int, int]:
        """Of the open file: messages counted, and messages that live."""
        note = self._notes.read(f"f/{self.header.file // FILES_PER_NOTE}") or {}
        counted = note[self.header.file][0] if self.header.file in note else 0
        return counted, counted - self._freed.get(self.header.file, [0])[0]

    def files_in_use(self) -> int:
        """Spool files that hold messages now (S8)."""
        counted, alive = self._open_file()
        return self.header.files - self._emptied() - (counted > 0 and not alive)

    def file_room(self, files_max: int) -> int:
        """How many bytes may be stored before a file beyond ``files_max`` is begun (S8).

        A file takes blocks until it has `FILE_BYTES`, so a message is stored whole where less
        than the room is taken.
        """
        counted, _ = self._open_file()
        others = self.header.files - self._emptied() - (counted > 0)
        return (files_max - others) * FILE_BYTES - self.header.file_bytes

    # ------------------------------------------------------------ end of the step

    def flush(self) -> None:
        """Write pages that changed, free pages and files whose messages are all gone."""
        self.settle_staged()
        header = self.header
        for file, (count,) in sorted(self._freed.items()):
            note_key = f"f/{file // FILES_PER_NOTE}"
            note = self._notes.read(note_key)
            entry = note[file]
            entry[0] -= count
            if entry[0] == 0:
                header.files -= 1
                if file != header.file:
                    for block in range(entry[1], entry[2] + 1):
                        self._store.delete(f"b/{block}")
                    del note[file]
            self._notes.write(note_key, note)
        open_note = self._notes.read(f"f/{header.file // FILES_PER_NOTE}") or {}
        self._close_if_idle(open_note.get(header.file))
        last_page = header.next_counter >> PAGE_BITS
        for number, page in sorted(self._pages.items()):
            if page is None or not page.dirty:
                continue
            if number < last_page and not page.queue[: page.used].any():
                self._store.delete(f"m/{number}")
            else:
                self._store.put(f"m/{number}", page.pack())

    def _close_if_idle(self, entry: list[int] | None) -> None:
        """An open file without a message is freed too: an empty engine keeps no payload."""
        header = self.header
        if entry is None or entry[0] or not header.file_bytes:
            return
        for block in range(entry[1], entry[2] + 1):
            self._store.delete(f"b/{block}")
        note_key = f"f/{header.file // FILES_PER_NOTE}"
        note = self._notes.read(note_key)
        del note[header.file]
        self._notes.write(note_key, note)
        header.file += 1
        header.file_bytes = 0


def _cut(data: bytes, offset: int, length: int, keys: int, heads: int) -> Content:
    stop = offset + length
    payload = data[offset:stop]
    key = None
    if keys != NO_KEY:
        key = data[stop : stop + keys]
        stop += keys
    return payload, key, data[stop : stop + heads] if heads else None
