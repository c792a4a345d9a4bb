"""`lakequeue tables`, on tables that an engine in memory has filled (R1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lake.on_files import RecordedBench
from lakequeue.cli import main
from lakequeue.streaming.tables.table_repair import TablesLock


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """One message."""
    bench = RecordedBench()
    bench.define()
    bench.send({"n": 1})
    return bench.recorded.write(tmp_path)


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["tables", *arguments, "--home", str(home)])


def test_R1_whole_tables(home: Path) -> None:
    done = run(home)
    assert done.exit_code == 0
    assert "table 'messages': whole, version " in done.stdout
    assert "table 'journal': whole" in done.stdout
    assert run(home, "--repair").stdout.endswith("Nothing to repair.\n")
    said = json.loads(run(home, "--json").stdout)
    assert {t["table"]: t["problem"] for t in said["tables"]} == {"messages": None, "journal": None}


def test_R1_a_damaged_table_is_named_and_mended(home: Path) -> None:
    (lost,) = (home / "tables" / "messages").rglob("*.parquet")
    lost.unlink()
    done = run(home)
    assert done.exit_code == 1
    assert f"{lost.name} is missing" in done.stdout
    assert f"lakequeue tables --repair --home {home}" in done.stdout
    said = run(home, "--json")
    assert said.exit_code == 1, "for programs too"
    assert f"{lost.name} is missing" in json.loads(said.stdout)["tables"][0]["problem"]
    done = run(home, "--repair")
    assert done.exit_code == 0
    assert "the table goes on without 1 of its files (1 rows)" in done.stderr
    assert done.stdout.endswith("Start the engine.\n")
    assert run(home).exit_code == 0


@pytest.mark.parametrize("arguments", [(), ("--repair",)])
def test_R1_a_home_without_tables(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path / "home", *arguments)
    assert done.exit_code == 3
    assert f"is {tmp_path / 'home'} the home of an engine?" in done.stderr


def test_R1_tables_whose_engine_runs_are_not_mended(home: Path) -> None:
    """The error names this home, and what to do."""
    lock = TablesLock(home / "tables")
    lock.take()
    done = run(home, "--repair")
    assert done.exit_code == 1
    assert f"The engine of home {home} is running (process " in done.stderr
    assert "stop it, run this command again" in done.stderr
    lock.release()
    assert run(home, "--repair").exit_code == 0


def test_what_changes_tables_is_not_asked_from_the_environment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lost,) = (home / "tables" / "messages").rglob("*.parquet")
    lost.unlink()
    monkeypatch.setenv("LAKEQUEUE_TABLES_REPAIR", "1")
    monkeypatch.setenv("LAKEQUEUE_HOME", str(home))
    done = CliRunner().invoke(main, ["tables"], auto_envvar_prefix="LAKEQUEUE")
    assert done.exit_code == 1
    assert f"{lost.name} is missing" in done.stdout
