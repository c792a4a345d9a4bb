"""The Delta log, read without Spark: adds, removes, checkpoints, partitions."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakequeue import LakequeueError
from lakequeue.cli.delta_reader import data_files, read_table


def write(table: Path, name: str, rows: dict) -> dict:
    path = table / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path)
    return {"add": {"path": name, "partitionValues": {}, "size": 1, "dataChange": True}}


def commit(table: Path, version: int, *actions: dict) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020d}.json").write_text(text)


def checkpoint(table: Path, version: int, adds: list[dict], part: tuple[int, int] | None) -> None:
    kind = pa.struct(
        [("path", pa.string()), ("partitionValues", pa.map_(pa.string(), pa.string()))]
    )
    values = [
        {"path": a["path"], "partitionValues": list(a["partitionValues"].items())} for a in adds
    ]
    rows = pa.table({"add": pa.array([None, *values], kind)})
    middle = f".{part[0]:010d}.{part[1]:010d}" if part else ""
    pq.write_table(rows, table / "_delta_log" / f"{version:020d}.checkpoint{middle}.parquet")


def test_no_table_is_empty(tmp_path: Path) -> None:
    assert data_files(tmp_path / "none") == []
    assert read_table(tmp_path / "none", ["a", "b"]).num_rows == 0


def test_adds_and_removes(tmp_path: Path) -> None:
    one = write(tmp_path, "a.parquet", {"n": [1, 2]})
    two = write(tmp_path, "b.parquet", {"n": [3]})
    commit(tmp_path, 0, {"metaData": {}}, one)
    commit(tmp_path, 1, two)
    assert sorted(read_table(tmp_path, ["n"])["n"].to_pylist()) == [1, 2, 3]
    commit(tmp_path, 2, {"remove": {"path": "a.parquet"}})
    assert read_table(tmp_path, ["n"])["n"].to_pylist() == [3]


@pytest.mark.parametrize("parts", [1, 2])
def test_a_checkpoint_stands_for_what_was_before(tmp_path: Path, parts: int) -> None:
    adds = [write(tmp_path, f"{n}.parquet", {"n": [n]})["add"] for n in range(3)]
    for version, add in enumerate(adds):
        commit(tmp_path, version, {"add": add})
    if parts == 1:
        checkpoint(tmp_path, 1, adds[:2], None)
    else:
        checkpoint(tmp_path, 1, adds[:1], (1, 2))
        checkpoint(tmp_path, 1, adds[1:2], (2, 2))
    for version in (0, 1):  # what the log cleaner deletes
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    assert sorted(read_table(tmp_path, ["n"])["n"].to_pylist()) == [0, 1, 2]


def test_an_incomplete_checkpoint_is_passed_over(tmp_path: Path) -> None:
    one = write(tmp_path, "a.parquet", {"n": [1]})
    commit(tmp_path, 0, one)
    checkpoint(tmp_path, 0, [], (1, 2))
    assert read_table(tmp_path, ["n"])["n"].to_pylist() == [1]


def test_a_missing_version_is_said(tmp_path: Path) -> None:
    one = write(tmp_path, "a.parquet", {"n": [1]})
    commit(tmp_path, 0, one)
    commit(tmp_path, 2, one)
    with pytest.raises(LakequeueError, match="version 1 is missing"):
        data_files(tmp_path)


def test_partition_columns_and_quoted_paths(tmp_path: Path) -> None:
    added = write(tmp_path, "day=a b/x.parquet", {"n": [1, 2]})["add"]
    added |= {"path": "day=a%20b/x.parquet", "partitionValues": {"day": "a b"}}
    commit(tmp_path, 0, {"add": added})
    assert read_table(tmp_path, ["day", "n"]).to_pylist() == [
        {"day": "a b", "n": 1},
        {"day": "a b", "n": 2},
    ]


def test_deletion_vectors_are_refused(tmp_path: Path) -> None:
    added = write(tmp_path, "a.parquet", {"n": [1]})
    added["add"]["deletionVector"] = {"storageType": "u"}
    commit(tmp_path, 0, added)
    with pytest.raises(LakequeueError, match="deletion vectors"):
        data_files(tmp_path)
