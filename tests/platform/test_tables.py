"""Delta's tables: damaged ones are reported and repaired (R1); brokers continue while queries of
tables fail; the progress of tables, for `durability: delta`; and their upkeep."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import deltalake
import lakequeue
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client.threaded import wait_for
from lakequeue.protocol import ConfigError, NotConnected
from lakequeue.protocol.errors import LakequeueError
from lakequeue.sinks.delta_tables import in_sql
from lakequeue.sinks.metrics import Metrics
from lakequeue.sinks.queue_figures import Look
from lakequeue.sinks.table_damage import damage, look_at_tables, mend
from lakequeue.sinks.table_writer import _FilesTable
from lakequeue.sinks.upkeep import Rules
from lakequeue.streaming.broker_query import BrokerQuery
from lakequeue.streaming.engine_settings import EngineSettings, engine_conf
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.spark.queries import HISTORY_QUERY, TABLES_QUERY
from lakequeue.streaming.tables import tables_watch
from lakequeue.streaming.tables.table_care import (
    MARGIN_S,
    MARK,
    TableCare,
    disk_use,
    rules_of,
    upkeep_s,
)
from lakequeue.streaming.tables.table_repair import TablesLock, repair
from lakequeue.streaming.tables.tables_watch import PAUSE_S_MAX, TablesMarks, TablesWatch

VERSIONS = 6


def test_a_path_is_neither_a_pattern_nor_the_end_of_a_name() -> None:
    """To Spark, which reads brackets as a pattern, and a backquote as the end of a table's name."""
    assert in_sql("/a`b/messages") == "delta.`/a``b/messages`"
    table = Mock(_place="/homes/{a}[b]*?\\")
    _FilesTable.insert(table, [{"path": "date=2026-11-26/x.parquet"}])
    (read,) = table._spark.read.option.return_value.parquet.call_args.args
    assert read == r"/homes/\{a\}\[b\]\*\?\\/date=2026-11-26/x.parquet"


def offsets(table: Path) -> list[int]:
    """The rows that Delta's own library reads."""
    return sorted(deltalake.DeltaTable(table).to_pyarrow_table()["offset"].to_pylist())


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A table of six versions, each with a file of one row, as Delta writes it."""
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
    """The report of a repair; wanted: the remaining rows. The table is whole then."""
    (said,) = mend(tables)
    assert offsets(tables / "messages") == [*wanted]
    assert damage(tables) == ""
    return said


def cut_off(file: Path, left: int = 10) -> Path:
    file.write_bytes(file.read_bytes()[:left])
    return file


@pytest.fixture
def checkpoint(tables: Path) -> Path:
    """Delta's own checkpoint, of all versions."""
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


def test_R1_a_new_log_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "messages" / "_delta_log").mkdir(parents=True)
    assert damage(tmp_path) == ""


def test_R1_a_missing_file_is_named_and_removed_from_the_table(tables: Path) -> None:
    data_of(tables, 2).unlink()
    file = cut_off(data_of(tables, 4))
    assert "table 'messages': date=2026-11-26/" in damage(tables)
    assert damage(tables).endswith("run `lakequeue tables --repair`")
    assert "continues without 2 of its files (2 rows)" in mended(tables, 0, 1, 3, 5)
    assert [*(tables / ".aside").rglob(file.name)], "its remains are kept"


@pytest.mark.parametrize("left", [0, 300])
def test_R1_a_truncated_commit_is_set_aside(tables: Path, left: int) -> None:
    file = cut_off(commit(tables, VERSIONS - 1), left)
    assert f"{file.name} is " in damage(tables)
    said = mended(tables, *range(VERSIONS - 1))
    assert re.search(rf"back at version {VERSIONS - 2}; 1 later ones are set aside in \S+", said)
    assert [*(tables / ".aside").rglob(file.name)]


def test_R1_commits_after_a_lost_one_are_set_aside_too(tables: Path) -> None:
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


def test_R1_a_log_of_a_newer_kind_is_not_checked(tables: Path) -> None:
    (log(tables) / f"{9:020}.checkpoint.0f3e-uuid.parquet").write_bytes(b"?")
    commit(tables, 0).unlink()
    assert damage(tables) == ""


def test_R1_removed_files_are_no_part_of_the_table(tables: Path) -> None:
    deltalake.DeltaTable(tables / "messages").optimize.compact()
    data_of(tables, 0).unlink()
    assert damage(tables) == ""
    assert pq.read_table(tables / "messages" / next(iter(look(tables).files))).num_rows == VERSIONS


def test_R1_a_repair_removes_the_queries_checkpoints_too(tmp_path: Path, tables: Path) -> None:
    (tmp_path / "home" / "tables").mkdir(parents=True)
    home = tmp_path / "home"
    (tables / "messages").rename(home / "tables" / "messages")
    kept = home / "tables-checkpoint" / "commits"
    kept.mkdir(parents=True)
    assert repair(home) == []
    assert kept.exists(), "nothing was to be repaired"
    data_of(home / "tables", 1).unlink()
    engine = TablesLock(home / "tables")
    engine.take()
    with pytest.raises(LakequeueError, match=r"is running .*: stop it"):
        repair(home)
    engine.release()
    assert len(repair(home)) == 1
    assert not kept.exists()


