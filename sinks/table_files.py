"""The Parquet files of one batch, written with Arrow where Python has the rows (R1).

Spark writes Parquet row by row in Java; Arrow writes whole columns (decision 0019). A file is
invisible until Delta has committed it (`table_writer`). Files that are never committed belong to no
version of the table, so upkeep removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
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

from ..protocol.folders import Folder, files_of
from ..protocol.table_format import COMMANDS, DATE, JOURNAL, MESSAGES, STEPS
from .delta_tables import DAY_OF, DAY_S, DAYS_BACK, SKIPPING
from .kafka_records import TIME_MS_BEGIN, TIME_MS_END

GROUP_BYTES = 32_000_000  # bytes of a row group, which writers and some readers load at once
TEXT_CHARS_MAX = 32  # in a minimum or maximum in Delta's log, as Spark writes them
_LAST_CHAR = chr(sys.maxunicode)  # sorts after all other characters
DAY_US = DAY_S * 1_000_000
_EPOCH = date(1970, 1, 1)
_TIMES = range(TIME_MS_BEGIN * 1_000, (TIME_MS_END + 1) * 1_000)  # in µs
# Columns with few distinct values. For others a dictionary would save nothing.
_REPEATED = {
    MESSAGES: ["topic", "partition", "item", "time", "lq", "headers", "topic_id"],
    JOURNAL: [
        "broker", "part", "vpn", "queue", "event", "subscription", "reason", "deliveries", "topic",
        "partition", "item", "time", "until", "step",
    ],
    COMMANDS: ["topic", "partition", "time", "command", "queue", "topic_id"],
    STEPS: ["broker", "code"],
}  # fmt: skip
_PAGE_ROWS = 64  # the page's size is checked after this many rows, since payloads may be large


class TableFiles:
    """The files of one batch, one for each table and day.

    tables: the folder of the tables.
    """

    def __init__(self, tables: Folder, now_s: float) -> None:
        self._tables = tables
        self._today = int(now_s // DAY_S)
        self._files: dict[tuple[str, int], _OneFile] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        """Add rows to a table. They have all columns except `date`."""
        if not len(rows):
            return
        last = self._today + 1  # also the day of a row without a time
        times = rows[DAY_OF[table]].cast(pa.int64()).fill_null(last * DAY_US).to_numpy()
        days = np.clip(times // DAY_US, self._today - DAYS_BACK, last)
        different = np.unique(days).tolist()
        for day in different:
            of_day = rows.filter(pa.array(days == day)) if len(different) > 1 else rows
            self._file(table, day).add(of_day)

    def close(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Complete all files. Yields each one's table and the fields of Delta's `add` action."""
        for (table, _), file in self._files.items():
            yield table, file.close()

    def discard(self) -> None:
        """Remove all files."""
        for file in self._files.values():
            file.discard()

    def _file(self, table: str, day: int) -> _OneFile:
        if (table, day) not in self._files:
            date_of = _EPOCH + timedelta(days=day)
            self._files[table, day] = _OneFile(self._tables / table, table, date_of)
        return self._files[table, day]


class _OneFile:
    def __init__(self, place: Folder, table: str, day: date) -> None:
        self._name = f"{DATE}={day}/part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        self._local = place / self._name if isinstance(place, Path) else None
        if self._local is not None:
            self._local.parent.mkdir(parents=True, exist_ok=True)
        self._system = files_of(place)
        self._table, self._day = table, day
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
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._name, rows.schema, filesystem=self._system, compression="snappy",
                store_schema=False, use_dictionary=_REPEATED[self._table],
                write_statistics=SKIPPING[self._table].split(","),
                write_batch_size=_PAGE_ROWS if self._table == MESSAGES else None,
            )  # fmt: skip
        self._writer.write_table(rows, row_group_size=len(rows))
        self._sync()

    def _sync(self) -> None:
        """Flush the file to the disk, so that it is there before Delta commits it, and drop it from
        the page cache: Kafka's logs need that memory, and no one reads this file soon (decision
        0027). An object store does not need this."""
        if self._local is None:
            return
        file = os.open(self._local, os.O_RDONLY)
        try:
            os.fsync(file)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)

    def close(self) -> dict[str, Any]:
        """Complete the file. Returns the fields of Delta's `add` action; sizes are in bytes."""
        self._write()
        assert self._writer is not None
        self._writer.close()
        self._sync()
        return {
            "path": self._name,
            "partitionValues": {DATE: str(self._day)},
            "size": self._system.get_file_info(self._name).size,
            "modificationTime": round(time.time() * 1000),
            "dataChange": True,
            "stats": self._figures.text(),
        }

    def discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            self._system.delete_file(self._name)


class _Figures:
    """The statistics of a file in Delta's log: rows, and of each column minimum, maximum, nulls."""

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
        ends = {n: (_times(e) if n in self._times else _short(e)) for n, e in self._ends.items()}
        known = {name: both for name, both in ends.items() if both is not None}
        return json.dumps({
            "numRecords": self._rows,
            "minValues": {name: least for name, (least, _) in known.items()},
            "maxValues": {name: most for name, (_, most) in known.items()},
            "nullCount": self._nulls,
        })  # fmt: skip


def _short(ends: tuple[Any, Any]) -> tuple[Any, Any]:
    """Shorten a minimum and a maximum, to texts that sort before and after them. Both must be
    present: some readers treat a column that lacks one as empty."""
    least, most = ends
    if isinstance(least, str):
        least = least[:TEXT_CHARS_MAX]
    if isinstance(most, str) and len(most) > TEXT_CHARS_MAX:
        most = max(most[:TEXT_CHARS_MAX] + _LAST_CHAR, most)
    return least, most


def _times(ends: tuple[int, int]) -> tuple[str, str] | None:
    """Two times, in µs, as Delta's log writes them, in ms; None if one is out of range."""
    least, most = ends[0] // 1000, -(-ends[1] // 1000)
    if least * 1000 not in _TIMES or most * 1000 not in _TIMES:
        return None
    return f"{np.datetime64(least, 'ms')}Z", f"{np.datetime64(most, 'ms')}Z"
