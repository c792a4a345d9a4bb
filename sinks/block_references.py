"""Payload blocks of a snapshot as references to `messages`, so that payloads are stored once (R1).

    head of a block ─▶ positions of its contents ─▶ their digests ◀─ rows of `messages`

A block consists of a head and the contents of messages, one after the other. A block into which
compaction moved contents stays inline, since its head cannot be computed from the contents. For any
other block, each content is looked up by its digest among the messages that, by the journal, were
stored since the last snapshot. Any of several equal messages will do.

A *reference* names consecutive rows of `messages`. A block becomes references, in the order of its
contents, if all contents are found. A reference without a topic stands for empty contents: messages
that died before the block was written, or had no payload. A recreated topic uses the same offsets
again, so a reference includes the newest time of its rows, and offsets that occur twice are not
used.

Only offsets and digests leave Spark's Java process, no payloads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.folders import Folder, folder
from ..protocol.home_places import has_table
from ..protocol.table_format import JOURNAL, MESSAGES, REFS
from ..state.storage.blocks import ends_of, head_bytes

REFERENCE = pa.struct(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("first", pa.int64()),
        ("item", pa.int32()), ("last", pa.int64()), ("count", pa.int32()),
        ("time", pa.int64()),
    ]
)  # fmt: skip
PLACE = ["topic", "partition", "offset", "item"]
WORTH_BYTES = 16_384  # a shorter block stays inline, since looking it up would cost more
DIGEST_CHARS = 15  # hex digits of a SHA-256, which make a number of 60 bits
EMPTY, MISSING = -1, -2  # instead of a row
Array = NDArray[Any]
_Run = list[int]  # the first row, how many


class Contents(NamedTuple):
    """The contents of blocks, in order. begin: where one begins in its block's page."""

    block: Array
    begin: Array
    size: Array


def contents_of(heads: Mapping[int, bytes]) -> Contents:
    """The contents of the blocks that can become references. heads: by the blocks' numbers."""
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


def references_by_content(
    contents: Contents, digests: Array, messages: pa.Table
) -> dict[int, list[dict[str, Any]]]:
    """The blocks that can be replaced by references, with these references.

    digests: of each content. messages: place, `digest` and `time`, in µs, of all rows between the
    first and the last place of a partition.
    """
    there = messages.sort_by([(name, "ascending") for name in PLACE])
    partition, alone = _places(there)
    # For each row: whether the next row follows it in its partition.
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
    """The row of each content: if possible the one after the previous content's, else the first
    with its digest. known: the digests of the rows. first: the first row of each digest."""
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
    """Each row's partition, as a number, and whether no other row has its place."""
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
    """Each block with its rows; consecutive ones are one run."""
    for block, contents in groupby(zip(blocks, rows, strict=True), itemgetter(0)):
        runs: list[_Run] = []
        before = MISSING
        for _, row in contents:
            goes_on = row == before == EMPTY or (0 <= before == row - 1 and follows[before])
            if runs and goes_on:
                runs[-1][1] += 1
            else:
                runs.append([row, 1])
            before = row
        yield block, runs


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


_BLOCKS = "page LIKE 'b/%' AND value IS NOT NULL"
_CONTENT = """concat(coalesce(payload, X''), coalesce(key, X''),
    coalesce(cast(headers AS binary), X''))"""
_DIGEST = f"cast(conv(left(sha2({{}}, 256), {DIGEST_CHARS}), 16, 10) AS LONG)"
# This binds the value once. If the inner function named it, Spark would copy it for each piece.
_OF_PIECES = f"""transform(array(value), v -> transform(arrays_zip(offsets, sizes),
    at -> {_DIGEST.format("substring(v, at.offsets + 1, at.sizes)")}))[0]"""
_START_BYTES = 8  # a block's page begins with the length of its head


Named = dict[int, list[dict[str, Any]]]  # the references of each block

# The columnar reader loads the payloads of 4,096 rows at once. With 1 MB each, Java crashed.
_BY_COLUMNS = "spark.sql.parquet.enableVectorizedReader"


class BlockReferences:
    """Finds the references for the snapshots in one set of tables."""

    def __init__(self, spark: SparkSession, tables: Folder | str) -> None:
        self._spark, self._tables = spark, str(tables)
        # a separate session, so that its settings affect no other code
        self._by_rows = spark.newSession()
        self._by_rows.conf.set(_BY_COLUMNS, "false")

    def __call__(self, broker: str, rows: DataFrame, steps: tuple[int, int]) -> DataFrame:
        """Add `refs` to the rows of a snapshot, and remove the values of blocks that have some.
        steps: of the previous snapshot, and of this one."""
        inline = rows.withColumn("refs", f.expr(f"CAST(NULL AS {REFS})"))
        if not all(has_table(folder(self._tables) / name) for name in (MESSAGES, JOURNAL)):
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
        rows_named = [{"page": f"b/{block}", "refs": refs} for block, refs in found.items()]
        named = self._spark.createDataFrame(pa.Table.from_pylist(rows_named, schema))
        joined = rows.join(f.broadcast(named), "page", "left")
        value = f.when(f.col("refs").isNull(), f.col("value"))
        return joined.select("page", value.alias("value"), "crc", "refs")

    def _named(
        self, broker: str, blocks: DataFrame, starts: dict[int, tuple[int, bytes]],
        steps: tuple[int, int],
    ) -> Named:  # fmt: skip
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
        """The first and last place, in each partition, of the messages that these steps stored."""
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

    def _read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("delta").load(f"{self._tables}/{name}")
