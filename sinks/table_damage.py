"""Finds and repairs damage of a Delta table (R1).

    _delta_log/N.json              version N: files that are added and removed
    _delta_log/N.checkpoint.…      the sum of all versions up to N, so that earlier ones may go
    _delta_log/_last_checkpoint    where a reader begins

Someone may delete files that a table still needs, and a power loss or a full disk may truncate the
newest commit. Delta then refuses the whole table. So this module reads the log without Spark, by
the rules of Delta's protocol, and repairs the table with the smallest change:

    a version that cannot be read      it and all later ones are set aside
    missing data files                 a new version removes them
    no log, or none from its beginning the table is set aside and recreated

The parts that are set aside go to `.aside/`, beside the tables.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..protocol.errors import LakequeueError, first_line
from ..protocol.file_sums import DAMAGED, damage_of
from ..protocol.folders import Folder, files_below, move
from ..protocol.table_format import COLUMNS

LOG, LAST, ASIDE = "_delta_log", "_last_checkpoint", ".aside"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_VERSION = re.compile(r"(\d{20})\.")


@dataclass
class Table:
    """The contents of a table's log, as far as it can be read. version: the newest readable one, -1
    for none. broken: the first unreadable file of the log, and its damage. files: data files by
    path, with the action that added each. lost: missing or truncated data files, with the
    damage."""

    place: Folder
    version: int = -1
    broken: tuple[str, str] | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return self.broken is None and not self.lost

    def sentence(self) -> str:
        """The damage in a sentence; empty if there is none."""
        if self.broken is not None:
            return f"table {self.place.name!r}: {self.broken[0]} {self.broken[1]}"
        if not self.lost:
            return ""
        path, why = next(iter(self.lost.items()))
        more = f", and so are {len(self.lost) - 1:,} more files" if len(self.lost) > 1 else ""
        return f"table {self.place.name!r}: {path} {why}{more}"


def look_at_tables(tables: Folder) -> list[Table]:
    """Read all existing tables, even if only data files are left. Raises OSError if the folder
    cannot be read."""
    return [_look(tables / name) for name in COLUMNS if any((tables / name).glob("*"))]


def damage(tables: Folder) -> str:
    """The damage of the tables, with the remedy; empty if there is none."""
    found = [table.sentence() for table in look_at_tables(tables) if not table.is_whole]
    if not found:
        return ""
    return f"{'; '.join(found)}: stop the engine and run `lakequeue tables --repair`"


# ---------------------------------------------------------------- reading


def _look(place: Folder) -> Table:
    table = Table(place)
    there = files_below(place)
    prefix = f"{LOG}/"
    names = [n.removeprefix(prefix) for n in there if n.startswith(prefix)]
    if there and not names:
        table.broken = LOG, "is missing"
        return table
    commits = {int(m[1]): n for n in names if (m := _COMMIT.fullmatch(n))}
    if any(".checkpoint." in n and not _is_known(n) for n in names):
        return table  # a newer kind of checkpoint, which this code cannot read
    begin = _from_checkpoint(table, names)
    table.version = begin = -1 if begin is None else begin
    for version in range(begin + 1, max(commits, default=begin) + 1):
        name = f"{prefix}{version:020}.json"
        if why := _read_commit(table, place, name, version in commits):
            table.broken = table.broken or (name, why)
            break
        table.version = version
    _find_lost(table, there)
    return table


def _is_known(name: str) -> bool:
    return name.startswith(".") or _CHECKPOINT.fullmatch(name) is not None


def _from_checkpoint(table: Table, names: list[str]) -> int | None:
    """Read the newest checkpoint. Returns its version, None if none can be read."""
    parts: dict[int, list[str]] = {}
    whole: dict[int, int] = {}
    for name in names:
        if found := _CHECKPOINT.fullmatch(name):
            parts.setdefault(int(found[1]), []).append(name)
            whole[int(found[1])] = int(found[3] or 1)
    for version in sorted(parts, reverse=True):
        files: dict[str, dict[str, Any]] = {}
        why = "" if len(parts[version]) >= whole[version] else "lacks a part"
        for name in parts[version]:
            file = table.place / LOG / name
            why = why or (damage_of(file) if isinstance(file, Path) else "")
            if not why:
                try:
                    rows = pq.read_table(pa.BufferReader(file.read_bytes()), columns=["add"])
                    added = [row for row in rows["add"].to_pylist() if row is not None]
                    files |= {unquote(row["path"]): _json_action(row) for row in added}
                except (pa.ArrowException, KeyError) as error:
                    why = f"cannot be read ({first_line(error)})"
        if not why:
            table.files = files
            return version
        table.broken = table.broken or (f"{LOG}/{parts[version][0]}", why)
    return None


def _json_action(row: dict[str, Any]) -> dict[str, Any]:
    """Convert an `add` action from a checkpoint; Arrow returns its maps as pairs."""
    values = row.get("partitionValues") or []
    return {**row, "partitionValues": dict(values)}


def _read_commit(table: Table, place: Folder, name: str, is_there: bool) -> str:
    """Read a version. Returns the reason if it cannot be read, else an empty text."""
    file = place / name
    if not is_there:
        return "is missing"
    if isinstance(file, Path) and (why := damage_of(file)):
        return why
    try:
        actions = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        if not actions or not all(isinstance(action, dict) for action in actions):
            raise ValueError("no actions")
        for action in actions:
            if removed := action.get("remove"):
                table.files.pop(unquote(removed["path"]), None)
        for action in actions:
            if added := action.get("add"):
                table.files[unquote(added["path"])] = added
    except (ValueError, KeyError, TypeError):
        return DAMAGED
    return ""


def _find_lost(table: Table, there: dict[str, int]) -> None:
    for path, added in table.files.items():
        if "://" in path or path.startswith("/"):
            continue  # a clone refers to files of another table
        if path not in there:
            table.lost[path] = "is missing"
        elif there[path] != added["size"]:
            table.lost[path] = f"is cut: {there[path]:,} bytes of {added['size']:,}"


# ---------------------------------------------------------------- mending


def mend(tables: Folder) -> Iterator[str]:
    """Repair all tables. Yields one sentence per damaged table. The caller must be their only
    user."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for table in look_at_tables(tables):
        if table.is_whole:
            continue
        aside = tables / ASIDE / f"{table.place.name}-{stamp}"
        sentence = table.sentence()
        if table.version < 0:
            move(table.place, aside)
            yield f"{sentence}: the table was set aside in {aside}; the engine creates a new one"
            continue
        done = []
        if table.broken is not None:
            done.append(_put_versions_aside(table, aside))
        if table.lost:
            done.append(_commit_removal(table, aside))
        yield f"{sentence}: {' and '.join(done)}"


