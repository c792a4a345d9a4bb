"""Reading a Delta table without Spark: its log, then its Parquet files.

A Delta table is the Parquet files that its log names: actions `add` and `remove`, one JSON file per
version, folded from time to time into a checkpoint in Parquet. The demo compares its accounts with
the tables this way, in a second and without a session. Deletion vectors and checkpoints of
version 2 are refused plainly: lakequeue writes neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..protocol.errors import LakequeueError

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the table, with the values of its partition columns."""

    path: Path
    partition: tuple[tuple[str, str | None], ...]


def data_files(table: Path) -> list[DataFile]:
    """The files of the table's newest version; none when there is no table yet."""
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    names = sorted(path.name for path in log.iterdir())
    start, checkpoint = _newest_checkpoint(names)
    live: dict[str, DataFile] = {}
    for action in _actions(log, names, start, checkpoint):
        if (removed := action.get("remove")) is not None:
            live.pop(removed["path"], None)
        if (added := action.get("add")) is not None:
            live[added["path"]] = _data_file(table, added)
    return list(live.values())


def read_table(table: Path, columns: list[str]) -> pa.Table:
    """Those columns of every row; an empty table when there is none yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: list[pa.Table] = []
    for file in data_files(table):
        partition = dict(file.partition)
        stored = [name for name in columns if name not in partition]
        part = pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us").read(columns=stored)
        for name in columns:
            if name in partition:
                part = part.append_column(name, pa.array([partition[name]] * len(part)))
        parts.append(part.select(columns))
    if not parts:
        return pa.table({name: pa.array([]) for name in columns})
    return pa.concat_tables(parts, promote_options="permissive")


def _newest_checkpoint(names: list[str]) -> tuple[int, list[str]]:
    """(version, file names) of the newest complete checkpoint; (-1, []) when there is none."""
    parts: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if found := _CHECKPOINT.fullmatch(name):
            version, total = int(found[1]), int(found[3] or 1)
            parts.setdefault((version, total), []).append(name)
    complete = [(v, files) for (v, total), files in parts.items() if len(files) == total]
    return max(complete, default=(-1, []))


def _actions(
    log: Path, names: list[str], start: int, checkpoint: list[str]
) -> Iterator[dict[str, Any]]:
    """The actions of the checkpoint, then those of each later version, in order."""
    import pyarrow.parquet as pq

    for name in checkpoint:
        file = pq.ParquetFile(log / name)
        if "sidecar" in file.schema_arrow.names:
            raise LakequeueError(f"{log / name}: a checkpoint of version 2 cannot be read here.")
        yield from _plain(file.read(columns=["add"]).to_pylist())
    version = start
    for name in names:
        found = _COMMIT.fullmatch(name)
        if found is None or int(found[1]) <= start:
            continue
        version += 1
        if int(found[1]) != version:
            raise LakequeueError(f"{log}: version {version} is missing from the log.")
        with (log / name).open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())


def _plain(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A checkpoint's rows as actions: a map column comes as pairs."""
    for row in rows:
        if (added := row["add"]) is not None:
            yield {"add": {**added, "partitionValues": dict(added.get("partitionValues") or ())}}


def _data_file(table: Path, added: dict[str, Any]) -> DataFile:
    if added.get("deletionVector"):
        raise LakequeueError(f"{table}: deletion vectors cannot be read here.")
    partition = tuple(sorted((added.get("partitionValues") or {}).items()))
    return DataFile(table / unquote(added["path"]), partition)
