"""Messages about a missing Kafka, engine or queue, beyond `transcripts/presence.txt`."""

from __future__ import annotations

import json
import time
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from lakequeue.client.kafka import open_kafka
from lakequeue.earlier.pages import FORMAT as EARLIER_FORMAT
from lakequeue.protocol import topics
from lakequeue.protocol.home_places import ABOUT
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, free_port
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.tables.table_repair import TablesLock
from lakequeue.streaming.watch.heartbeat import EngineHeartbeat
from memory_shell import run

_numbers = count()


def row(name: str, *arguments: str) -> tuple[dict[str, Any], int]:
    """A row of `doctor`, and its exit status."""
    result = run("doctor", "--json", *arguments)
    return next(r for r in json.loads(result.stdout) if r["name"] == name), result.exit_code


@pytest.fixture
def nowhere() -> str:
    """An address without a listening socket."""
    return f"kafka://127.0.0.1:{free_port()}"


def test_a_home_whose_lock_is_held(nowhere: str, tmp_path: Path) -> None:
    (tmp_path / "address").write_text(f"{nowhere}\n")
    kafka = EmbeddedKafka(tmp_path / "kafka")
    kafka.home.mkdir()
    kafka._lock.take()
    result = run("queues", "--home", str(tmp_path))
    kafka._lock.release()
    assert f"The home {tmp_path} is in use" in result.stderr


def test_a_home_that_is_starting(tmp_path: Path) -> None:
    """The advice is not to start it."""
    (tmp_path / "tables").mkdir()
    tables = TablesLock(tmp_path / "tables")
    tables.take()
    result = run("queues", "--home", str(tmp_path))
    tables.release()
    assert result.exit_code == 3
    assert f"The home {tmp_path} is in use by a process that is starting" in result.stderr


def test_doctor_fails_only_for_what_should_run(
    nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lakequeue.cli.command_options.DEFAULT_URL", nowhere)
    found, _ = row("Kafka")
    assert found["ok"]
    assert "no Kafka broker answers" in found["found"]
    assert "lakequeue up" in found["advice"]
    found, status = row("Kafka", "--url", nowhere)
    assert (found["ok"], status) == (False, 1)


def test_doctor_names_an_unreadable_configuration(tmp_path: Path) -> None:
    """It does not silently leave out the checks that need one."""
    file = tmp_path / "queues.yaml"
    found, status = row("configuration", "--config", str(file), "--master", "local[4]")
    assert (found["ok"], status) == (False, 1)
    assert f"{file}: the configuration file cannot be read" in found["found"]
    file.write_text("queues: [{name: q}]")
    found, _ = row("configuration", "--config", str(file))
    assert "message_type" in found["found"]


def test_doctor_on_a_home_that_has_not_been_started(tmp_path: Path) -> None:
    found, _ = row("Kafka", "--home", str(tmp_path))
    assert found["ok"]
    assert "Nothing runs at the home" in found["found"]


def test_a_refused_home_comes_with_its_reason_not_with_advice_to_start_it(tmp_path: Path) -> None:
    """Neither `doctor` nor other commands advise it; each gives the remedy."""
    HomeFolder(tmp_path).open()
    about = json.loads((tmp_path / ABOUT).read_text())
    assert "lakequeue run" in row("Kafka", "--home", str(tmp_path))[0]["advice"]
    (tmp_path / ABOUT).write_text(json.dumps({**about, "format": EARLIER_FORMAT - 1}))
    found, _ = row("checkpoint", "--home", str(tmp_path))
    assert found["ok"] is False
    for said in (
        f"it cannot be started as it is: {found['found']}: {found['advice']}",
        run("queues", "--home", str(tmp_path)).stderr,
    ):
        assert f"it cannot be started as it is: {tmp_path} was written by a version with" in said
        assert "use that version, or another --home" in said
        assert "`lakequeue" not in said
    (tmp_path / ABOUT).write_text("{")
    assert "lakequeue.json cannot be read" in row("checkpoint", "--home", str(tmp_path))[0]["found"]
    assert row("Kafka", "--home", str(tmp_path))[0]["advice"] == "See checkpoint, above."


# ---------------------------------------------------------------- with a Kafka


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for a missing engine, which take seconds."""
    monkeypatch.setattr("lakequeue.cli.consume.ANSWER_S_MIN", 2.0)
    monkeypatch.setattr("lakequeue.cli.start_engine.HEARTBEAT_S", 1.0)


@pytest.fixture
def vpn() -> str:
    """A VPN that no other test uses."""
    return f"presence-{next(_numbers)}"


@pytest.mark.job
def test_a_vpn_never_served_by_an_engine_is_reported(kafka: EmbeddedKafka, vpn: str) -> None:
    at = ("--url", f"kafka://{kafka.bootstrap_servers}", "--vpn", vpn)
    result = run("queues", *at)
    assert result.exit_code == 3
    assert f"no engine has served the VPN {vpn!r} there: is --vpn right?" in result.stderr
    found, status = row("engine", *at)
    assert (found["ok"], status) == (False, 1)


@pytest.mark.job
@pytest.mark.usefixtures("brief")
def test_the_timeout_limits_the_wait_for_an_engine(kafka: EmbeddedKafka, vpn: str) -> None:
    ensure_topics(kafka.bootstrap_servers, [vpn], [])
    at = ("--url", f"kafka://{kafka.bootstrap_servers}", "--vpn", vpn)
    began = time.monotonic()
    result = run("consume", "orders", "--timeout", "1", *at)
    seconds = time.monotonic() - began
    assert seconds < 30, "this is the wait without --timeout"
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    assert line.startswith("the engine did not answer within 2.0 s. Kafka answers at ")
    assert "but the engine does not run: it sent no heartbeat" in line


@pytest.mark.job
@pytest.mark.usefixtures("brief")
def test_a_running_engine_that_does_not_answer(
    kafka: EmbeddedKafka, vpn: str, tmp_path: Path
) -> None:
    ensure_topics(kafka.bootstrap_servers, [vpn], [])
    at = ("--url", f"kafka://{kafka.bootstrap_servers}", "--vpn", vpn)
    with closing(open_kafka(kafka.bootstrap_servers, "engine")) as transport:
        topic = topics.topic(vpn, topics.ENGINE)
        send = partial(transport.command, topic, b"")
        heartbeat = EngineHeartbeat(send, tmp_path, 0.2)
        heartbeat.start()
        result = run("consume", "orders", "--timeout", "0", *at)
        found, _ = row("engine", *at)
        heartbeat.stop()
    assert result.exit_code == 3
    assert "and the engine runs (process " in result.stderr
    assert f"see {tmp_path}/spark.log" in result.stderr
    assert found["ok"]
    assert found["found"].startswith("runs: process ")
