"""`lakequeue up` while what it runs on dies: Spark's Java process, its Kafka, and then itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lakequeue
import psutil
import pytest
from kafka import KafkaProducer
from lakequeue.streaming.kafka.topics_admin import ensure_topics

pytestmark = pytest.mark.job

START_S_MAX = 150.0
STOP_S_MAX = 60.0  # of a SIGTERM, in all: 3 s on an idle machine
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: small, message_type: text, max_spool_usage: 100}
"""
ALERT_S_MAX = 30.0  # on an idle machine a second: that long the journal is gathered


class Up:
    """`lakequeue up` as a child with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.said: list[str] = []
        config = folder / "queues.yaml"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "lakequeue.cli", "up", "--home", str(self.home)]
        command += ["--config", str(config), "--port", "0", "--json"]
        command += ["--set", "lakequeue.ui_port=0", "--set", "lakequeue.tables_interval_s=2"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        self.ready: dict[str, Any] = {}
        self._is_ready = threading.Event()
        for target in (self._listen, self._listen_to_errors):
            threading.Thread(target=target, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (event := json.loads(line))["event"] == "ready":
                self.ready = event
                self._is_ready.set()
        self._is_ready.set()

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())

    def wait_ready(self) -> Up:
        assert self._is_ready.wait(START_S_MAX)
        assert self.ready, self.said[-5:]
        return self

    @property
    def bootstrap(self) -> str:
        return self.ready["addresses"]["Kafka"].removeprefix("kafka://")

    def child(self, word: str) -> psutil.Process:
        """Its child whose command line has this word."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if word in child.cmdline():
                    found.append(child)
        assert len(found) == 1, found
        return found[0]

    def heard(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.said)

    def terminate(self) -> float:
        """SIGTERM; seconds until it was gone, and its children with it."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(90) == 0, self.said[-5:]
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
        return time.monotonic() - begin

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    one = Up(tmp_path_factory.mktemp("up"))
    try:
        yield one.wait_ready()
    finally:
        one.kill()


def until(condition: Callable[[], Any], seconds: float) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - begin


def passes(up: Up, text: bytes) -> bool:
    """Whether a message goes in and comes out; what came earlier is acknowledged on the way."""
    url = up.ready["addresses"]["Kafka"]
    try:
        with lakequeue.connect(url, client_name="test") as connection:
            connection.producer(pub_ack_time="30s").send("orders", text, ttl="60s")
            consumer = connection.consumer("orders", ack_mode="individual")
            while (message := consumer.receive(30)) is not None:
                message.ack()
                if message.payload == text:
                    consumer.close()
                    return True
    except lakequeue.LakequeueError as error:
        up.said.append(f"(the test's client: {error})")
    return False


def send_plainly(bootstrap: str, topic: str, value: bytes) -> None:
    """As any Kafka producer does."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, value).get(timeout=30)
    producer.close()


def test_kafkas_address_is_a_url_and_ports_stay(up: Up) -> None:
    assert up.ready["addresses"]["Kafka"].startswith("kafka://127.0.0.1:")
    ports = json.loads((up.home / "ports.json").read_text())
    assert f":{ports['metrics']}/" in up.ready["addresses"]["metrics"]
    about = json.loads((up.home / "lakequeue.json").read_text())
    assert about["epoch"] > 0
    assert about["checkpoints"]
    assert passes(up, b"at first")


def test_S9_an_alert_is_said_at_once(up: Up) -> None:
    """And not when the batch is over, which takes up to 30 s."""
    with lakequeue.connect(up.ready["addresses"]["Kafka"]) as connection:
        consumer = connection.consumer("small", ack_mode="individual")
        connection.producer().send("small", "x" * 60)
        until(lambda: up.heard("spool_usage_high: queue 'small'", "at 60.0 % of 100"), ALERT_S_MAX)
        message = consumer.receive(30)
        assert message is not None
        message.ack()
        until(lambda: up.heard("spool_usage_cleared: queue 'small'"), ALERT_S_MAX)


def test_java_dies_and_is_started_again(up: Up) -> None:
    java = up.child("org.apache.spark.deploy.SparkSubmit")
    java.kill()
    until(lambda: up.heard("Spark's Java process ended", "signal 9", "started again"), 20)
    until(lambda: up.heard("Spark runs again"), 90)
    assert passes(up, b"after java")
    assert up.process.poll() is None
    assert not up.heard("Traceback"), up.said


def test_kafka_dies_and_is_started_again(up: Up) -> None:
    up.child("kafka.Kafka").kill()
    until(lambda: up.heard("Kafka ended", "signal 9", "started again"), 20)
    until(lambda: up.heard("Kafka runs again"), 60)
    until(lambda: passes(up, b"after kafka"), 120)
    assert up.process.poll() is None
    assert not up.heard("Traceback"), up.said
    assert not up.heard("%3|"), "a library's lines, dozens a second"


def test_a_queue_captures_a_topic(up: Up) -> None:
    """It is made after the queue was defined."""
    with lakequeue.connect(up.ready["addresses"]["Kafka"]) as connection:
        connection.admin().define(
            {"name": "plain", "message_type": "text", "underlying_topic": "extra"}
        )
    ensure_topics(up.bootstrap, [], ["extra"])
    until(lambda: "extra" in (up.home / "captured.json").read_text(), 60)


def test_sigterm_ends_it_while_kafka_is_away(up: Up) -> None:
    """Kafka hangs (it is stopped, not dead): nothing answers and nothing starts it again."""
    kafka = up.child("kafka.Kafka")
    kafka.suspend()
    time.sleep(3)
    took = up.terminate()
    assert took < STOP_S_MAX, (took, up.said[-5:])
    assert not up.heard("Traceback"), up.said


def test_it_goes_on_where_it_stopped(up: Up, tmp_path_factory: pytest.TempPathFactory) -> None:
    addresses = up.ready["addresses"]
    (up.home / "captured.json").unlink()  # as if the driver had died before it heard of "extra"
    again = Up(up.home.parent)
    try:
        again.wait_ready()
        assert again.ready["addresses"] == addresses  # Kafka's port, and the metrics'
        send_plainly(again.bootstrap, "extra", b"seen")
        with lakequeue.connect(addresses["Kafka"]) as connection:
            message = connection.consumer("plain").receive(60)
            assert message is not None
            assert message.payload == b"seen"
        assert passes(again, b"the next day")
        assert again.terminate() < STOP_S_MAX
    finally:
        again.kill()
