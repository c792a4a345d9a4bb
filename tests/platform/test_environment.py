"""What is wrong around the engine: one sentence, what to do, exit status 3, no traceback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.group import EXIT_ENVIRONMENT
from lakequeue.streaming.kafka.embedded_kafka import free_port

CONFIG = "queues:\n  - {name: orders, message_type: json}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "queues.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that somebody listens on who says nothing; it may be taken for Kafka."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server.getsockname()[1]


def refused(*arguments: object) -> str:
    """The one sentence with which the command ends, with the right exit status."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == EXIT_ENVIRONMENT == 3, done.output
    assert "Traceback" not in done.output
    assert "should not have happened" not in done.output
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    progress = ("Starting", "starting", "waiting", "Fetching")
    (sentence,) = [line for line in lines if not line.startswith(progress)]
    return sentence


def test_kafka_is_not_there(tmp_path: Path, config: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    home = tmp_path / "home"
    said = refused("run", "--bootstrap", address, "--home", home, "--config", config)
    assert address in said
    assert "--bootstrap" in said
    assert not home.exists(), "nothing was started"


def test_java_is_missing(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    said = refused("up", "--home", tmp_path / "home", "--config", config, "--port", 0)
    assert "Java" in said
    assert "install" in said


def test_the_port_is_taken(tmp_path: Path, config: Path, listener: int) -> None:
    said = refused("up", "--home", tmp_path / "home", "--config", config, "--port", listener)
    assert str(listener) in said
    assert "another port" in said


def test_the_home_is_no_home(tmp_path: Path, config: Path, listener: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "lakequeue.json").write_text("{")
    address = f"127.0.0.1:{listener}"
    assert str(home) in refused("run", "--bootstrap", address, "--home", home, "--config", config)
