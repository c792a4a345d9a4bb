"""The Parquet files of a batch of `messages` and `journal`, written where Python has the rows (R1).

Spark writes Parquet row by row and column by column in Java code: 200,000 messages with their
events took 9 s of CPU. Here Arrow writes whole columns. What a batch adds to the tables is then
committed by Delta itself (`file_commit`): until then nobody sees the files, and those that are
never committed, upkeep removes as what is no part of a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..protocol.table_format import DATE, JOURNAL, MESSAGES
from .delta_tables import DAY_S, DAYS_BACK, SKIPPING

GROUP_BYTES = 32_000_000  # of a file's rows in memory; what readers may have to hold at once
DAY_US = DAY_S * 1_000_000
_EPOCH = date(1970, 1, 1)
# Times that everybody can write down: from year 1 to year 9999.
_TIMES = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
# Few values, many times. Of the others a hash of each would shorten nothing.
_REPEATED = {
    MESSAGES: ["topic", "partition", "item", "time", "lq", "headers", "topic_id"],
    JOURNAL: [
        "broker", "part", "vpn", "queue", "event", "subscription", "reason", "deliveries", "topic",
        "partition", "item", "time", "until", "step",
    ],
}  # fmt: skip
_PAGE_ROWS = 64  # after so many is looked how long a page is: payloads may be large


class TableFiles:
    """Of one batch. tables: the folder that holds them; partitioned: those that are by day."""

    def __init__(self, tables: Path, partitioned: frozenset[str], now_s: float) -> None:
        self._tables, self._partitioned = tables, partitioned
        self._today = int(now_s // DAY_S)
        self._files: dict[tuple[str, int], _OneFile] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Rows for a table, with all its columns but `date`."""
        if not len(rows):
            return
        last = self._today + 1  # also of who says no time
        times = rows["time"].cast(pa.int64()).fill_null(last * DAY_US).to_numpy()
        days = np.clip(times // DAY_US, self._today - DAYS_BACK, last)
        different = np.unique(days).tolist()
        for day in different:
            theirs = rows.filter(pa.array(days == day)) if len(different) > 1 else rows
            self._file(table, day).add(theirs)

    def close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """End all files; of each its table and what Delta is to say of it."""
        for (table, _), file in self._files.items():
            yield table, file.close()

    def discard(self) -> None:
        """Take them away again."""
        for file in self._files.values():
            file.discard()

    def _file(self, table: str, day: int) -> _OneFile:
        if (table, day) not in self._files:
            said = _EPOCH + timedelta(days=day)
            made = _OneFile(self._tables / table, table, said, table in self._partitioned)
            self._files[table, day] = made
        return self._files[table, day]


class _OneFile:
    """A file of one table and day. by_day: the table is partitioned."""

    def __init__(self, place: Path, table: str, day: date, by_day: bool) -> None:
        folder = f"{DATE}={day}/" if by_day else ""
        self._name = f"{folder}part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        self._path = place / self._name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._table, self._day, self._by_day = table, day, by_day
        self._figures = _Figures(SKIPPING[table].split(","))
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._bytes = [], 0
        self._figures.add(rows)
        if not self._by_day:
            days = pa.repeat(pa.scalar(self._day, pa.date32()), len(rows))
            rows = rows.append_column(DATE, days)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, rows.schema, compression="snappy", store_schema=False,
                use_dictionary=_REPEATED[self._table],
                write_statistics=SKIPPING[self._table].split(","),
                write_batch_size=_PAGE_ROWS if self._table == MESSAGES else None,
            )  # fmt: skip
        self._writer.write_table(rows, row_group_size=len(rows))
        self._to_disk()

    def _to_disk(self) -> None:
        """What is written so far, and out of memory: Kafka's logs need that, nobody reads this
        soon, and memory that is used again costs less than new (decision 0027). So what Delta
        commits has been on the disk before."""
        file = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    def close(self) -> dict[str, Any]:
        """End the file; what Delta is to say of it: an `add` action's fields, sizes in bytes."""
        self._write()
        assert self._writer is not None
        self._writer.close()
        self._to_disk()
        return {
            "path": self._name,
            "partitionValues": {DATE: str(self._day)} if self._by_day else {},
            "size": self._path.stat().st_size,
            "modificationTime": round(time.time() * 1000),
            "dataChange": True,
            "stats": self._figures.text(),
        }

    def discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class _Figures:
    """What Delta knows of a file without reading it, as its protocol says."""

    def __init__(self, columns: list[str]) -> None:
        self._rows = 0
        self._nulls = dict.fromkeys(columns, 0)
        self._ends: dict[str, tuple[Any, Any]] = {}
        self._times: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        self._rows += len(rows)
        for name in self._nulls:
            column = rows[name]
            self._nulls[name] += column.null_count
            if pa.types.is_timestamp(column.type):
                self._times.add(name)
                column = column.cast(pa.int64())
            found = pc.min_max(column).as_py()
            if found["min"] is not None:
                least, most = self._ends.get(name, (found["min"], found["max"]))
                self._ends[name] = min(least, found["min"]), max(most, found["max"])

    def text(self) -> str:
        ends = {n: (_times(e) if n in self._times else e) for n, e in self._ends.items()}
        known = {name: both for name, both in ends.items() if both is not None}
        return json.dumps({
            "numRecords": self._rows,
            "minValues": {name: least for name, (least, _) in known.items()},
            "maxValues": {name: most for name, (_, most) in known.items()},
            "nullCount": self._nulls,
        })  # fmt: skip


def _times(ends: tuple[int, int]) -> tuple[str, str] | None:
    """Two times, in µs, as Delta has them there: to the ms. None: one cannot be written down."""
    least, most = ends[0] // 1000, -(-ends[1] // 1000)
    if least * 1000 not in _TIMES or most * 1000 not in _TIMES:
        return None
    return f"{np.datetime64(least, 'ms')}Z", f"{np.datetime64(most, 'ms')}Z"
