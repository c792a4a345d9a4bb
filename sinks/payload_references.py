"""Which blocks of payloads stand in `messages` already, so that a snapshot only names them (R1).

    block ◀─ m/ pages: id, block, offset, length ─▶ journal: id ─▶ place ─▶ `messages`

A block is payloads, keys and headers of messages, one behind the other, as they came. The message
pages say which lie where, the journal says from which record each came, and `messages` has that
record. A *reference* names rows of `messages` that follow each other; a block is named by
references in the order of its contents. Only a block that they give whole is: of each message
length and CRC-32 are compared, so what was edited, moved by compaction, came from another broker
or is not in `messages` yet stays inline, whatever the reason.

Topics can be deleted and made again, with offsets from 0: so a reference says the newest time of
its rows, and what stands twice at its place when it is written is not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..protocol.ids import COUNTER_BITS, COUNTER_MASK
from ..state.storage.columns import Array
from ..state.storage.message_pages import MessagePage

REFERENCE = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
        ("item", pa.int32()), ("last", pa.int64()), ("count", pa.int32()),
        ("time", pa.int64()),
    ]
)  # fmt: skip
PLACE = ["topic", "partition", "offset", "item"]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Messages that make up blocks, in the order of the blocks and in them. begins: where each
    block's first stands."""

    block: Array
    counter: Array
    offset: Array
    size: Array
    begins: Array

    def whole(self, fits: Array) -> Pieces:
        """The blocks of which each message fits."""
        return _pieces(self, np.flatnonzero(_each(fits, self.begins, len(self.block))))


def pieces_of(pages: Iterable[tuple[str, bytes]], lengths: Mapping[int, int], bits: int) -> Pieces:
    """The messages of blocks that they fill without a gap. pages: message pages by their keys;
    lengths: of each block in question; bits: of a message page."""
    wanted = np.array(sorted(lengths), np.int64)
    found = [_rows(key, page, wanted, bits) for key, page in pages]
    columns = [np.concatenate(c) for c in zip(*found, strict=True)] or [np.zeros(0, np.int64)] * 4
    block, counter, offset, size = columns
    raw = Pieces(block, counter, offset, size, np.zeros(0, np.int64))
    pieces = _pieces(raw, np.lexsort((counter, block)))
    if not len(pieces.block):
        return pieces
    ends = pieces.offset + pieces.size
    before = np.concatenate(([0], ends[:-1]))
    before[pieces.begins] = 0
    fits = pieces.offset == before
    last = np.concatenate((pieces.begins[1:], [len(ends)])) - 1
    fits[last] &= ends[last] == [lengths[n] for n in pieces.block[last].tolist()]
    return pieces.whole(fits)


def counters_of(journal: pa.Table, number: int) -> pa.Table:
    """Of `spooled` rows (`message_id` and place) those of a broker's own ids: their `counter`."""
    ids = journal["message_id"].cast(pa.uint64()).to_numpy()
    mine = np.flatnonzero(ids >> np.uint64(COUNTER_BITS) == number)
    counters = (ids[mine] & np.uint64(COUNTER_MASK)).astype(np.int64)
    return journal.select(PLACE).take(mine).append_column("counter", pa.array(counters))


def references(
    pieces: Pieces, crcs: Array, spooled: pa.Table, messages: pa.Table
) -> dict[int, list[dict[str, Any]]]:
    """The blocks that can be named, each with its references.

    crcs: of each piece; spooled: `counter` and place of messages; messages: place, `size`, `crc`
    and `time`, in µs, of rows, all there are between the first and the last place of a partition.
    """
    _, once = np.unique(spooled["counter"].to_numpy(), return_index=True)
    mine = pa.table({
        "n": np.arange(len(pieces.block)), "counter": pieces.counter,
        "size": pieces.size, "crc": crcs,
    })  # fmt: skip
    there = messages.sort_by([(name, "ascending") for name in PLACE])
    there = there.append_column("ordinal", pa.array(np.arange(len(there))))
    named = mine.join(spooled.take(once), "counter", join_type="inner")
    met = named.join(there, PLACE, join_type="inner", right_suffix="_there").combine_chunks()
    columns = {name: met[name].to_numpy() for name in ("n", "size", "size_there", "crc",
                                                       "crc_there", "ordinal")}  # fmt: skip
    n = columns["n"]
    fits = np.bincount(n, minlength=len(pieces.block)) == 1
    same = (columns["size"] == columns["size_there"]) & (columns["crc"] == columns["crc_there"])
    fits[n[~same]] = False
    ordinals = np.full(len(pieces.block), -1, np.int64)
    ordinals[n] = columns["ordinal"]
    return _joined(pieces.block, ordinals, _each(fits, pieces.begins, len(n)), there)


def _joined(
    block: Array, ordinals: Array, fits: Array, there: pa.Table
) -> dict[int, list[dict[str, Any]]]:
    """Rows that follow each other in a block and in `messages` as one reference."""
    block, ordinals = block[fits], ordinals[fits]
    if not len(block):
        return {}
    topics = there["topic"].dictionary_encode().combine_chunks().indices.to_numpy()
    places = topics.astype(np.int64) << 32 | there["partition"].to_numpy()
    follows = (np.diff(block) == 0) & (np.diff(ordinals) == 1)
    follows &= np.diff(places[ordinals]) == 0
    begins = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    counts = np.diff(np.concatenate((begins, [len(block)])))
    times = there["time"].to_numpy()
    newest = np.maximum.reduceat(times[ordinals], begins)
    first, last = ordinals[begins], ordinals[begins + counts - 1]
    columns = {
        "topic": there["topic"].take(first), "partition": there["partition"].take(first),
        "first": there["offset"].take(first), "item": there["item"].take(first),
        "last": there["offset"].take(last), "count": counts, "time": newest,
    }  # fmt: skip
    rows = pa.table(columns).cast(pa.schema(list(REFERENCE))).to_pylist()
    found: dict[int, list[dict[str, Any]]] = {}
    for number, row in zip(block[begins].tolist(), rows, strict=True):
        found.setdefault(number, []).append(row)
    return found


def _rows(key: str, data: bytes, wanted: Array, bits: int) -> tuple[Array, ...]:
    """Block, counter, offset and size of a page's messages in some blocks. What came from another
    broker has no record here."""
    page = MessagePage.unpack(int(key[2:]), data, bits)
    here = np.isin(page.block[: page.used], wanted) & (page.origin[: page.used] == 0)
    rows = np.flatnonzero(here)
    columns = page.block[rows], rows + page.base, page.offset[rows], page.spans(rows)
    return tuple(column.astype(np.int64) for column in columns)


def _pieces(pieces: Pieces, rows: Array) -> Pieces:
    """Some of them, in this order."""
    block = pieces.block[rows]
    begins = np.flatnonzero(np.concatenate(([True], np.diff(block) != 0))[: len(block)])
    return Pieces(block, pieces.counter[rows], pieces.offset[rows], pieces.size[rows], begins)


def _each(fits: Array, begins: Array, n: int) -> Array:
    """Whether of a block everything fits, for each of its messages."""
    if not len(begins):
        return np.zeros(0, bool)
    counts = np.diff(np.concatenate((begins, [len(fits)])))
    return np.repeat(np.logical_and.reduceat(fits, begins), counts)
