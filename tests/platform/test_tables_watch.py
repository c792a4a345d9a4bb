"""Queries of the tables fail, and the brokers go on; what is told of it, and when."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from client.threaded import wait_for
from lakequeue.protocol.errors import LakequeueError
from lakequeue.sinks.metrics import Metrics
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.spark.queries import TABLES_QUERY
from lakequeue.streaming.tables import tables_watch
from lakequeue.streaming.tables.tables_watch import PAUSE_S_MAX, TablesWatch

BROKEN = RuntimeError("the table cannot be made")


class World:
    """An application whose tables have a disk that may be full, and a clock."""

    tables_interval_s = Mock(return_value=5)
    history_interval_s = Mock(return_value=0)
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


def test_a_full_disk_is_told_once_and_waited_for(
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


def test_what_passes_alarms_nobody(world: World) -> None:
    world.end()
    world.look(5)
    world.watch.batch(TABLES_QUERY)
    assert (world.starts, world.told) == (2, [])


def test_what_does_not_pass_is_tried_for_ever_after_longer_pauses(world: World) -> None:
    world.broken = BROKEN
    world.end()
    world.look(3_600)
    assert 3_600 / PAUSE_S_MAX - 5 < world.starts < 3_600 / PAUSE_S_MAX + 10
    assert world.told == ["the table cannot be made"]


def test_a_start_on_a_full_disk_goes_on_without_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch)
    world.full, world.broken = "no room", BROKEN
    world.watch.begin()
    assert world.told == ["no room"]
    world.full, world.broken = "", None
    world.look(5)
    assert world.table_queries[TABLES_QUERY].isActive


def test_a_start_that_takes_its_time_holds_nobody_up(world: World) -> None:
    """An object store that is slow."""
    answers = threading.Event()
    world.watch._wanted[TABLES_QUERY] = lambda: (answers.wait(30), world.start_tables())[1]
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
def test_tables_that_cannot_be_written_do_not_end_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = World(tmp_path, monkeypatch)
    world.broken = error
    world.watch.begin()
    world.look(5)
    assert world.told == [str(error) or "OSError"]


def test_after_spark_was_started_again_they_are_started_at_once(world: World) -> None:
    world.table_queries.clear()
    world.look(0.25)
    assert (world.starts, world.told) == (2, [])


def test_who_was_told_that_they_stopped_is_told_that_they_go_on_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged table is mended while no engine runs."""
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
