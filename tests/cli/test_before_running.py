"""The checks of `up`, `run` and `submit` before they start an engine; each failure is one
sentence."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lakequeue.cli import start_engine as before_running
from lakequeue.cli.group import EnvironmentFault
from lakequeue.cli.start_engine import check_alone, check_ports
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import LakequeueError, NotConnected
from lakequeue.streaming.home.home_folder import ABOUT
from lakequeue.streaming.kafka.embedded_kafka import (
    PORTS_FILE,
    EmbeddedKafka,
    free_port,
    known_ports,
)
from memory_shell import run

TWO_VPNS = {"queues": [{"name": "a", "message_type": "json", "vpn": "one"},
                       {"name": "b", "message_type": "json", "vpn": "two"}]}  # fmt: skip
PORTS = ("monitor_port", "metrics_port")
HEARD = {"process": 17, "host": "engine-1", "home": "/data/lakequeue"}


@pytest.fixture
def listening() -> Iterator[str]:
    """An address with a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_unreachable_spark_master_is_reported(listening: str, tmp_path: Path) -> None:
    master, home = f"spark://127.0.0.1:{free_port()}", tmp_path / "home"
    at = ("--bootstrap", listening, "--home", str(home), "--master", master)
    for command in ("run", "submit"):
        result = run(command, *at)
        assert result.exit_code == 3
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"No Spark master answers ({master.removeprefix('spark://')}: ")
        assert not home.exists()
    assert run("submit", *at, "--print").exit_code == 0  # it may exist where the job runs


def test_port_0_finds_a_free_port_when_the_homes_port_is_taken(tmp_path: Path) -> None:
    had, kafka = free_port(), tmp_path / "kafka"
    kafka.mkdir()
    (kafka / PORTS_FILE).write_text(json.dumps({"port": had}))
    assert before_running._port(tmp_path, 0) == 0, "the port of the earlier run"
    for damaged in ("[1]", "5", "{", "[[1, 2]]"):
        (kafka / "other").mkdir(exist_ok=True)
        (kafka / "other" / PORTS_FILE).write_text(damaged)
        assert not known_ports(kafka / "other").get("port")
    with socket.create_server(("127.0.0.1", had)):
        assert before_running._port(tmp_path, 0) not in (0, had)
        assert before_running._port(tmp_path, None) == 0
        for broker, named in (
            (EmbeddedKafka(kafka), f", which the home {kafka} had before, is"),
            (EmbeddedKafka(tmp_path, had), " is"),
        ):
            with pytest.raises(LakequeueError) as refused:
                broker._configure()
            assert str(refused.value) == (
                f"Port {had} on 127.0.0.1{named} taken by another program: stop that one or choose "
                "another port. `lakequeue up --port 0` takes a free one."
            )


def test_a_masters_address_has_a_port(listening: str, tmp_path: Path) -> None:
    at = ("--bootstrap", listening, "--home", str(tmp_path / "home"))
    result = run("run", *at, "--master", "spark://spark")
    assert result.exit_code == 2
    assert "'spark' is not host:port, such as spark://spark:7077" in result.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [("up", "monitor_port"), ("up", "metrics_port"), ("run", "metrics_port")],
)
def test_a_port_taken_by_another_program_is_reported(
    command: str, name: str, listening: str, tmp_path: Path
) -> None:
    port, home = listening.rpartition(":")[2], tmp_path / "home"
    at = ["--home", str(home), "--set", f"lakequeue.{name}={port}"]
    if command == "run":
        home.mkdir()
        (home / ABOUT).touch()
        at += ["--bootstrap", listening]
    result = run(command, *at)
    assert result.exit_code == 3
    (line,) = result.stderr.splitlines()
    why = "(Address already in use); choose another, or 0 for a free one"
    assert line == f"lakequeue.{name}: port {port} cannot be used {why}"
    assert command == "run" or not home.exists()


@pytest.mark.parametrize("command", ["up", "run"])
def test_a_missing_key_of_a_client_starts_nothing(
    command: str, listening: str, tmp_path: Path
) -> None:
    home, config = tmp_path / "home", tmp_path / "queues.yaml"
    config.write_text("auth: required\nclients: [{name: app, key: {env: NO_SUCH_KEY}}]")
    at = ["--bootstrap", listening] if command == "run" else ["--port", "0"]
    result = run(command, "--home", str(home), "--config", str(config), *at)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line == "clients: 'app': env 'NO_SUCH_KEY' – there is no such environment variable"
    assert not home.exists()


def test_ports_that_are_0_off_or_not_set_are_not_checked() -> None:
    check_ports({"lakequeue.monitor_port": "0", "lakequeue.metrics_port": "-1"}, *PORTS)
    check_ports({}, *PORTS)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The reports of engines by VPN; other VPNs have none."""
    heard: dict[str, Any] = {}

    def listen(place: str, vpn: str, wait_s: float) -> dict[str, Any] | None:
        if vpn not in heard:
            raise NotConnected(f"topic {vpn}.engine does not exist")
        return heard[vpn]

    monkeypatch.setattr(before_running, "heartbeat", listen)
    return heard


def test_a_second_home_on_a_running_engines_kafka_is_refused(
    engines: dict[str, Any], tmp_path: Path
) -> None:
    configuration = parse_configuration(TWO_VPNS)
    check_alone("kafka:9092", tmp_path, configuration)
    engines["two"] = None  # its topics exist, and no engine reports
    check_alone("kafka:9092", tmp_path, configuration)
    engines["two"] = HEARD
    said = r"'two' on this Kafka already \(process 17 on engine-1, home /data/lakequeue\), and .*"
    with pytest.raises(EnvironmentFault, match=said + "is a new home"):
        check_alone("kafka:9092", tmp_path, configuration)
    about = tmp_path / "lakequeue.json"
    about.write_text(json.dumps({"epoch": 17}))  # a failed start, for example when a port was taken
    with pytest.raises(EnvironmentFault, match=said + "is a new home"):
        check_alone("kafka:9092", tmp_path, configuration)
    # The home has run before: its locks show whether an engine runs.
    about.write_text(json.dumps({"checkpoints": {"checkpoint/broker-0": "b0"}}))
    check_alone("kafka:9092", tmp_path, configuration)
