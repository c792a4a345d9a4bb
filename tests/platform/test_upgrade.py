"""Upgrades to the next version, and back: what is carried over, and what is refused with a sentence
and changes nothing. The next version is this one with a larger number (`docs/how-to/upgrade.md`).
The step log's version: `tests/replica/test_driver.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lakequeue
import msgspec
import pytest
from lakequeue.client.session.queue_directory import QueueDirectory, known_brokers
from lakequeue.earlier.pages import FORMAT as EARLIER_FORMAT
from lakequeue.protocol import LakequeueError, steplog, table_format, topics
from lakequeue.protocol.home_places import ABOUT
from lakequeue.protocol.table_format import SCHEMA, SCHEMA_VERSION, refusal_of
from lakequeue.state import FORMAT
from lakequeue.streaming.home import home_folder as home_module
from lakequeue.streaming.home.home_folder import HomeFolder

CONFIG = {"queues": [{"name": "orders", "message_type": "text"}]}
INBOX = {"topic": "default.deliveries", "partition": 0, "request": "r-1"}


@pytest.fixture
def home(tmp_path: Path, live: Any) -> Path:
    """A home in which an engine of this version ran and stopped."""
    return live(tmp_path / "home", checkpoint="broker-0").path


def about(home: Path, **facts: object) -> Any:
    """The home's record, after some facts were written to it."""
    found = json.loads((home / ABOUT).read_text()) | facts
    (home / ABOUT).write_text(json.dumps(found))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_refusal_by_the_next_version_leaves_the_home_unchanged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(home)
    with monkeypatch.context() as next_version:
        next_version.setattr(home_module, "EARLIER_FORMAT", FORMAT + 1)
        next_version.setattr(home_module, "FORMAT", FORMAT + 2)
        said = f"with state format {FORMAT}; this version reads {FORMAT + 1} and "
        with pytest.raises(LakequeueError, match=said):
            HomeFolder(home).open("real-time")
    assert contents(home) == before
    HomeFolder(home).open("real-time")  # rolled back: it continues


def test_a_home_of_the_next_format_is_refused(home: Path) -> None:
    about(home, format=FORMAT + 1)
    before = contents(home)
    said = f"with state format {FORMAT + 1}; this version reads {EARLIER_FORMAT} and {FORMAT}"
    with pytest.raises(LakequeueError, match=said):
        HomeFolder(home).open("real-time")
    assert contents(home) == before


def test_a_step_of_the_next_format_is_refused() -> None:
    record = steplog.StepRecord(steplog.FORMAT, 1, 1_000, 0, 0, 0, "v1")
    assert steplog.decode(steplog.encode(record)) == record
    later = msgspec.structs.replace(record, format=steplog.FORMAT + 1)
    with pytest.raises(ValueError, match=f"has format {steplog.FORMAT + 1}; allowed is"):
        steplog.decode(steplog.encode(later))


def test_tables_are_upgraded_and_never_downgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next version reads this one's and adds columns; this one then leaves them alone."""
    now, later = {SCHEMA: str(SCHEMA_VERSION)}, {SCHEMA: str(SCHEMA_VERSION + 1)}
    assert refusal_of("journal", {SCHEMA: "3"}) == refusal_of("journal", now) == ""
    assert "schema version '1'" in refusal_of("journal", {})
    said = refusal_of("journal", later)
    assert f"schema version '{SCHEMA_VERSION + 1}'" in said
    assert "use the version that wrote it" in said
    monkeypatch.setattr(table_format, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    assert refusal_of("journal", now) == refusal_of("journal", later) == ""


def test_a_newer_clients_requests_are_refused_and_the_engine_continues() -> None:
    """A command, or a field of a command, that this version does not know."""
    with lakequeue.connect("memory://", config=CONFIG) as connection:
        commands = topics.topic("default", topics.COMMANDS)
        known = {"command": "describe", "queue": "orders"}
        for asked in ({"command": "teleport"}, {**known, "shade": "blue"}):
            value = json.dumps({**asked, "reply": INBOX}).encode()
            connection.engine.command(commands, b"newer", value, 0)
        connection.producer().send("orders", b"x")
        assert connection.admin().describe("orders")["depth"] == 1


def test_unknown_fields_of_a_newer_engine_are_ignored() -> None:
    broker = {"number": 0, "state": "running", "epoch": 1, "colour": "blue"}
    records = {b"broker/a": json.dumps(broker).encode(), b"colour/a": b"{}"}
    (one,) = known_brokers(Mock(newest=lambda topic: records), "default")
    assert (one["name"], one["state"]) == ("a", "running")
    where = QueueDirectory(0)
    record = {"hosts": {"b": 1}, "type": "LocalQueue", "state": "there", "colour": "blue"}
    assert where.take(b"queue/orders", json.dumps(record).encode()) == "orders"
    assert where.broker_of("orders") == 1


@pytest.mark.parametrize(
    "facts", [{"brokers": {"a": 0}}, {"removed": {"b": {"number": 1, "read": []}}}]
)
def test_a_home_changes_its_format_with_its_first_batch(home: Path, facts: dict[str, Any]) -> None:
    """Until then a rollback is possible; after it an earlier version refuses the home."""
    about(home, format=EARLIER_FORMAT, **facts)
    folder = HomeFolder(home)
    folder.open("real-time")
    assert about(home)["format"] == EARLIER_FORMAT
    folder.remember_checkpoints()
    assert about(home)["format"] == FORMAT
    HomeFolder(home).open("real-time")


def test_a_home_of_the_earlier_core_with_several_brokers_is_refused(home: Path) -> None:
    """The refusal has the remedy and changes nothing, so a rollback is possible."""
    about(home, format=EARLIER_FORMAT, brokers={"a": 0, "b": 1})
    before = contents(home)
    with pytest.raises(LakequeueError, match=r"has 2 brokers.*`lakequeue brokers --remove NAME`"):
        HomeFolder(home).open("real-time")
    assert contents(home) == before
