"""A snapshot's new blocks of payloads by reference to `messages`, as far as that has them (R1).

What is asked of the tables is ids, places and checksums: no payload leaves Spark's Java process.
Which block can be named, `payload_references` decides.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.folders import Folder, folder
from ..protocol.ids import make_id
from ..protocol.table_format import JOURNAL, MESSAGES, REFS
from ..state import Limits
from .payload_references import PLACE, REFERENCE, Pieces, counters_of, pieces_of, references

_BLOCKS = "page LIKE 'b/%' AND value IS NOT NULL"
_CONTENT = """concat(coalesce(payload, X''), coalesce(key, X''),
    coalesce(cast(headers AS binary), X''))"""
# The value is bound once: named in the inner function, it would be copied for each of its pieces.
_CRCS = """transform(array(value), v -> transform(arrays_zip(offsets, sizes),
    at -> crc32(substring(v, at.offsets + 1, at.sizes))))[0]"""


# By columns, Spark holds 4,096 rows' payloads at once: of 1 MB each they ended the Java process.
_BY_COLUMNS = "spark.sql.parquet.enableVectorizedReader"


class Referring:
    """Of one set of tables."""

    def __init__(self, spark: SparkSession, tables: Folder | str) -> None:
        self._spark, self._tables = spark, str(tables)
        self._by_rows = spark.newSession()  # its settings are nobody else's
        self._by_rows.conf.set(_BY_COLUMNS, "false")

    def __call__(
        self, broker: str, pages: DataFrame, rows: DataFrame, steps: tuple[int, int]
    ) -> DataFrame:
        """Rows of a snapshot with their `refs`, and without the values of blocks that have some.
        pages: all that changed in these steps, the first of them not one of them."""
        inline = rows.withColumn("refs", f.expr(f"CAST(NULL AS {REFS})"))
        if not all(self._there(name) for name in (MESSAGES, JOURNAL)):
            return inline
        blocks = rows.where(_BLOCKS)
        lengths = {
            int(r.page[2:]): r.n for r in blocks.select("page", f.length("value").alias("n"))
            .collect()
        }  # fmt: skip
        if not lengths:
            return inline
        number, pieces = _pieces(pages, lengths)
        if not len(pieces.block):
            return inline
        spooled = self._spooled(broker, number, pieces, steps)
        if not len(spooled):
            return inline
        crcs, messages = self._crcs(blocks, pieces), self._messages(spooled)
        found = references(pieces, crcs, spooled, messages)
        if not found:
            return inline
        schema = pa.schema([("page", pa.string()), ("refs", pa.list_(REFERENCE))])
        said = [{"page": f"b/{block}", "refs": refs} for block, refs in found.items()]
        named = self._spark.createDataFrame(pa.Table.from_pylist(said, schema))
        joined = rows.join(f.broadcast(named), "page", "left")
        value = f.when(f.col("refs").isNull(), f.col("value"))
        return joined.select("page", value.alias("value"), "crc", "refs")

    def _spooled(
        self, broker: str, number: int, pieces: Pieces, steps: tuple[int, int]
    ) -> pa.Table:
        """From which records these messages came, as far as the journal has it."""
        ends = [make_id(number, int(n)) for n in (pieces.counter.min(), pieces.counter.max())]
        rows = self._read(self._spark, JOURNAL).where(
            (f.col("broker") == broker) & (f.col("step") > steps[0]) & (f.col("step") <= steps[1])
            & (f.col("event") == "spooled") & (f.col("topic") != "") & ids_between(*ends)
        )  # fmt: skip
        return counters_of(rows.select("message_id", *PLACE).toArrow(), number)

    def _messages(self, spooled: pa.Table) -> pa.Table:
        """The rows of `messages` from the first to the last of these places of each partition."""
        by_place = spooled.group_by(["topic", "partition"])
        spans = by_place.aggregate([("offset", "min"), ("offset", "max")])
        ends = min(spans["offset_min"].to_pylist()), max(spans["offset_max"].to_pylist())
        stored = self._read(self._by_rows, MESSAGES).where(f.col("offset").between(*ends))
        theirs = self._by_rows.createDataFrame(spans)
        met = stored.join(f.broadcast(theirs), ["topic", "partition"])
        named = met.where("`offset` BETWEEN offset_min AND offset_max")
        content = f.expr(_CONTENT)
        return named.select(
            *PLACE, f.unix_micros("time").alias("time"),
            f.length(content).cast("long").alias("size"), f.crc32(content).alias("crc"),
        ).toArrow()  # fmt: skip

    def _crcs(self, blocks: DataFrame, pieces: Pieces) -> Any:
        """The checksum of each piece, in their order."""
        cuts = pieces.begins[1:]
        layout = pa.table({
            "page": [f"b/{n}" for n in pieces.block[pieces.begins].tolist()],
            "offsets": pa.array(np.split(pieces.offset.astype(np.int32), cuts)),
            "sizes": pa.array(np.split(pieces.size.astype(np.int32), cuts)),
        })  # fmt: skip
        laid = blocks.join(f.broadcast(self._spark.createDataFrame(layout)), "page")
        found = laid.select("page", f.expr(_CRCS).alias("crcs")).toArrow()
        by_page = dict(zip(found["page"].to_pylist(), found["crcs"].to_pylist(), strict=True))
        return np.concatenate([np.array(by_page[page], np.int64)
                               for page in layout["page"].to_pylist()])  # fmt: skip

    def _there(self, name: str) -> bool:
        return any((folder(self._tables) / name / "_delta_log").glob("*.json"))

    def _read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("delta").load(f"{self._tables}/{name}")


def ids_between(first: int, last: int) -> Column:
    """Ids from the first to the last, compared as they are written: of most rows, whose messages
    are gone, no number has to be made."""
    text, low, high = f.col("message_id"), str(first), str(last)
    length = f.octet_length(text)
    above = (length > len(low)) | ((length == len(low)) & (text >= low))
    below = (length < len(high)) | ((length == len(high)) & (text <= high))
    return above & below & f.expr("try_cast(message_id AS DECIMAL(20, 0))").isNotNull()


def _pieces(pages: DataFrame, lengths: dict[int, int]) -> tuple[int, Pieces]:
    """The broker's number, and what lies where in its new blocks."""
    wanted = pages.where("value IS NOT NULL AND (page LIKE 'm/%' OR page = 'broker')")
    found = {row.page: bytes(row.value) for row in wanted.select("page", "value").collect()}
    number = msgspec.msgpack.decode(found.pop("broker"))["number"]
    return number, pieces_of(found.items(), lengths, Limits().page_bits)
