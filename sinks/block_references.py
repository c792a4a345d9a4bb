"""A snapshot's new blocks of payloads by reference to `messages`, as far as that has them (R1).

What is asked of the tables is places and digests: no payload leaves Spark's Java process. Which
block can be named, `content_references` decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.folders import Folder, folder
from ..protocol.table_format import JOURNAL, MESSAGES, REFS
from ..state.storage.blocks import head_bytes
from .content_references import (
    DIGEST_CHARS,
    PLACE,
    REFERENCE,
    WORTH_BYTES,
    Array,
    Contents,
    contents_of,
    references_by_content,
)

_BLOCKS = "page LIKE 'b/%' AND value IS NOT NULL"
_CONTENT = """concat(coalesce(payload, X''), coalesce(key, X''),
    coalesce(cast(headers AS binary), X''))"""
_DIGEST = f"cast(conv(left(sha2({{}}, 256), {DIGEST_CHARS}), 16, 10) AS LONG)"
# The value is bound once: named in the inner function, it would be copied for each of its pieces.
_OF_PIECES = f"""transform(array(value), v -> transform(arrays_zip(offsets, sizes),
    at -> {_DIGEST.format("substring(v, at.offsets + 1, at.sizes)")}))[0]"""
_START_BYTES = 8  # of a block's page, which say how long its head is


Named = dict[int, list[dict[str, Any]]]  # of each block its references

# By columns, Spark holds 4,096 rows' payloads at once: of 1 MB each they ended the Java process.
_BY_COLUMNS = "spark.sql.parquet.enableVectorizedReader"


class BlockReferences:
    """Of one set of tables."""

    def __init__(self, spark: SparkSession, tables: Folder | str) -> None:
        self._spark, self._tables = spark, str(tables)
        self._by_rows = spark.newSession()  # its settings are nobody else's
        self._by_rows.conf.set(_BY_COLUMNS, "false")

    def __call__(self, broker: str, rows: DataFrame, steps: tuple[int, int]) -> DataFrame:
        """Rows of a snapshot with their `refs`, and without the values of blocks that have some.
        steps: what changed in them, the first of them not one of them."""
        inline = rows.withColumn("refs", f.expr(f"CAST(NULL AS {REFS})"))
        if not all(self._there(name) for name in (MESSAGES, JOURNAL)):
            return inline
        blocks = rows.where(_BLOCKS)
        start = f.substring("value", 1, _START_BYTES).alias("start")
        starts = {
            int(r.page[2:]): (r.n, bytes(r.start))
            for r in blocks.select("page", f.length("value").alias("n"), start).collect()
        }
        if not starts:
            return inline
        found = self._named(broker, blocks, starts, steps)
        if not found:
            return inline
        schema = pa.schema([("page", pa.string()), ("refs", pa.list_(REFERENCE))])
        said = [{"page": f"b/{block}", "refs": refs} for block, refs in found.items()]
        named = self._spark.createDataFrame(pa.Table.from_pylist(said, schema))
        joined = rows.join(f.broadcast(named), "page", "left")
        value = f.when(f.col("refs").isNull(), f.col("value"))
        return joined.select("page", value.alias("value"), "crc", "refs")

    def _named(
        self, broker: str, blocks: DataFrame, starts: dict[int, tuple[int, bytes]],
        steps: tuple[int, int],
    ) -> Named:  # fmt: skip
        """The blocks that can be named."""
        heads = [
            (f"b/{block}", head_bytes(start))
            for block, (n, start) in starts.items() if n >= WORTH_BYTES
        ]  # fmt: skip
        if not heads:
            return {}
        long = self._spark.createDataFrame(heads, "page STRING, n INT").join(blocks, "page")
        head = f.expr("substring(value, 1, n)").alias("head")
        contents = contents_of(
            {int(r.page[2:]): bytes(r.head) for r in long.select("page", head).collect()}
        )
        spans = self._stored(broker, steps)
        if not len(contents.block) or not len(spans):
            return {}
        digests = self._digests(blocks, contents)
        return references_by_content(contents, digests, self._messages(spans))

    def _stored(self, broker: str, steps: tuple[int, int]) -> pa.Table:
        """From where to where these steps took messages, of each partition."""
        spooled = self._read(self._spark, JOURNAL).where(
            (f.col("broker") == broker) & (f.col("step") > steps[0]) & (f.col("step") <= steps[1])
            & (f.col("event") == "spooled") & (f.col("topic") != "")
        )  # fmt: skip
        return spooled.groupBy("topic", "partition").agg(
            f.min("offset").alias("offset_min"), f.max("offset").alias("offset_max")
        ).toArrow()  # fmt: skip

    def _messages(self, spans: pa.Table) -> pa.Table:
        """The rows of `messages` from the first to the last place of each partition."""
        ends = min(spans["offset_min"].to_pylist()), max(spans["offset_max"].to_pylist())
        stored = self._read(self._by_rows, MESSAGES).where(f.col("offset").between(*ends))
        theirs = self._by_rows.createDataFrame(spans)
        met = stored.join(f.broadcast(theirs), ["topic", "partition"])
        named = met.where("`offset` BETWEEN offset_min AND offset_max")
        return named.select(
            *PLACE, f.unix_micros("time").alias("time"),
            f.expr(_DIGEST.format(_CONTENT)).alias("digest"),
        ).toArrow()  # fmt: skip

    def _digests(self, blocks: DataFrame, contents: Contents) -> Array:
        """The digest of each content in blocks, in their order."""
        begins = np.flatnonzero(np.diff(contents.block, prepend=-1, append=-1))
        cuts = begins[1:-1]
        layout = pa.table({
            "page": [f"b/{n}" for n in contents.block[begins[:-1]].tolist()],
            "offsets": pa.array(np.split(contents.begin.astype(np.int32), cuts)),
            "sizes": pa.array(np.split(contents.size.astype(np.int32), cuts)),
        })  # fmt: skip
        laid = blocks.join(f.broadcast(self._spark.createDataFrame(layout)), "page")
        sums = f.expr(_OF_PIECES).alias("sums")
        found = laid.select("page", sums).toArrow()
        by_page = dict(zip(found["page"].to_pylist(), found["sums"].to_pylist(), strict=True))
        return np.concatenate([np.array(by_page[page], np.int64)
                               for page in layout["page"].to_pylist()])  # fmt: skip

    def _there(self, name: str) -> bool:
        return any((folder(self._tables) / name / "_delta_log").glob("*.json"))

    def _read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("delta").load(f"{self._tables}/{name}")
