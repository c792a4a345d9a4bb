"""What a snapshot writer would name of `messages`, for tables that are made in memory (R1)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core import FORMAT as LIVE_FORMAT
from ..core.storage.blocks import head_bytes
from ..sinks.content_references import contents_of, digest_of, references_by_content
from ..sinks.payload_references import PLACE, counters_of, pieces_of, references
from ..state import Limits


def references_to(
    pages: Mapping[str, bytes], blocks: Mapping[str, bytes], journal: pa.Table, places: pa.Table,
    number: int,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Which of these blocks stand in `messages`, each with its references. pages: the broker's
    message pages among them; places: see `places_of`; number: the broker's."""
    if msgspec.msgpack.decode(pages["broker"])["format"] == LIVE_FORMAT:
        return _by_content(blocks, journal, places)
    lengths = {int(page[2:]): len(value) for page, value in blocks.items()}
    ours = ((page, value) for page, value in pages.items() if page.startswith("m/"))
    pieces = pieces_of(ours, lengths, Limits().page_bits)
    crcs = [
        zlib.crc32(blocks[f"b/{block}"][offset : offset + size])
        for block, offset, size in zip(
            pieces.block.tolist(), pieces.offset.tolist(), pieces.size.tolist(), strict=True
        )
    ]
    spooled = counters_of(_stored(journal), number)
    found = references(pieces, np.array(crcs, np.int64), spooled, places)
    return {f"b/{block}": refs for block, refs in found.items()}


def _by_content(
    blocks: Mapping[str, bytes], journal: pa.Table, places: pa.Table
) -> dict[str, list[dict[str, Any]]]:
    stored = _stored(journal)
    heads = {int(page[2:]): value[: head_bytes(value)] for page, value in blocks.items()}
    contents = contents_of(heads)
    digests = [
        digest_of(blocks[f"b/{block}"][begin : begin + size])
        for block, begin, size in zip(*(column.tolist() for column in contents), strict=True)
    ]
    found = references_by_content(contents, np.array(digests, np.int64), _within(stored, places))
    return {f"b/{block}": refs for block, refs in found.items()}


def _within(stored: pa.Table, places: pa.Table) -> pa.Table:
    """The rows from the first to the last place of each partition."""
    by_place = stored.group_by(["topic", "partition"])
    spans = by_place.aggregate([("offset", "min"), ("offset", "max")])
    spans = spans.rename_columns(["topic", "partition", "offset_min", "offset_max"])
    met = places.join(spans, ["topic", "partition"], join_type="inner")
    first, last = (pc.greater_equal(met["offset"], met["offset_min"]),
                   pc.less_equal(met["offset"], met["offset_max"]))  # fmt: skip
    return met.filter(pc.and_(first, last))


def _stored(journal: pa.Table) -> pa.Table:
    """What the journal says that was stored of records of this Kafka."""
    here = pc.and_(pc.equal(journal["event"], "spooled"), pc.not_equal(journal["topic"], ""))
    return journal.filter(here)


def places_of(messages: pa.Table) -> pa.Table:
    """Rows of `messages` as `references` and `references_by_content` want them."""
    columns = ("payload", "key", "headers")
    contents = [
        (payload or b"") + (key or b"") + (headers or "").encode()
        for payload, key, headers in zip(*(messages[c].to_pylist() for c in columns), strict=True)
    ]
    return (
        messages.select(PLACE)
        .append_column("size", pa.array(map(len, contents), pa.int64()))
        .append_column("crc", pa.array(map(zlib.crc32, contents), pa.int64()))
        .append_column("digest", pa.array(map(digest_of, contents), pa.int64()))
        .append_column("time", messages["time"].cast(pa.int64()))
    )
