"""What is wrong around the engine: one sentence, what to do, exit status 3, no traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lakequeue.cli.group import EXIT_ENVIRONMENT
from lakequeue.streaming.kafka.embedded_kafka import free_port

pytestmark = pytest.mark.job

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


def lakequeue(*arguments: object, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run the command; None takes a variable away."""
    found = {**os.environ, **{k: v for k, v in environment.items() if v is not None}}
    for name in [k for k, v in environment.items() if v is None]:
        found.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "lakequeue.cli", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env=found,
    )  # fmt: skip


def check(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """The right exit status, and one sentence that says these words."""
    assert done.returncode == EXIT_ENVIRONMENT == 3, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "should not have happened" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    progress = ("Starting", "starting", "waiting", "Fetching")
    sentence = [line for line in lines if not line.startswith(progress)]
    assert len(sentence) == 1, done.stderr
    for word in words:
        assert word in sentence[0], sentence[0]


def test_kafka_is_not_there(tmp_path: Path, config: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    home = tmp_path / "home"
    done = lakequeue("run", "--bootstrap", address, "--home", home, "--config", config)
    check(done, address, "--bootstrap")
    assert not home.exists(), "nothing was started"


def test_what_listens_is_not_kafka(tmp_path: Path, config: Path, listener: int) -> None:
    """It is given 5 s, twice; the rest is what it takes to start Python."""
    address = f"127.0.0.1:{listener}"
    done = lakequeue("run", "--bootstrap", address, "--home", tmp_path / "home", "--config", config)
    check(done, address, "does not speak Kafka")


def test_java_is_missing(tmp_path: Path, config: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = lakequeue(
        "up", "--home", tmp_path / "home", "--config", config, "--port", 0,
        PATH=str(empty), JAVA_HOME="/nowhere",
    )  # fmt: skip
    check(done, "Java", "install")


def test_the_port_is_taken(tmp_path: Path, config: Path, listener: int) -> None:
    done = lakequeue("up", "--home", tmp_path / "home", "--config", config, "--port", listener)
    check(done, str(listener), "another port")


def test_the_home_is_of_another_version(tmp_path: Path, config: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "lakequeue.json").write_text(json.dumps({"format": 999}))
    done = lakequeue("up", "--home", home, "--config", config, "--port", 0)
    check(done, str(home), "999", "--home")


def test_the_home_is_no_home(tmp_path: Path, config: Path, listener: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "lakequeue.json").write_text("{")
    address = f"127.0.0.1:{listener}"
    done = lakequeue("run", "--bootstrap", address, "--home", home, "--config", config)
    check(done, str(home))
