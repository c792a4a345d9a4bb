"""What a home folder must be before anything starts; no Kafka and no Spark are needed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lakequeue.protocol.errors import LakequeueError
from lakequeue.state import Configuration
from lakequeue.state.broker import FORMAT
from lakequeue.streaming import Engine

NOBODY = "127.0.0.1:1"


def start(home: Path, **settings: str) -> str:
    """What the start says; it never comes further than to Kafka."""
    with pytest.raises(LakequeueError) as error:
        Engine(NOBODY, home, Configuration(), settings=settings).start()
    return str(error.value)


def commit(home: Path, table: str, version: int) -> None:
    log = home / "tables" / table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("{}")


def test_the_version_is_written_whole(tmp_path: Path) -> None:
    assert NOBODY in start(tmp_path)
    assert json.loads((tmp_path / "lakequeue.json").read_text()) == {"format": FORMAT}
    assert [p.name for p in tmp_path.glob("*.draft")] == []


@pytest.mark.parametrize("table", ["messages", "journal"])
def test_R1_tables_without_their_checkpoint_are_refused(tmp_path: Path, table: str) -> None:
    """Delta would take new batches for old ones and drop them without a word."""
    commit(tmp_path, table, 0)
    commit(tmp_path, table, 1)
    said = start(tmp_path)
    assert str(tmp_path / "tables-checkpoint") in said
    assert "move" in said
    assert NOBODY in start(tmp_path, **{"lakequeue.tables_interval_s": "0"})


def test_R1_tables_that_were_only_made_may_start(tmp_path: Path) -> None:
    commit(tmp_path, "messages", 0)
    commit(tmp_path, "journal", 0)
    assert NOBODY in start(tmp_path)


def test_R1_tables_with_their_checkpoint_may_start(tmp_path: Path) -> None:
    commit(tmp_path, "messages", 7)
    offsets = tmp_path / "tables-checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1")
    assert NOBODY in start(tmp_path)
