"""The references to `messages` that a snapshot writer would make, for tables in memory (R1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lakequeue.sinks.block_references import (
    DIGEST_CHARS,
    PLACE,
    contents_of,
    references_by_content,
)
from lakequeue.state.storage.blocks import head_bytes


def references_to(
    blocks: Mapping[str, bytes], journal: pa.Table, places: pa.Table
) -> dict[str, list[dict[str, Any]]]:
    """The blocks whose messages are in `messages`, each with its references. places: see
    `places_of`."""
    heads = {int(page[2:]): value[: head_bytes(value)] for page, value in blocks.items()}
    contents = contents_of(heads)
    digests = [
        digest_of(blocks[f"b/{block}"][begin : begin + size])
        for block, begin, size in zip(*(column.tolist() for column in contents), strict=True)
    ]
    there = _within(_stored(journal), places)
    found = references_by_content(contents, np.array(digests, np.int64), there)
    return {f"b/{block}": refs for block, refs in found.items()}


def digest_of(content: bytes) -> int:
    """The digest of a content, as Spark computes it."""
    return int(hashlib.sha256(content).hexdigest()[:DIGEST_CHARS], 16)


def _within(stored: pa.Table, places: pa.Table) -> pa.Table:
    """The rows of each partition from its first to its last place."""
    by_place = stored.group_by(["topic", "partition"])
    spans = by_place.aggregate([("offset", "min"), ("offset", "max")])
    spans = spans.rename_columns(["topic", "partition", "offset_min", "offset_max"])
    met = places.join(spans, ["topic", "partition"], join_type="inner")
    first, last = (pc.greater_equal(met["offset"], met["offset_min"]),
                   pc.less_equal(met["offset"], met["offset_max"]))  # fmt: skip
    return met.filter(pc.and_(first, last))


def _stored(journal: pa.Table) -> pa.Table:
    """The journal's rows about stored records of this Kafka."""
    here = pc.and_(pc.equal(journal["event"], "spooled"), pc.not_equal(journal["topic"], ""))
    return journal.filter(here)


def places_of(messages: pa.Table) -> pa.Table:
    """Rows of `messages`, as `references_by_content` expects them."""
    columns = ("payload", "key", "headers")
    contents = [
        (payload or b"") + (key or b"") + (headers or "").encode()
        for payload, key, headers in zip(*(messages[c].to_pylist() for c in columns), strict=True)
    ]
    return (
        messages.select(PLACE)
        .append_column("digest", pa.array(map(digest_of, contents), pa.int64()))
        .append_column("time", messages["time"].cast(pa.int64()))
    )