BROKEN = RuntimeError("the table cannot be made")


class World:
    """An application with a disk for tables that may be full, and a clock."""

    tables_interval_s = 5
    history_interval_s = 0
    java_ended = Mock(return_value="")

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table_queries: dict[str, SimpleNamespace] = {}
        self.full, self.now = "", 1_000.0
        self.broken: Exception | None = None
        self.starts = 0
        self.told: list[str] = []
        self.metrics = Metrics()
        (tmp_path / "tables").mkdir(exist_ok=True)
        folder = HomeFolder(tmp_path)
        monkeypatch.setattr(folder, "unwritable", lambda where: self.full)
        monkeypatch.setattr(tables_watch.time, "monotonic", lambda: self.now)
        self.watch = TablesWatch(self, folder, self.metrics, self._tell, lambda: None)

    def _tell(self, value: bytes) -> None:
        self.told.append(msgspec.json.decode(value)["stopped"])

    def start_tables(self) -> None:
        self.starts += 1
        if self.broken:
            raise self.broken
        why = "No space left on device\nat some line of Java"
        query = SimpleNamespace(isActive=True, exception=lambda: why)
        self.table_queries[TABLES_QUERY] = query

    def end(self) -> None:
        self.table_queries[TABLES_QUERY].isActive = False

    def look(self, seconds: float) -> None:
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            self.watch.look()

    def stopped(self) -> float | None:
        labels = {"query": TABLES_QUERY}
        return self.metrics.registry.get_sample_value("lakequeue_tables_stopped", labels)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, monkeypatch)
    made.watch.begin()
    return made


def test_a_full_disk_is_reported_once_and_waited_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.full = "tables cannot be written (No space left on device)"
    world.end()
    world.look(600)
    assert world.starts == 1, "it is not started while there is no room"
    assert world.told == [world.full]
    assert world.stopped() == 1
    assert len([m for m in caplog.messages if "does not write the tables" in m]) == 1
    world.full = ""
    world.look(2)
    assert world.starts == 2
    assert len(world.told) == 1, "it has written nothing yet"
    world.watch.batch(TABLES_QUERY)
    assert world.told[-1] == ""
    assert world.stopped() == 0


def test_a_temporary_failure_raises_no_alarm(world: World) -> None:
    world.end()
    world.look(5)
    world.watch.batch(TABLES_QUERY)
    assert (world.starts, world.told) == (2, [])


def test_a_lasting_failure_is_retried_for_ever_after_longer_pauses(world: World) -> None:
    world.broken = BROKEN
    world.end()
    world.look(3_600)
    assert 3_600 / PAUSE_S_MAX - 5 < world.starts < 3_600 / PAUSE_S_MAX + 10
    assert world.told == ["the table cannot be made"]


def test_a_start_on_a_full_disk_continues_without_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.full, world.broken = "no room", BROKEN
    world.watch.begin()
    assert world.told == ["no room"]
    world.full, world.broken = "", None
    world.look(5)
    assert world.table_queries[TABLES_QUERY].isActive


def test_a_slow_start_of_tables_delays_no_broker(world: World) -> None:
    """For example a slow object store."""
    answers = threading.Event()
    world.watch._queries[TABLES_QUERY].start = lambda: (answers.wait(30), world.start_tables())[1]
    world.table_queries.clear()
    begun = time.perf_counter()
    for _ in range(3):
        world.watch.look()
    assert time.perf_counter() - begun < 5
    assert (world.starts, world.told) == (1, [])
    answers.set()
    wait_for(lambda: world.watch.look() or world.table_queries)
    assert (world.starts, world.told) == (2, [])


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), LakequeueError("a later version"), OSError()]
)
def test_unwritable_tables_do_not_end_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = World(tmp_path, monkeypatch)
    world.broken = error
    world.watch.begin()
    world.look(5)
    assert world.told == [str(error) or "OSError"]


def test_tables_are_restarted_at_once_after_spark(world: World) -> None:
    world.table_queries.clear()
    world.look(0.25)
    assert (world.starts, world.told) == (2, [])


