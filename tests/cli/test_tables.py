"""`sql`, `trace`, `at`, `rebuild` and `tables` on a home's tables, beyond `transcripts/tables.txt`.

R1, R3: payloads and times that text cannot hold, a past made by a walk, and a running engine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lake.history import write_history
from lake.on_files import RecordedBench
from lake.test_past import lived
from lakequeue.cli import main
from lakequeue.lake import open_lake
from lakequeue.streaming.tables.table_repair import TablesLock
from memory_shell import run
from rules.harness import drain


@pytest.fixture
def bench() -> RecordedBench:
    """Two messages; a payload that is no text."""
    bench = RecordedBench()
    bench.define(max_per_subscription_backlog=99)
    bench.send({"n": 1})
    bench.send(b"\xff\x00")
    return bench


def test_a_binary_payload_is_base64_in_json(bench: RecordedBench, tmp_path: Path) -> None:
    home = str(bench.recorded.write(tmp_path))
    done = run("sql", 'SELECT payload FROM messages ORDER BY "offset"', "--json", "--home", home)
    found = [json.loads(line)["payload"] for line in done.stdout.splitlines()]
    assert found == ['{"n": 1}', {"payload": "/wA=", "encoding": "base64"}]


ODD_MS = [0, -1, 253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1]


@pytest.fixture
def zones() -> Iterator[pytest.MonkeyPatch]:
    """Change this machine's time zone, and restore it."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    time.tzset()


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_L12_extreme_times_break_no_table_export_or_trace(
    tmp_path: Path, zones: pytest.MonkeyPatch, zone: str
) -> None:
    """Times of other programs' records, and of a delivery that never happens; in any zone, in
    pandas too."""
    bench = RecordedBench()
    bench.define(message_type="text", underlying_topic="plain", max_per_subscription_backlog=99)
    for ms in ODD_MS:
        bench.connection.publish_raw("plain", b"x", timestamp=ms)
    bench.producer.send("orders", "never", deliver_at="9999-12-31T23:59:59.999999Z")
    for message in drain(bench.consumer())[::2]:
        message.ack()
    home = bench.recorded.write(tmp_path)
    zones.setenv("TZ", zone)
    time.tzset()
    count = len(ODD_MS) + 1
    with open_lake(home) as lake:
        for view in ("messages", "lifecycle"):
            rows = lake.execute(f"FROM {view}").fetchall()
            assert len(lake.execute(f"FROM {view}").df()) == len(rows) > 0
    for export in ([], ["--json"], ["--csv"]):
        done = run("sql", "FROM messages", *export, "--home", str(home))
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) == count + (export != ["--json"])
    for number in (2, 3, count):
        assert run("trace", str(number), "--home", str(home)).exit_code == 0
    entered = "SELECT time FROM journal WHERE message_id = '3' AND event = 'spooled'"
    _, same = run("sql", entered, "--home", str(home)).stdout.splitlines()
    assert same.endswith("Z")
    assert f"{same}  entered" in run("trace", "3", "--home", str(home)).stdout
    found = bench.admin.replay("orders", home=home, since="epoch", dry_run=True)
    assert found.count == len(range(0, len(ODD_MS), 2))


# ---------------------------------------------------------------- tables


def test_R1_tables_of_a_running_engine_are_not_repaired(
    bench: RecordedBench, tmp_path: Path
) -> None:
    """The error names this home and the remedy."""
    home = bench.recorded.write(tmp_path)
    lock = TablesLock(home / "tables")
    lock.take()
    done = run("tables", "--repair", "--home", str(home))
    assert done.exit_code == 1
    assert f"The engine of home {home} is running (process " in done.stderr
    assert "stop it, run this command again" in done.stderr
    lock.release()
    assert run("tables", "--repair", "--home", str(home)).exit_code == 0


def test_no_environment_variable_makes_the_tables_command_repair(
    bench: RecordedBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = bench.recorded.write(tmp_path)
    (lost,) = (home / "tables" / "messages").rglob("*.parquet")
    lost.unlink()
    monkeypatch.setenv("LAKEQUEUE_TABLES_REPAIR", "1")
    monkeypatch.setenv("LAKEQUEUE_HOME", str(home))
    done = CliRunner().invoke(main, ["tables"], auto_envvar_prefix="LAKEQUEUE")
    assert done.exit_code == 1
    assert f"{lost.name} is missing" in done.stdout


# ---------------------------------------------------------------- at


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    walk = lived(3)
    return write_history(walk.world, tmp_path_factory.mktemp("home"), walk.saved)


def at(home: Path, *words: str) -> Result:
    return run("at", *words, "--home", str(home))


def test_R1_at_shows_the_state_of_any_moment(home: Path) -> None:
    (queue,) = json.loads(at(home, "last", "queues", "--json").stdout)
    assert json.loads(at(home, "last", "describe", "orders", "--json").stdout) == queue
    found = at(home, "last", "browse", "orders", "--limit", "1000", "--json")
    assert len(found.stdout.splitlines()) == queue["depth"] > 0
    assert found.stderr.startswith("Broker broker-0 after step ")
    early = json.loads(at(home, "--step", "1", "queues", "--json").stdout)
    assert [(q["name"], q["depth"]) for q in early] == [("orders", 0)]
    assert "orders" in at(home, "2040-01-01T00:00:00Z", "queues").stdout
    assert "defined" in at(home, "last", "events").stdout


def test_R1_at_shows_the_inputs_and_outputs_of_a_step(home: Path) -> None:
    step = json.loads(at(home, "--step", "1", "step", "--json").stdout)
    assert [r["topic"] for r in step["took"]] == ["default.commands"] * 2
    # the journal is written with a later step: several steps are gathered
    assert {r["topic"] for r in step["said"]} == {"default.directory"}
    assert at(home, "--step", "1", "step").stdout.startswith("It read 2 records:\n")


def test_R3_rebuild(home: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    command = ["rebuild", "--from", str(home), "--home", str(new)]
    said = run(*command)
    assert said.exit_code == 0
    assert said.stdout.startswith("broker-0: ")
    assert said.stdout.endswith(f"Start the engine with --home {new}\n")
    again = run(*command)
    assert (again.exit_code, "is not empty" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "The time is missing"), (("last",), "Error: Name what to show"),
        (("last", "qeues"), "Error: 'qeues' cannot be shown. Name what to show: one of qu"),
        (("last", "browse"), "a QUEUE"),
        (("last", "queues", "a", "b"), "takes"), (("yesterday", "queues"), "time: 'yesterday'"),
        (("2001-01-01T00:00:00Z", "queues"), "the tables begin later: steps 1 to"),
        (("last", "describe", "nobody"), "there was no such queue"),
        (("last", "browse", "orders", "--where", "n > 1"), "where: 'n > 1' – must be an exp"),
        (("--step", "9999", "queues"), "the tables have steps 1 to"),
    ],
)  # fmt: skip
def test_at_refuses_wrong_arguments(home: Path, words: tuple[str, ...], said: str) -> None:
    result = at(home, *words)
    assert result.exit_code == 2
    assert said in result.stderr
