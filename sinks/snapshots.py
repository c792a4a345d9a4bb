"""The Delta table `snapshots`: a broker's state after a step, page by page (R1).

Spark has already committed that state, so its `statestore` source can read it from the checkpoint
while the query runs. A *chain* of snapshots begins with a whole one. Each later one has the pages
that changed since the previous one, from the state's changelog. To rebuild a state, use each page's
newest row in the chain up to the step. A row with neither value nor `crc` means that the page was
removed. Payload blocks never change: for a block of an earlier chain a whole snapshot has only the
`crc`, and the value is in the newest earlier row.

A change of brokers at rest creates a state that is not the result of a step (M4). It is written
before the next snapshot, from the file from which the broker starts, so that later steps can be
replayed.

The row without a page name closes a snapshot. Its value is the loop's own snapshot, and its `crc`
the sum over all pages. Readers check the sum, so they never accept a damaged chain as a state.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ..protocol.errors import first_line
from ..protocol.folders import Folder
from ..protocol.state_files import Position, position_of, read_state, step_of
from ..protocol.table_format import CRC_MODULUS, REFS, SNAPSHOTS
from .block_references import BlockReferences
from .delta_tables import append
from .spark_state import read_variable

log = logging.getLogger("lakequeue.tables")

BLOCK = "b/"  # prefix of the names of payload pages
CHAIN_MAX = 100  # snapshots in a chain; then a whole one follows, so that old ones can be deleted
NO_BATCH = -1  # the snapshot was not written by a batch of Spark
STATE_BYTES = 64_000_000  # pages in memory at once
PAGES = "page STRING, value BINARY, crc LONG"


@dataclass(slots=True)
class _Last:
    """The newest snapshot of a broker. crcs: of each page; length: of its chain so far."""

    batch: int
    step: int
    crcs: dict[str, int]
    length: int


class SnapshotWriter:
    """Writes a snapshot of each broker when it is due. checkpoints: of the brokers' queries.
    interval_s: between two snapshots of a broker. states: the files from which brokers start. anew:
    whether each broker's first snapshot ignores those in the table, which may be incomplete."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder | str,
        checkpoints: Mapping[str, Folder],
        interval_s: float,
        states: Mapping[str, Path],
        anew: bool = False,
    ) -> None:
        self._spark, self._folder = spark, str(folder)
        self._checkpoints = dict(checkpoints)
        self._refer = BlockReferences(spark, folder)
        self._interval_s, self._states = interval_s, dict(states)
        self._due, self._anew = -1e9, anew
        self._last: dict[str, _Last | None] = {}

    def __call__(self) -> None:
        """Write the snapshots that are due."""
        self.write_states()
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._interval_s
        for broker in sorted(self._checkpoints):
            self._write(broker)

    def _write(self, broker: str) -> None:
        batch = _committed(self._checkpoints[broker])
        if batch is None:
            return
        if broker not in self._last and not self._anew:
            self._last[broker] = self._last_snapshot(broker)
        last = self._last.get(broker)
        if last is not None and last.batch == batch:
            return
        own = self._own(broker, batch)
        if own is None:
            return
        at = position_of(own)
        if last is not None and at.step <= last.step:
            return
        if last is None and self._anew and at.step <= self._newest(broker):
            return  # one step has one snapshot
        goes_on = last is not None and last.batch < batch and last.length < CHAIN_MAX
        pages = self._changed(broker, last.batch + 1, batch) if last and goes_on else None
        whole = pages is None
        if pages is None:
            pages = self._whole(broker, batch)
        before = last or _Last(NO_BATCH, 0, {}, 0)
        self._append(broker, batch, at, own, pages, before, whole)

    def write_states(self) -> None:
        """Write the states from files if the table does not have them. A missing file belonged to
        an earlier change of brokers and was written then."""
        while self._states:
            broker, file = self._states.popitem()
            if file.exists():
                self._write_state(broker, file)

    def _write_state(self, broker: str, file: Path) -> None:
        """Write a state, unless the table has later snapshots: then another query wrote this one,
        or upkeep has deleted it and all before it."""
        step = step_of(file)
        before, newest = self._newest(broker, step), self._newest(broker)
        if before == step or before < 0 <= newest:
            return
        last = self._last_snapshot(broker)
        known = last.crcs if last is not None and last.step == before else {}
        state = read_state(file)
        _, own = next(state)
        at = position_of(own)
        crcs: dict[str, int] = {}
        for pages in slices(state, STATE_BYTES):
            rows = [(page, v, zlib.crc32(page.encode() + v)) for page, v in pages]
            found = self._spark.createDataFrame(rows, PAGES)
            short = self._refer(broker, _without_blocks(found, known), (max(before, 0), at.step))
            self._append_rows(short, broker, NO_BATCH, at, whole=True)
            crcs |= {page: crc for page, _, crc in rows}
        self._append_rows(self._closing(own, crcs), broker, NO_BATCH, at, whole=True)
        if newest < step:  # Spark has no changelog since then, so the next snapshot is whole
            self._last[broker] = _Last(NO_BATCH, at.step, crcs, CHAIN_MAX)

    def _append(
        self, broker: str, batch: int, at: Position, own: bytes, pages: DataFrame, before: _Last,
        whole: bool,
    ) -> None:  # fmt: skip
        """pages: persisted, until they are written."""
        try:
            crcs = {} if whole else dict(before.crcs)
            for row in pages.select("page", "crc").collect():
                if row.crc is None:
                    crcs.pop(row.page, None)
                else:
                    crcs[row.page] = row.crc
            short = _without_blocks(pages, before.crcs) if whole else pages
            rows = self._refer(broker, short, (before.step, at.step))
            self._append_rows(rows.unionByName(self._closing(own, crcs)), broker, batch, at, whole)
        finally:
            pages.unpersist()
        self._last[broker] = _Last(batch, at.step, crcs, 1 if whole else before.length + 1)

    def _closing(self, own: bytes, crcs: dict[str, int]) -> DataFrame:
        row = "", own, sum(crcs.values()) % CRC_MODULUS
        closing = self._spark.createDataFrame([row], PAGES)
        return closing.withColumn("refs", f.expr(f"CAST(NULL AS {REFS})"))

    def _append_rows(
        self, rows: DataFrame, broker: str, batch: int, at: Position, whole: bool
    ) -> None:
        append(self._folder, SNAPSHOTS, rows.select(
            f.lit(broker).alias("broker"), f.lit(at.step).cast("long").alias("step"),
            f.timestamp_millis(f.lit(at.now)).alias("now"),
            f.lit(batch).cast("long").alias("batch"), f.lit(whole).alias("whole"), "page", "value",
            "crc", "refs",
        ))  # fmt: skip

    # ------------------------------------------------------------ the state

    def _state(self, broker: str, variable: str, **options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        found = read_variable(self._spark, self._checkpoints[broker], variable, given)
        return found.where(f.col("key.broker") == broker)

    def _own(self, broker: str, batch: int) -> bytes | None:
        """The loop's own snapshot in the state after a batch."""
        rows = self._state(broker, "snapshot", batchId=batch).select("value.*").collect()
        return bytes(rows[0][0]) if rows else None

    def _whole(self, broker: str, batch: int) -> DataFrame:
        found = self._state(broker, "pages", batchId=batch)
        return _pages(found.select("user_map_key.key", "user_map_value.page")).persist()

    def _changed(self, broker: str, first: int, last: int) -> DataFrame | None:
        """The pages that changed in these batches; None if Spark no longer has their changelog."""
        try:
            changes = self._state(
                broker, "pages", readChangeFeed="true", changeStartBatchId=first,
                changeEndBatchId=last,
            )  # fmt: skip
            # A page may change twice in a batch, so use the order of the changelog.
            value = f.when(f.col("change_type") != "delete", f.col("user_map_value.page"))
            named = changes.select(
                "user_map_key.key", f.struct(value.alias("page")).alias("new"),
                f.monotonically_increasing_id().alias("n"),
            )  # fmt: skip
            newest = named.groupBy("key").agg(f.max_by("new", "n").alias("new"))
            pages = _pages(newest.select("key", "new.page"))
            pages.persist().count()
            return pages
        except Exception as error:  # Spark raises many kinds; the whole state is still available
            log.warning(
                "%s: Spark no longer has the changes of batches %d to %d (%s), so the whole "
                "state is written", broker, first, last, first_line(error),
            )  # fmt: skip
            return None

    # ------------------------------------------------------------ the table

    def _newest(self, broker: str, up_to: int | None = None) -> int:
        """The step of the newest snapshot in the table, up to a step; -1: there is none."""
        table = self._spark.read.format("delta").load(f"{self._folder}/{SNAPSHOTS}")
        closed = table.where((f.col("broker") == broker) & (f.col("page") == ""))
        if up_to is not None:
            closed = closed.where(f.col("step") <= up_to)
        rows = closed.agg(f.max("step").alias("step")).collect()
        return -1 if rows[0].step is None else int(rows[0].step)

    def _last_snapshot(self, broker: str) -> _Last | None:
        """The newest snapshot in the table, if it belongs to this checkpoint."""
        table = self._spark.read.format("delta").load(f"{self._folder}/{SNAPSHOTS}")
        mine = table.where(f.col("broker") == broker)
        closed = mine.where("page = ''").select("step", "batch", "whole")
        rows = closed.orderBy("step").collect()
        if not rows:
            return None
        newest = rows[-1]
        first = max((i for i, row in enumerate(rows) if row.whole), default=0)
        try:
            own = self._own(broker, newest.batch)
        except Exception as error:  # it no longer has that batch, or has no such checkpoint
            log.info(
                "%s: Spark no longer has batch %d of the newest snapshot (%s), so the whole "
                "state is written", broker, newest.batch, first_line(error),
            )  # fmt: skip
            return None
        if own is None or position_of(own).step != newest.step:
            return None
        chain = mine.where((f.col("step") >= rows[first].step) & (f.col("page") != ""))
        pages = chain.groupBy("page").agg(f.max_by(f.struct("crc"), "step").alias("at"))
        crcs = {row.page: row.crc for row in pages.select("page", "at.crc").collect()}
        known = {page: crc for page, crc in crcs.items() if crc is not None}
        return _Last(newest.batch, newest.step, known, len(rows) - first)


def slices(pages: Iterator[tuple[str, bytes]], most: int) -> Iterator[list[tuple[str, bytes]]]:
    """Yield pages in parts of about ``most`` bytes."""
    part: list[tuple[str, bytes]] = []
    size = 0
    for page, value in pages:
        part.append((page, value))
        size += len(value)
        if size >= most:
            yield part
            part, size = [], 0
    if part:
        yield part


def _pages(found: DataFrame) -> DataFrame:
    """Pages as rows of the table. The crc is zlib's, which is available in every language."""
    named = f.concat(f.col("key").cast("binary"), f.col("page"))
    return found.select(
        f.col("key").alias("page"), f.col("page").alias("value"), f.crc32(named).alias("crc")
    )


def _without_blocks(pages: DataFrame, known: dict[str, int]) -> DataFrame:
    """Remove the values of blocks that an earlier snapshot has; their crcs stay."""
    stored = [(page, crc) for page, crc in known.items() if page.startswith(BLOCK)]
    if not stored:
        return pages
    there = pages.sparkSession.createDataFrame(stored, "page STRING, known LONG")
    joined = pages.join(there, "page", "left")
    value = f.when(f.col("known").isNull() | (f.col("known") != f.col("crc")), f.col("value"))
    return joined.select("page", value.alias("value"), "crc")


def _committed(checkpoint: Folder) -> int | None:
    numbers: list[Any] = [int(p.name) for p in checkpoint.glob("commits/*") if p.name.isdigit()]
    return max(numbers, default=None)
