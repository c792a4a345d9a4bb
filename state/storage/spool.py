"""The spool: each message stored once, with its matches (S1, S2, S8, S12).

`Messages` keeps what is known of each message, `Files` the payloads in blocks and files, and
`Compaction` keeps what is stored near what lives. This file takes messages in and gives contents
out. What arrived in this step is read from memory, never back from the store (S12).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...protocol.ids import COUNTER_MASK, make_id
from ..limits import Limits
from .blocks import Blocks, Content, cut_into_blocks
from .columns import Array, holds_any, uniform, write_rows
from .compaction import Compaction
from .files import Files, SpoolHeader
from .message_pages import NO_KEY, Messages
from .store import Store

_PLACE = ("block", "offset", "length", "key_length", "header_length")


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
    origins: list[int] = field(default_factory=list)
    more: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


class Spool(Messages):
    """The messages of one broker during one step."""

    def __init__(self, store: Store, header: SpoolHeader, broker: int, limits: Limits) -> None:
        self.files = Files(store, header, limits)
        super().__init__(store, header, broker, limits, self.files)
        self._limits = limits
        self._blocks = Blocks(store)
        self._staged = Staged(first=header.next_counter)
        self._arrived: dict[int, Content] = {}  # of this step, by counter

    # ------------------------------------------------------------ storing

    def stage(
        self,
        payloads: list[bytes],
        key: bytes | None,
        headers: bytes | None,
        sizes: list[int],
        times: list[int],
        ttl_ends: int,
        priority: int,
        dmq: bool,
        vpn: int,
        matches: list[tuple[int, int]],
        origin: int = 0,
    ) -> int:
        """Store messages that differ only in payload and size, with their matches ``(queue, first
        seq)``; returns the id of the first, the others' follow. origin: the id of the one message,
        where another broker gave it."""
        s = self._staged
        row, n = len(s.payloads), len(payloads)
        s.payloads += payloads
        s.keys += [key] * n
        s.headers += [headers] * n
        s.sizes += sizes
        s.times += times
        s.ttl_ends += [ttl_ends] * n
        s.priorities += [priority] * n
        s.dmq += [dmq] * n
        s.vpns += [vpn] * n
        queue, seq = matches[0]
        s.queues += [queue] * n
        s.seqs += range(seq, seq + n)
        s.origins += [origin] * n
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

    def skip_id(self) -> int:
        """Give an id that no message here has: that of one that only others store."""
        self.settle_staged()
        number = self.next_id()
        self.header.next_counter += 1
        self._staged = Staged(first=self.header.next_counter)
        return number

    def settle_staged(self) -> None:
        """Write what was staged into pages and blocks; before messages are read or released."""
        s = self._staged
        total = len(s.payloads)
        if not total:
            return
        columns = {
            **self._write_blocks(s),
            "queue": uniform(s.queues, np.uint32),
            "seq": np.fromiter(s.seqs, np.uint64, total),
            "size": uniform(s.sizes, np.uint32),
            "time": uniform(s.times, np.int64),
            "ttl_ends": uniform(s.ttl_ends, np.int64),
            "priority": uniform(s.priorities, np.uint8),
            "dmq": uniform(s.dmq, np.uint8),
            "vpn": uniform(s.vpns, np.uint16),
            "origin": uniform(s.origins, np.uint64),
        }
        mask = (1 << self._bits) - 1
        done = 0
        while done < total:
            counter = s.first + done
            row = counter & mask
            n = min(mask + 1 - row, total - done)
            page = self.page(counter >> self._bits, create=True)
            assert page is not None
            write_rows(page, row, columns, slice(done, done + n))
            page.dirty = True
            done += n
        for at, matches in s.more.items():
            counter = s.first + at
            page = self.page(counter >> self._bits)
            assert page is not None
            page.extras[counter & mask] = [list(m) for m in matches]
        if any(s.origins):
            self.foreign.put([(one, s.first + at) for at, one in enumerate(s.origins) if one])
        self._arrived.update(
            zip(
                range(s.first, s.first + total),
                zip(s.payloads, s.keys, s.headers, strict=True),
                strict=True,
            )
        )
        self._staged = Staged(first=self.header.next_counter)

    def _write_blocks(self, s: Staged) -> dict[str, int | Array]:
        """Write the payloads; returns the columns that say where each lies."""
        total = len(s.payloads)
        lengths = np.fromiter(map(len, s.payloads), np.int64, total)
        key_lengths = uniform([NO_KEY if k is None else len(k) for k in s.keys], np.int64)
        header_lengths = uniform([len(h) if h else 0 for h in s.headers], np.int64)
        stored_keys = uniform([len(k or b"") for k in s.keys], np.int64)
        spans = lengths + stored_keys + header_lengths
        plain = not (holds_any(stored_keys) or holds_any(header_lengths))
        places: list[tuple[int, int, int]] = []  # block, file, messages
        offsets = spans.cumsum() - spans
        for start, stop in cut_into_blocks(spans, self._limits.block_bytes):
            if plain:
                data = b"".join(s.payloads[start:stop])
            else:
                parts: list[bytes] = []
                for i in range(start, stop):
                    parts += (s.payloads[i], s.keys[i] or b"", s.headers[i] or b"")
                data = b"".join(parts)
            ids = (s.first + start, s.first + stop - 1)
            block, file = self.files.put(data, stop - start, len(data), ids)
            offsets[start:stop] -= offsets[start]
            places.append((block, file, stop - start))
        blocks, files, counts = zip(*places, strict=True)
        return {
            "block": blocks[0] if len(places) == 1 else np.repeat(blocks, counts),
            "offset": offsets,
            "file": files[0] if len(places) == 1 else np.repeat(files, counts),
            "length": lengths,
            "key_length": key_lengths,
            "header_length": header_lengths,
        }

    # ------------------------------------------------------------ reading

    def contents(self, ids: Array) -> list[Content | None]:
        """Payload, key and headers of each message, in order of ``ids``; None where lost."""
        counters = (np.asarray(ids, np.uint64) & np.uint64(COUNTER_MASK)).tolist()
        out: list[Content | None] = [self._arrived.get(c) for c in counters]
        if None not in out:
            return out
        for page, rows, where in self.rows(ids):
            if page is None:
                continue
            positions = range(len(counters)) if isinstance(where, slice) else where.tolist()
            places = zip(*(getattr(page, name)[rows].tolist() for name in _PLACE), strict=True)
            here = [at for at in zip(positions, places, strict=True) if out[at[0]] is None]
            found = self._blocks.contents(place for _, place in here)
            for (position, _), content in zip(here, found, strict=True):
                out[position] = content
        return out

    def spans(self, ids: Array) -> Array:
        """Bytes that payload, key and headers of each message take, as they are read."""
        out = np.zeros(len(ids), np.int64)
        for page, rows, where in self.rows(ids):
            if page is not None:
                out[where] = page.spans(rows)
        return out

    # ------------------------------------------------------------ files (S8)

    def files_in_use(self) -> int:
        """Spool files that hold messages now (S8)."""
        return self.header.files

    def file_room(self, files_max: int) -> int:
        """How many bytes may be stored before a file beyond ``files_max`` is begun (S8)."""
        return self.files.room(files_max)

    def compact(self, pressed: bool = False) -> bool:
        """Move live payloads out of nearly empty files, as much as one step may, where more than
        twice what lives (and a slack) is stored. pressed: files are short, so do it earlier.

        Returns whether there may be more to do in the next step.
        """
        self.settle_staged()
        work = Compaction(self, self._blocks, self.files, self._limits)
        return work.run(pressed)

    # ------------------------------------------------------------ end of the step

    def flush(self) -> bool:
        """Write what changed and delete blocks in which nothing lives, as many as a step may;
        whether some are left for the next step."""
        self.settle_staged()
        self.files.free()
        self.files.flush()
        self.flush_pages()
        return self.files.has_empty()

    def overview(self) -> dict[str, Any]:
        """Counts, and every file."""
        header = self.header
        return {
            "messages": header.messages, "bytes": header.bytes, "files": header.files,
            "stored_bytes": header.stored_bytes, "live_bytes": header.live_bytes,
            "open_file": header.file, "by_file": self.files.overview(),
        }  # fmt: skip
