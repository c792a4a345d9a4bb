"""Delta tables that lack something: what is said of them, and how they go on (R1)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakequeue.protocol.errors import LakequeueError
from lakequeue.sinks.table_damage import damage, look_at_tables, mend
from lakequeue.streaming.tables.table_repair import TablesLock, repair

VERSIONS = 6


def offsets(table: Path) -> list[int]:
    """What Delta's own library reads."""
    return sorted(deltalake.DeltaTable(table).to_pyarrow_table()["offset"].to_pylist())


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A table of six versions, each with a file of one row; as Delta writes it."""
    for n in range(VERSIONS):
        rows = pa.table({"offset": [n], "date": ["2026-11-26"]})
        deltalake.write_deltalake(tmp_path / "messages", rows, mode="append", partition_by=["date"])
    return tmp_path


def log(tables: Path) -> Path:
    return tables / "messages" / "_delta_log"


def commit(tables: Path, version: int) -> Path:
    return log(tables) / f"{version:020}.json"


def data_of(tables: Path, version: int) -> Path:
    lines = commit(tables, version).read_text().splitlines()
    added = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    return tables / "messages" / str(added[0])


def look(tables: Path) -> Any:
    (found,) = look_at_tables(tables)
    return found


def mended(tables: Path, *wanted: int) -> str:
    """What is said when it is mended; wanted: the rows that are left. It is whole then."""
    (said,) = mend(tables)
    assert offsets(tables / "messages") == [*wanted]
    assert damage(tables) == ""
    return said


def cut_off(file: Path, left: int = 10) -> Path:
    file.write_bytes(file.read_bytes()[:left])
    return file


@pytest.fixture
def checkpoint(tables: Path) -> Path:
    """Delta's own, of all versions."""
    deltalake.DeltaTable(tables / "messages").create_checkpoint()
    (file,) = log(tables).glob("*.checkpoint.parquet")
    return file


def test_R1_a_whole_table_is_left_alone(tables: Path) -> None:
    assert damage(tables) == ""
    assert look(tables).version == VERSIONS - 1
    before = sorted(tables.rglob("*"))
    assert list(mend(tables)) == []
    assert sorted(tables.rglob("*")) == before


def test_R1_a_table_without_its_log_is_set_aside(tables: Path) -> None:
    shutil.rmtree(log(tables))
    rows = {file.name for file in tables.rglob("*.parquet")}
    assert damage(tables).startswith("table 'messages': _delta_log is missing: stop the engine")
    (said,) = mend(tables)
    assert "the table was set aside in" in said
    assert {file.name for file in (tables / ".aside").rglob("*.parquet")} == rows
    assert look_at_tables(tables) == []


def test_R1_a_log_that_was_just_begun_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "messages" / "_delta_log").mkdir(parents=True)
    assert damage(tmp_path) == ""


def test_R1_a_file_that_somebody_took_is_named_and_taken_out_of_the_table(tables: Path) -> None:
    data_of(tables, 2).unlink()
    file = cut_off(data_of(tables, 4))
    assert "table 'messages': date=2026-11-26/" in damage(tables)
    assert damage(tables).endswith("run `lakequeue tables --repair`")
    assert "goes on without 2 of its files (2 rows)" in mended(tables, 0, 1, 3, 5)
    assert [*(tables / ".aside").rglob(file.name)], "what was left of it is kept"


@pytest.mark.parametrize("left", [0, 300])
def test_R1_a_commit_that_was_cut_is_put_aside(tables: Path, left: int) -> None:
    file = cut_off(commit(tables, VERSIONS - 1), left)
    assert f"{file.name} is " in damage(tables)
    said = mended(tables, *range(VERSIONS - 1))
    assert re.search(rf"back at version {VERSIONS - 2}; later ones, set aside in \S+: 1\b", said)
    assert [*(tables / ".aside").rglob(file.name)]


def test_R1_what_came_behind_a_lost_commit_is_put_aside_too(tables: Path) -> None:
    commit(tables, 3).unlink()
    mended(tables, 0, 1, 2)


def test_R1_a_checkpoint_of_delta_is_read_and_may_be_lost(tables: Path, checkpoint: Path) -> None:
    assert look(tables).is_whole
    for version in range(VERSIONS - 1):
        commit(tables, version).unlink()  # as Delta cleans its log
    assert len(look(tables).files) == VERSIONS
    data_of(tables, VERSIONS - 1).unlink()
    mended(tables, *range(VERSIONS - 1))
    cut_off(checkpoint, 100)
    assert checkpoint.name in damage(tables)
    (said,) = mend(tables)
    assert "the table was set aside" in said
    assert not (tables / "messages").exists()


def test_R1_a_damaged_checkpoint_with_all_commits_costs_nothing(
    tables: Path, checkpoint: Path
) -> None:
    cut_off(checkpoint, 0)
    assert checkpoint.name in damage(tables)
    mended(tables, *range(VERSIONS))


def test_R1_a_log_of_a_newer_kind_is_not_judged(tables: Path) -> None:
    (log(tables) / f"{9:020}.checkpoint.0f3e-uuid.parquet").write_bytes(b"?")
    commit(tables, 0).unlink()
    assert damage(tables) == ""


def test_R1_files_that_were_removed_are_no_part_of_the_table(tables: Path) -> None:
    deltalake.DeltaTable(tables / "messages").optimize.compact()
    data_of(tables, 0).unlink()
    assert damage(tables) == ""
    assert pq.read_table(tables / "messages" / next(iter(look(tables).files))).num_rows == VERSIONS


def test_R1_a_repair_takes_the_queries_checkpoints_too(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "home" / "tables").mkdir(parents=True)
    home = tmp_path / "home"
    (tables / "messages").rename(home / "tables" / "messages")
    kept = home / "tables-checkpoint" / "commits"
    kept.mkdir(parents=True)
    assert repair(home) == []
    assert kept.exists(), "nothing was to be mended"
    data_of(home / "tables", 1).unlink()
    engine = TablesLock(home / "tables")
    engine.take()
    with pytest.raises(LakequeueError, match=r"is running .*: stop it"):
        repair(home)
    engine.release()
    assert len(repair(home)) == 1
    assert not kept.exists()