def test_the_end_of_an_outage_of_tables_is_reported_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged table is repaired while no engine runs."""
    world = World(tmp_path, monkeypatch)
    world.broken = BROKEN
    world.watch.begin()
    world.look(60)
    assert world.told == ["the table cannot be made"]
    for said in (["", "once"], []):
        again = World(tmp_path, monkeypatch)
        again.watch.begin()
        assert again.told == [], "they have written nothing yet"
        again.watch.batch(TABLES_QUERY)
        again.watch.batch(TABLES_QUERY)
        assert again.told == said[:1]


class Hearing:
    """Brokers, and the progress that they got."""

    def __init__(self, *numbers: int) -> None:
        self.away = False
        self.heard: list[tuple[int, dict[str, Any]]] = []
        brokers = {f"b-{n}": BrokerQuery(f"b-{n}", n) for n in numbers}
        self.brokers = list(brokers.values())
        self.marks = TablesMarks(brokers, self._tell)

    def _tell(self, broker: BrokerQuery, value: bytes) -> None:
        if self.away:
            raise NotConnected("no Kafka broker answers")
        self.heard.append((broker.number, msgspec.json.decode(value)))

    def batch(self, ends: dict[str, dict[str, int]], name: str = TABLES_QUERY) -> Any:
        """The progress of a batch that ended there, by broker."""
        self.heard.clear()
        self.marks.batch({"name": name, "sources": [{"endOffset": ends}, {"endOffset": None}]})
        return {number: said["up_to"] for number, said in self.heard}


def test_progress_is_reported_once() -> None:
    hearing = Hearing(0)
    ends = {"default.publish": {"0": 7, "1": 0, "9": 2}, "a.journal": {"0": 99}, "x": {"0": 1}}
    told = {"default.publish/0": 7, "default.publish/9": 2}
    assert hearing.batch(ends) == {0: told}
    assert hearing.batch(ends) == {}, "nothing was published: nobody is woken"
    ends["default.publish"]["0"] = 8
    assert hearing.batch(ends) == {0: {"default.publish/0": 8}}
    assert hearing.batch(ends, HISTORY_QUERY) == {}


def test_each_broker_gets_the_progress_of_its_partitions() -> None:
    ends = {"default.publish": {"0": 1, "8": 2, "15": 3}}
    assert Hearing(0, 1).batch(ends) == {
        0: {"default.publish/0": 1}, 1: {"default.publish/8": 2, "default.publish/15": 3},
    }  # fmt: skip


def test_progress_that_was_not_received_is_reported_again() -> None:
    hearing, ends = Hearing(0), {"default.publish": {"0": 7}}
    hearing.away = True
    assert hearing.batch(ends) == {}
    hearing.away = False
    assert hearing.batch(ends) == {0: {"default.publish/0": 7}}
    hearing.marks.begin(hearing.brokers[0], True)  # it starts anew
    (_, said) = hearing.heard[-1]
    assert (said["command"], said["written"]) == ("tables", True)
    assert hearing.batch(ends) == {0: {"default.publish/0": 7}}


def care(tables: Path, metrics: Metrics | None = None, **look: Any) -> TableCare:
    found = Look(queues=[{"oldest_age_s": age} for age in look.get("ages", [])])
    none = lambda: None  # noqa: E731
    return TableCare(tables, tables, Rules(), 3_600.0, none, lambda: found, metrics or Metrics())


def test_no_rows_are_deleted_by_default() -> None:
    """`conf/engine.conf` lists the defaults, and so does the page."""
    for settings in (EngineSettings({}), EngineSettings(engine_conf())):
        assert rules_of(settings) == Rules(0.0, 48.0)
        assert upkeep_s(settings) == 86_400.0
    page = (Path(lakequeue.__file__).parent / "docs" / "how-to" / "keep.md").read_text()
    for name, value in engine_conf().items():
        assert f"| `{name}` | {value} |" in page


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention_days", "-1"), ("vacuum_hours", "0"), ("upkeep_hours", "nan"),
     ("retention_days", "long")],
)  # fmt: skip
def test_a_wrong_setting_of_the_upkeep_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"lakequeue\.{name}: '{value}' – must be a number"):
        EngineSettings({f"lakequeue.{name}": value})


def test_the_schedule_continues_over_restarts(tmp_path: Path) -> None:
    now = time.time()
    assert care(tmp_path)._due(now) == pytest.approx(now + 3_600), "a new home has nothing to tidy"
    os.utime(tmp_path / MARK, (now - 3_000, now - 3_000))
    assert care(tmp_path)._due(now) == pytest.approx(now + 600)


def test_the_oldest_queued_message_limits_the_retention(tmp_path: Path) -> None:
    assert care(tmp_path, ages=[None, 10.0, 500.0])._oldest(10_000.0) == 9_500.0 - MARGIN_S
    assert care(tmp_path, ages=[None])._oldest(10_000.0) is None


def test_a_failed_upkeep_is_repeated_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = care(tmp_path)
    assert not one.tidy(), "Spark does not run"
    one._session = lambda: SimpleNamespace()
    assert not one.tidy()
    assert "upkeep of the tables failed" in caplog.text


def test_sizes_are_metrics(tmp_path: Path) -> None:
    log = tmp_path / "journal" / "_delta_log"
    log.mkdir(parents=True)
    (log / "0.json").write_bytes(b"x" * 10)
    (tmp_path / "journal" / "part").write_bytes(b"y" * 32)
    metrics = Metrics()
    care(tmp_path, metrics).measure()
    assert disk_use(tmp_path / "journal") == (42, 2)
    assert metrics.registry.get_sample_value("lakequeue_table_bytes", {"table": "journal"}) == 42
    assert metrics.registry.get_sample_value("lakequeue_table_files", {"table": "journal"}) == 2
