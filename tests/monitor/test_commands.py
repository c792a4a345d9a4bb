"""`lakequeue monitor`, and the page that `up` serves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.group import EnvironmentFault
from lakequeue.cli.monitor import _life
from lakequeue.cli.service import page_shown
from lakequeue.definitions import parse_configuration
from lakequeue.monitor.server import PageServer
from lakequeue.protocol import LakequeueError
from lakequeue.sinks.metrics import Metrics
from lakequeue.streaming.home.home_folder import HomeFolder


def test_a_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["monitor", "--url", "memory://", "--port", str(taken.getsockname()[1])]
        done = CliRunner().invoke(main, words)
    assert (done.exit_code, "choose --port" in done.output) == (3, True)


def test_the_page_is_served_until_a_signal() -> None:
    """A process of its own; the engine in its memory has no queue."""
    arguments = ["monitor", "--url", "memory://", "--port", "0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lakequeue.cli", *arguments], stdout=subprocess.PIPE
    )
    ready = json.loads(process.stdout.readline())
    with urllib.request.urlopen(ready["address"]) as answer:
        assert "<title>Queues – lakequeue</title>" in answer.read().decode()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()


# ------------------------------------------------------------ with `up`


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    """The parts of an engine that the page needs; Kafka is down."""
    queue = {"name": "a", "message_type": "text", "vpn": "east"}
    config = {"queues": [queue], "vpns": {"east": {}, "west": {}}}
    return SimpleNamespace(
        bootstrap="127.0.0.1:1", home=tmp_path, metrics=Metrics(),
        configuration=parse_configuration(config),
    )  # fmt: skip


def test_up_serves_the_page_at_its_earlier_address(engine: Any, tmp_path: Path) -> None:
    """It shows all VPNs and names the Kafka that is down; other pages do not wait for Kafka."""
    with page_shown(engine, tmp_path, 0) as shown:
        address = shown["monitor"]
        with urllib.request.urlopen(f"{address}?vpn=west") as answer:
            text = answer.read().decode()
        assert "of VPN west" in text
        assert "127.0.0.1:1" in text
        with urllib.request.urlopen(f"{address}engine") as answer:
            assert "Brokers" in answer.read().decode()
    with page_shown(engine, tmp_path, 0) as again:
        assert again == shown
    assert HomeFolder(tmp_path).port("monitor") == int(address.rsplit(":", 1)[1].strip("/"))


def test_a_taken_port_is_replaced_or_reported(engine: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        HomeFolder(tmp_path).remember_port("monitor", port)
        with page_shown(engine, tmp_path, 0) as shown:
            assert f":{port}/" not in shown["monitor"]
        with pytest.raises(EnvironmentFault, match=f"monitor_port: port {port} cannot be used"):
            with page_shown(engine, tmp_path, port):
                pass


def test_no_page_when_it_is_switched_off(engine: Any, tmp_path: Path) -> None:
    with page_shown(engine, tmp_path, -1) as shown:
        assert shown == {}


def test_a_messages_history_needs_a_home(tmp_path: Path) -> None:
    assert _life(None) is None
    told = _life(tmp_path)
    assert told is not None
    with pytest.raises(LakequeueError, match="has no table"):
        told("17")


def test_invalid_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = PageServer(None, "127.0.0.1", 0)  # no request reaches the application
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as anybody:
            anybody.sendall(b"\x00\x01 what?\r\n\r\n")
            assert b"400" in anybody.recv(1_000)
    finally:
        server.stop()
    assert caplog.messages == []