def _put_versions_aside(table: Table, aside: Folder) -> str:
    """Move all versions after the last readable one, and unreadable checkpoints, aside."""
    moved = 0
    files: list[Folder] = [*(table.place / LOG).glob("*")]
    for file in files:
        found = _VERSION.match(file.name.lstrip("."))
        is_later = found is not None and int(found[1]) > table.version
        is_broken = table.broken is not None and file.name == table.broken[0].partition("/")[2]
        if file.name in (LAST, f".{LAST}.crc") or is_broken or is_later:
            move(file, aside / LOG / file.name)  # without LAST, readers list the log
            moved += bool(_COMMIT.fullmatch(file.name))
    return f"it is back at version {table.version:,}; {moved:,} later ones are set aside in {aside}"


def _commit_removal(table: Table, aside: Folder) -> str:
    """Write a new version of the table without the lost files."""
    now = round(time.time() * 1000)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "FSCK", "engineInfo": "lakequeue"}}
    ]
    rows = 0
    for path, why in table.lost.items():
        added = table.files[path]
        rows += _rows_of(added)
        gone = {
            "path": added["path"], "deletionTimestamp": now, "dataChange": True,
            "extendedFileMetadata": True, "partitionValues": added.get("partitionValues") or {},
            "size": added["size"],
        }  # fmt: skip
        if added.get("deletionVector"):
            gone["deletionVector"] = added["deletionVector"]
        actions.append({"remove": gone})
        if why != "is missing":
            move(table.place / path, aside / path)
    file = table.place / LOG / f"{table.version + 1:020}.json"
    if file.exists():
        raise LakequeueError(f"{file} was written meanwhile: is an engine running on this home?")
    file.write_bytes(b"".join(json.dumps(action).encode() + b"\n" for action in actions))
    return f"the table continues without {len(table.lost):,} of its files ({rows:,} rows)"


def _rows_of(added: dict[str, Any]) -> int:
    try:
        return int(json.loads(added.get("stats") or "{}").get("numRecords", 0))
    except (ValueError, AttributeError):
        return 0
