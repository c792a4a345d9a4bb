"""The embedded broker on the real thing: what survives, what is refused, and with which words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from lakequeue.protocol import LakequeueError
from lakequeue.streaming.kafka import embedded_kafka as kafka_broker
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, free_port, port_is_free

job = pytest.mark.job


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of this file's own, which tests may stop and kill: a start takes seconds, so they
    share it in their order. The thread that started it has ended."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("embedded") / "home")
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    yield broker
    broker.stop()


def make_topic(broker: EmbeddedKafka, topic: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    admin.close()


def send(broker: EmbeddedKafka, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        acks="all",
        max_request_size=kafka_broker.MESSAGE_BYTES_MAX,
    )
    for value in values:
        producer.send(topic, value).get(timeout=20)
    producer.close()


def read(broker: EmbeddedKafka, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(topic, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [r.value for rs in consumer.poll(500).values() for r in rs]
    consumer.close()
    return values


def gone(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@job
def test_one_that_runs(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shares this session, but not what Ctrl-C reaches; it listens on this machine only; and its
    home has one user."""
    (process,) = [
        child
        for child in psutil.Process().children()
        if str(kafka.home / "server.properties") in child.cmdline()
    ]
    assert os.getsid(process.pid) == os.getsid(0)  # Linux shares out time among sessions
    assert os.getpgid(process.pid) != os.getpgid(0)
    properties = (kafka.home / "server.properties").read_text()
    listeners = [line for line in properties.splitlines() if "listeners=" in line]
    assert listeners
    assert all(part.count("//") == part.count("//127.0.0.1:") for part in listeners)
    monkeypatch.setattr(kafka_broker, "LOCK_SECONDS_MAX", 0.2)
    with pytest.raises(LakequeueError, match=f"{kafka.home} is in use by another engine"):
        EmbeddedKafka(kafka.home).start()
    assert kafka.running


@job
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka\n"
        "print(EmbeddedKafka(sys.argv[1]).start().pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    assert gone(pid, 60)
    next_one = EmbeddedKafka(tmp_path / "home")
    next_one._take_home()  # it is free again
    next_one._release_home()


@job
def test_a_crash_keeps_data_and_port(broker: EmbeddedKafka) -> None:
    """Also for another object that finds the home. It outlived the thread that started it. (That it
    is started again: `tests/client/test_transports.py`.)"""
    assert broker.running
    make_topic(broker, "kept")
    send(broker, "kept", b"1")
    servers = broker.bootstrap_servers
    broker.kill()
    assert not broker.running
    with EmbeddedKafka(broker.home) as second:
        assert second.bootstrap_servers == servers
        assert read(second, "kept", 1) == [b"1"]
    assert not second.running
    assert port_is_free(second.port)


@job
def test_what_java_says_is_in_the_sentence(broker: EmbeddedKafka) -> None:
    """From here on nothing runs on this home."""
    broker.stop()
    with pytest.raises(LakequeueError, match=r"Kafka died while starting: .*heap") as caught:
        EmbeddedKafka(broker.home, heap="1k").start()
    assert "\n" not in str(caught.value)


@job
def test_a_broken_home_says_why(broker: EmbeddedKafka) -> None:
    broker.stop()
    about = broker.home / "data/meta.properties"
    about.write_text("version=1\nnode.id=7\ncluster.id=x\n")
    with pytest.raises(LakequeueError, match=r"Kafka died while starting: .*node") as caught:
        EmbeddedKafka(broker.home).start()
    assert "\n" not in str(caught.value)


def test_a_home_that_cannot_be_written() -> None:
    with pytest.raises(LakequeueError, match="The home /proc/nowhere cannot be written"):
        EmbeddedKafka("/proc/nowhere").start()


def test_stop_without_start(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path / "home")
    broker.stop()
    assert (broker.running, broker.pid) == (False, None)


def test_free_ports_are_not_those_of_outgoing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert all(20_000 <= port < 32_000 for port in ports)
    assert len(ports) > 1
