"""A power loss and a clean-up: what an engine finds damaged at its start, it goes on with (R1)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import UpProcess, until
from lakequeue.cli.delta_reader import read_table
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of
from lakequeue.sinks.table_damage import damage
from lakequeue.streaming.table_repair import repair

pytestmark = pytest.mark.job

CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"
SETTINGS = ("batch_s=3", "history_interval_s=3", "snapshots_interval_s=4")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    given = [word for one in SETTINGS for word in ("--set", f"lakequeue.{one}")]
    process = UpProcess(tmp_path / "home", config, *given)
    yield process.wait_ready()
    process.kill()


def send(up: UpProcess, *payloads: str) -> None:
    with lakequeue.connect(f"kafka://{up.bootstrap}") as connection:
        for payload in payloads:
            connection.producer().send("orders", payload)


def payloads(up: UpProcess) -> list[bytes]:
    rows = read_table(up.home / "tables" / "messages", ["topic", "payload"]).to_pylist()
    return sorted(row["payload"] for row in rows if row["topic"] == "default.publish")


def events(up: UpProcess) -> list[dict[str, Any]]:
    with lakequeue.connect(f"kafka://{up.bootstrap}") as connection:
        return [e for e in connection.admin().events() if e["event"] == "tables_stopped"]


def snapshots(up: UpProcess) -> int:
    """How many there are; the table comes with the first."""
    with contextlib.suppress(NoLake), open_lake(up.home) as lake:
        found = lake.execute("SELECT count(*) FROM snapshots WHERE page = ''").fetchone()
        return int(found[0]) if found else 0
    return 0


def newest(folder: Path, suffix: str = "") -> Path:
    named = {int(f.stem): f for f in folder.glob(f"*{suffix}") if f.stem.isdecimal()}
    return named[max(named)]


def test_R1_a_start_on_damage(up: UpProcess) -> None:
    send(up, "1", "2")
    until(lambda: payloads(up) == [b"1", b"2"] and snapshots(up), 60, "the tables are there")
    time.sleep(4.0)  # some batches
    assert up.terminate() == 0
    place = up.home / "checkpoint" / "broker-0"
    newest(place / "commits").write_bytes(b"")
    changes = newest(place / "state" / "0" / "0", ".changelog")
    changes.write_bytes(changes.read_bytes()[:50])
    (up.home / "tables-checkpoint" / "metadata").write_bytes(b"")
    commit = newest(up.home / "tables" / "journal" / "_delta_log", ".json")
    commit.write_bytes(commit.read_bytes()[:300])
    lost = next((up.home / "tables" / "messages").rglob("*.parquet"))
    lost.unlink()

    up.start().wait_ready()
    assert "commits/" in up.errors()
    assert "goes back to its newest whole batch" in up.errors()
    send(up, "3")
    why = until(lambda: events(up), 60, "it is told")[0]["why"]
    assert lost.name in why
    assert "run `lakequeue tables --repair`" in why
    assert up.terminate() == 0

    assert len(repair(up.home)) == 2
    assert damage(up.home / "tables") == ""
    before = snapshots(up)
    up.start().wait_ready()
    until(lambda: b"3" in payloads(up), 60, "what was missed is written")
    until(lambda: snapshots(up) > before, 60, "a snapshot")
    send(up, "4")
    until(lambda: b"4" in payloads(up), 60, "it goes on")
    time.sleep(5.0)
    with open_lake(up.home) as lake:
        now = as_of(lake, up.home, "broker-0")
        assert now.notes == []
    with lakequeue.connect(f"kafka://{up.bootstrap}") as connection:
        with connection.consumer("orders", max_backlog=10) as consumer:
            got = [until(lambda: consumer.receive(1.0), 30, "a message") for _ in range(4)]
        assert [m.payload for m in got] == [b"1", b"2", b"3", b"4"], "each once, in their order"
    assert up.terminate() == 0
