"""What a snapshot writer would name of `messages`, for tables that are made in memory (R1)."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..sinks.payload_references import PLACE, counters_of, pieces_of, references
from ..state import Limits


def references_to(
    pages: Mapping[str, bytes], blocks: Mapping[str, bytes], journal: pa.Table, places: pa.Table,
    number: int,
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Which of these blocks stand in `messages`, each with its references. pages: the broker's
    message pages among them; places: see `places_of`; number: the broker's."""
    lengths = {int(page[2:]): len(value) for page, value in blocks.items()}
    ours = ((page, value) for page, value in pages.items() if page.startswith("m/"))
    pieces = pieces_of(ours, lengths, Limits().page_bits)
    crcs = [
        zlib.crc32(blocks[f"b/{block}"][offset : offset + size])
        for block, offset, size in zip(
            pieces.block.tolist(), pieces.offset.tolist(), pieces.size.tolist(), strict=True
        )
    ]
    stored = pc.and_(pc.equal(journal["event"], "spooled"), pc.not_equal(journal["topic"], ""))
    spooled = counters_of(journal.filter(stored), number)
    found = references(pieces, np.array(crcs, np.int64), spooled, places)
    return {f"b/{block}": refs for block, refs in found.items()}


def places_of(messages: pa.Table) -> pa.Table:
    """Rows of `messages` as `references` wants them."""
    columns = ("payload", "key", "headers")
    contents = [
        (payload or b"") + (key or b"") + (headers or "").encode()
        for payload, key, headers in zip(*(messages[c].to_pylist() for c in columns), strict=True)
    ]
    return (
        messages.select(PLACE)
        .append_column("size", pa.array(map(len, contents), pa.int64()))
        .append_column("crc", pa.array(map(zlib.crc32, contents), pa.int64()))
        .append_column("time", messages["time"].cast(pa.int64()))
    )
