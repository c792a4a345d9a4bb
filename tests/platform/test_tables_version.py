"""Tables of a later version are refused by what their log says, without Spark (R1)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from lakequeue.protocol import LakequeueError
from lakequeue.protocol.folders import folder
from lakequeue.protocol.table_format import SCHEMA, SCHEMA_VERSION
from lakequeue.streaming.tables_version import properties_of, refuse_later_tables

ROWS = pa.table({"n": [1]})


def written(table: Path, version: int) -> None:
    """A new commit, with this version; of a table that is made with the first."""
    if not table.exists() or not any(table.iterdir()):
        write_deltalake(table, ROWS)
    log = table / "_delta_log"
    first = (log / f"{0:020}.json").read_text().splitlines()
    (about,) = [json.loads(line) for line in first if "metaData" in line]
    about["metaData"]["configuration"] = {SCHEMA: str(version)}
    commits = len(list(log.glob("*.json")))
    (log / f"{commits:020}.json").write_text(json.dumps(about) + "\n")


def test_a_later_table_is_refused(tmp_path: Path) -> None:
    refuse_later_tables(tmp_path)  # none is there
    written(tmp_path / "messages", SCHEMA_VERSION)
    refuse_later_tables(tmp_path)
    written(tmp_path / "journal", SCHEMA_VERSION + 1)
    with pytest.raises(LakequeueError, match=rf"journal has version '{SCHEMA_VERSION + 1}'"):
        refuse_later_tables(tmp_path)


def test_the_newest_word_counts_wherever_it_stands(tmp_path: Path) -> None:
    """In the first commit, in a later one, in a checkpoint, behind a checkpoint."""
    written(tmp_path, 1)
    write_deltalake(tmp_path, ROWS, mode="append")
    assert properties_of(tmp_path)[SCHEMA] == "1"
    written(tmp_path, 2)
    write_deltalake(tmp_path, ROWS, mode="append")
    assert properties_of(tmp_path)[SCHEMA] == "2"
    first = (tmp_path / "_delta_log" / f"{0:020}.json").read_text()
    DeltaTable(tmp_path).create_checkpoint()
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        commit.unlink()  # Delta forgets them after a while
    assert properties_of(tmp_path)[SCHEMA] == "2"
    later = first.replace('"configuration":{}', f'"configuration":{{"{SCHEMA}":"3"}}')
    assert later != first
    (tmp_path / "_delta_log" / f"{5:020}.json").write_text(later)
    assert properties_of(tmp_path)[SCHEMA] == "3"


def test_what_is_no_table_says_nothing(tmp_path: Path) -> None:
    assert properties_of(tmp_path / "none") == {}
    (tmp_path / "half" / "_delta_log").mkdir(parents=True)
    assert properties_of(tmp_path / "half") == {}
    log = tmp_path / "old" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(json.dumps({"metaData": {"configuration": {}}}) + "\n")
    assert properties_of(folder(tmp_path / "old")) == {}
