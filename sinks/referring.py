"""A snapshot's new blocks of payloads by reference to `messages`, as far as that has them (R1).

What is asked of the tables is ids, places, checksums and digests: no payload leaves Spark's Java
process. Which block can be named, `payload_references` decides; of the live core's blocks,
`content_references`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ..core import FORMAT as LIVE_FORMAT
from ..core.storage.blocks import head_bytes
from ..protocol.folders import Folder, folder
from ..protocol.ids import make_id
from ..protocol.table_format import JOURNAL, MESSAGES, REFS
from ..state import Limits
from ..state.storage.columns import Array
from .content_references import DIGEST_CHARS, WORTH_BYTES, contents_of, references_by_content
from .payload_references import PLACE, REFERENCE, Pieces, counters_of, pieces_of, references

_BLOCKS = "page LIKE 'b/%' AND value IS NOT NULL"
_CONTENT = """concat(coalesce(payload, X''), coalesce(key, X''),
    coalesce(cast(headers AS binary), X''))"""
_CRC = "crc32({})"
_DIGEST = f"cast(conv(left(sha2({{}}, 256), {DIGEST_CHARS}), 16, 10) AS LONG)"
# The value is bound once: named in the inner function, it would be copied for each of its pieces.
_OF_PIECES = """transform(array(value), v -> transform(arrays_zip(offsets, sizes),
    at -> {}))[0]"""
_PIECE = "substring(v, at.offsets + 1, at.sizes)"
_START_BYTES = 8  # of a live block's page, which say how long its head is


Named = dict[int, list[dict[str, Any]]]  # of each block its references

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
        start = f.substring("value", 1, _START_BYTES).alias("start")
        starts = {
            int(r.page[2:]): (r.n, bytes(r.start))
            for r in blocks.select("page", f.length("value").alias("n"), start).collect()
        }
        if not starts:
            return inline
        header = _broker(pages)
        if header["format"] == LIVE_FORMAT:
            found = self._by_content(broker, blocks, starts, steps)
        else:
            lengths = {block: n for block, (n, _) in starts.items()}
            found = self._by_id(broker, header["number"], pages, blocks, lengths, steps)
        if not found:
            return inline
        schema = pa.schema([("page", pa.string()), ("refs", pa.list_(REFERENCE))])
        said = [{"page": f"b/{block}", "refs": refs} for block, refs in found.items()]
        named = self._spark.createDataFrame(pa.Table.from_pylist(said, schema))
        joined = rows.join(f.broadcast(named), "page", "left")
        value = f.when(f.col("refs").isNull(), f.col("value"))
        return joined.select("page", value.alias("value"), "crc", "refs")

    def _by_id(
        self, broker: str, number: int, pages: DataFrame, blocks: DataFrame,
        lengths: dict[int, int], steps: tuple[int, int],
    ) -> Named:  # fmt: skip
        """The blocks of the earlier core that can be named."""
        pieces = _pieces(pages, lengths)
        if not len(pieces.block):
            return {}
        spooled = self._spooled(broker, number, pieces, steps)
        if not len(spooled):
            return {}
        by_place = spooled.group_by(["topic", "partition"])
        spans = by_place.aggregate([("offset", "min"), ("offset", "max")])
        begins = np.append(pieces.begins, len(pieces.block))
        crcs = self._each(
            blocks, pieces.block, pieces.offset, pieces.size, begins, _CRC.format(_PIECE)
        )
        return references(pieces, crcs, spooled, self._messages(spans, _CRC, "crc"))

    def _by_content(
        self, broker: str, blocks: DataFrame, starts: dict[int, tuple[int, bytes]],
        steps: tuple[int, int],
    ) -> Named:  # fmt: skip
        """The blocks of the live core that can be named."""
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
        begins = np.flatnonzero(np.diff(contents.block, prepend=-1, append=-1))
        digests = self._each(blocks, *contents, begins, _DIGEST.format(_PIECE))
        return references_by_content(contents, digests, self._messages(spans, _DIGEST, "digest"))

    def _stored(self, broker: str, steps: tuple[int, int]) -> pa.Table:
        """From where to where these steps took messages, of each partition."""
        places = self._journaled(broker, steps).groupBy("topic", "partition")
        return places.agg(
            f.min("offset").alias("offset_min"), f.max("offset").alias("offset_max")
        ).toArrow()

    def _journaled(self, broker: str, steps: tuple[int, int]) -> DataFrame:
        """What the journal says that these steps stored of records of this Kafka."""
        return self._read(self._spark, JOURNAL).where(
            (f.col("broker") == broker) & (f.col("step") > steps[0]) & (f.col("step") <= steps[1])
            & (f.col("event") == "spooled") & (f.col("topic") != "")
        )  # fmt: skip

    def _spooled(
        self, broker: str, number: int, pieces: Pieces, steps: tuple[int, int]
    ) -> pa.Table:
        """From which records these messages came, as far as the journal has it."""
        ends = [make_id(number, int(n)) for n in (pieces.counter.min(), pieces.counter.max())]
        rows = self._journaled(broker, steps).where(ids_between(*ends))
        return counters_of(rows.select("message_id", *PLACE).toArrow(), number)

    def _messages(self, spans: pa.Table, sum_of: str, name: str) -> pa.Table:
        """The rows of `messages` from the first to the last place of each partition. sum_of: what
        is made of a content, named so."""
        ends = min(spans["offset_min"].to_pylist()), max(spans["offset_max"].to_pylist())
        stored = self._read(self._by_rows, MESSAGES).where(f.col("offset").between(*ends))
        theirs = self._by_rows.createDataFrame(spans)
        met = stored.join(f.broadcast(theirs), ["topic", "partition"])
        named = met.where("`offset` BETWEEN offset_min AND offset_max")
        return named.select(
            *PLACE, f.unix_micros("time").alias("time"),
            f.length(f.expr(_CONTENT)).cast("long").alias("size"),
            f.expr(sum_of.format(_CONTENT)).alias(name),
        ).toArrow()  # fmt: skip

    def _each(
        self, blocks: DataFrame, block: Array, begin: Array, size: Array, begins: Array, sum_of: str
    ) -> Array:
        """What is made of each content in blocks, in their order. begins: where the contents of
        each block begin, and the end."""
        cuts = begins[1:-1]
        layout = pa.table({
            "page": [f"b/{n}" for n in block[begins[:-1]].tolist()],
            "offsets": pa.array(np.split(begin.astype(np.int32), cuts)),
            "sizes": pa.array(np.split(size.astype(np.int32), cuts)),
        })  # fmt: skip
        laid = blocks.join(f.broadcast(self._spark.createDataFrame(layout)), "page")
        sums = f.expr(_OF_PIECES.format(sum_of)).alias("sums")
        found = laid.select("page", sums).toArrow()
        by_page = dict(zip(found["page"].to_pylist(), found["sums"].to_pylist(), strict=True))
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


def _broker(pages: DataFrame) -> dict[str, Any]:
    """The broker's own facts."""
    (row,) = pages.where("value IS NOT NULL AND page = 'broker'").select("value").collect()
    found: dict[str, Any] = msgspec.msgpack.decode(bytes(row.value))
    return found


def _pieces(pages: DataFrame, lengths: dict[int, int]) -> Pieces:
    """What lies where in a broker's new blocks."""
    wanted = pages.where("value IS NOT NULL AND page LIKE 'm/%'").select("page", "value")
    found = ((row.page, bytes(row.value)) for row in wanted.collect())
    return pieces_of(found, lengths, Limits().page_bits)
