"""Which blocks of contents stand in `messages` already, so that a snapshot only names them (R1).

    head of a block ─▶ where its contents lie ─▶ their digests ◀─ rows of `messages`

A block is a head and contents of messages, one behind the other. The head follows from the
contents, but where compaction moved some in: such a block stays inline. Every other content is
looked for by its digest in what the journal says was stored meanwhile; which of several equal
messages it was does not matter.

A *reference* names rows of `messages` that follow each other; a block is named by references in the
order of its contents. Only a block of which all contents are found is named. A reference without a
topic names contents that are empty: what died before the block was written, or came without a
payload. Topics can be deleted and made again, with offsets from 0: so a reference says the newest
time of its rows, and what stands twice at its place when it is written is not named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..state.storage.blocks import ends_of

REFERENCE = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
        ("item", pa.int32()), ("last", pa.int64()), ("count", pa.int32()),
        ("time", pa.int64()),
    ]
)  # fmt: skip
PLACE = ["topic", "partition", "offset", "item"]
WORTH_BYTES = 16_384  # of a block: a shorter one stays inline, it is not worth a look at the tables
DIGEST_CHARS = 15  # of a SHA-256, in hex: so it is a number of 60 bits
EMPTY, MISSING = -1, -2  # instead of a row
Array = NDArray[Any]
_Run = list[int]  # the first row, how many


class Contents(NamedTuple):
    """What lies in blocks, in their order. begin: in the block's page."""

    block: Array
    begin: Array
    size: Array


def contents_of(heads: Mapping[int, bytes]) -> Contents:
    """The contents of the blocks that can be named, by their heads."""
    blocks, begins, sizes = [], [], []
    for number, head in sorted(heads.items()):
        ends = ends_of(head)
        if ends:
            stop = np.array(ends, np.int64)
            start = np.concatenate(([0], stop[:-1]))
            blocks.append(np.full(len(stop), number, np.int64))
            begins.append(start + len(head))
            sizes.append(stop - start)
    none = [np.zeros(0, np.int64)]
    return Contents(*(np.concatenate(parts or none) for parts in (blocks, begins, sizes)))


def digest_of(content: bytes) -> int:
    """What a content is known by."""
    return int(hashlib.sha256(content).hexdigest()[:DIGEST_CHARS], 16)


def references_by_content(
    contents: Contents, digests: Array, messages: pa.Table
) -> dict[int, list[dict[str, Any]]]:
    """The blocks that can be named, each with its references.

    digests: of each content; messages: place, `digest` and `time`, in µs, of rows, all there are
    between the first and the last place of a partition.
    """
    there = messages.sort_by([(name, "ascending") for name in PLACE])
    partition, alone = _places(there)
    # Of each row, whether the next one follows it in its partition.
    follows = (alone[1:] & (partition[1:] == partition[:-1])).tolist()
    first = {}
    known = there["digest"].to_pylist()
    for row in reversed(np.flatnonzero(alone).tolist()):
        first[known[row]] = row
    rows = _rows_of(contents, digests.tolist(), known, first, follows)
    columns = {name: there[name].to_pylist() for name in (*PLACE, "time")}
    found: dict[int, list[dict[str, Any]]] = {}
    for block, runs in _runs(contents.block.tolist(), rows, follows):
        if all(first != MISSING for first, _ in runs):
            found[block] = [_reference(columns, first, count) for first, count in runs]
    return found


def _rows_of(
    contents: Contents, digests: list[int], known: list[int], first: dict[int, int],
    follows: list[bool],
) -> list[int]:  # fmt: skip
    """The row of each content: the one behind that of the content before, else the first. known:
    the digests of the rows; first: of each digest the first row."""
    rows, row = [], MISSING
    for digest, size in zip(digests, contents.size.tolist(), strict=True):
        if not size:
            row = EMPTY
        elif 0 <= row < len(follows) and follows[row] and known[row + 1] == digest:
            row += 1
        else:
            row = first.get(digest, MISSING)
        rows.append(row)
    return rows


def _places(there: pa.Table) -> tuple[Array, Array]:
    """Of each row its partition, as a number, and whether its place is no other row's."""
    n = len(there)
    if not n:
        return np.zeros(0, np.int64), np.zeros(0, bool)
    topics = there["topic"].dictionary_encode().combine_chunks().indices.to_numpy()
    partition = topics.astype(np.int64) << 32 | there["partition"].to_numpy()
    columns = (partition, there["offset"].to_numpy(), there["item"].to_numpy())
    same = np.logical_and.reduce([column[1:] == column[:-1] for column in columns])
    alone = np.ones(n, bool)
    alone[1:] &= ~same
    alone[:-1] &= ~same
    return partition, alone


def _runs(
    blocks: list[int], rows: list[int], follows: list[bool]
) -> Iterator[tuple[int, list[_Run]]]:
    """Each block with its rows; those that follow each other are one run."""
    runs: list[_Run] = []
    of, before = blocks[0] if blocks else 0, MISSING
    for block, row in zip(blocks, rows, strict=True):
        if block != of:
            yield of, runs
            of, runs = block, []
        goes_on = row == before == EMPTY or (0 <= before == row - 1 and follows[before])
        if runs and goes_on:
            runs[-1][1] += 1
        else:
            runs.append([row, 1])
        before = row
    if runs:
        yield of, runs


def _reference(columns: dict[str, list[Any]], first: int, count: int) -> dict[str, Any]:
    if first == EMPTY:
        return {
            "topic": "", "partition": 0, "first": 0, "item": 0, "last": 0, "count": count, "time": 0
        }  # fmt: skip
    last = first + count - 1
    return {
        "topic": columns["topic"][first], "partition": columns["partition"][first],
        "first": columns["offset"][first], "item": columns["item"][first],
        "last": columns["offset"][last], "count": count,
        "time": max(columns["time"][first : last + 1]),
    }  # fmt: skip
