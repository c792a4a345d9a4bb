"""The embedded broker with a real Kafka: crashes, refusals, and their messages. Kafka's settings:
the allowed contents of the file, and their use by every client. And topics reported by a broker
that has just created them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from client.threaded import wait_for
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError, TopicAuthorizationFailedError
from lakequeue.client.kafka import kafka_python
from lakequeue.protocol import LakequeueError, NotConnected
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.kafka_settings import (
    FOLDER_VARIABLE,
    NAMES,
    VARIABLE,
    credentials,
    encrypted,
    for_java,
    for_kafka_python,
    for_spark,
    kafka_settings,
)
from lakequeue.streaming.jars import Jars
from lakequeue.streaming.kafka import embedded_kafka as kafka_broker
from lakequeue.streaming.kafka import topics_admin
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, free_port, port_is_free
from lakequeue.streaming.kafka.topics_admin import _sizes

job = pytest.mark.job


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of this file's own, which tests may stop and kill. They share it, in their order,
    because a start takes seconds. The thread that started it has ended."""
    broker = EmbeddedKafka(tmp_path_factory.mktemp("embedded") / "home")
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    yield broker
    broker.stop()


def keep(broker: EmbeddedKafka, topic: str, value: bytes) -> None:
    """Create a topic, and write to it."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")
    producer.send(topic, value).get(timeout=90)
    producer.close()


def read(broker: EmbeddedKafka, topic: str) -> bytes:
    """The first value of a topic."""
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0)])
    with closing(consumer):
        return next(consumer).value


@job
def test_a_running_kafka_listens_only_here_and_locks_its_home(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares this session, but not Ctrl-C; it listens on this machine only; and its home has one
    user."""
    properties = kafka.home / "server.properties"
    (process,) = [c for c in psutil.Process().children() if str(properties) in c.cmdline()]
    assert os.getsid(process.pid) == os.getsid(0)  # Linux distributes CPU time among sessions
    assert os.getpgid(process.pid) != os.getpgid(0)
    listeners = [line for line in properties.read_text().splitlines() if "listeners=" in line]
    assert listeners
    assert all(part.count("//") == part.count("//127.0.0.1:") for part in listeners)
    monkeypatch.setattr(kafka_broker, "LOCK_SECONDS_MAX", 0.2)
    said = rf"{kafka.home} is in use by another engine \(process \d+\)"
    with pytest.raises(LakequeueError, match=said):
        EmbeddedKafka(kafka.home).start()
    assert kafka.running


@job
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_kafka_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka\n"
        "print(EmbeddedKafka(sys.argv[1]).start().pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        java = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not java.is_running() or java.status() == psutil.STATUS_ZOMBIE, 60)
    next_one = EmbeddedKafka(tmp_path / "home")
    next_one._lock.take(10.0)  # it is free again, soon
    next_one._lock.release()


@job
def test_a_crash_keeps_data_and_port(broker: EmbeddedKafka) -> None:
    """Also for another object that finds the home. It outlived the thread that started it.
    (Restarts: `tests/client/test_transports.py`.)"""
    assert broker.running
    keep(broker, "kept", b"1")
    servers = broker.bootstrap_servers
    broker.kill()
    assert not broker.running
    with EmbeddedKafka(broker.home) as second:
        assert second.bootstrap_servers == servers
        assert read(second, "kept") == b"1"
    assert not second.running
    assert port_is_free(second.port)


@job
@pytest.mark.parametrize("said", ["heap", "node"])
def test_a_failed_start_quotes_java(broker: EmbeddedKafka, said: str) -> None:
    """With too small a heap, and with a home whose data are another node's. From here on nothing
    runs on this home."""
    broker.stop()
    heap = {"heap": "1k"} if said == "heap" else {}
    if said == "node":
        about = broker.home / "data/meta.properties"
        about.write_text("version=1\nnode.id=7\ncluster.id=x\n")
    with pytest.raises(LakequeueError, match=f"Kafka died while starting: .*{said}") as caught:
        EmbeddedKafka(broker.home, **heap).start()
    assert "\n" not in str(caught.value)


def test_an_unwritable_home_of_kafka_is_reported() -> None:
    with pytest.raises(LakequeueError, match="The home /proc/nowhere cannot be written"):
        EmbeddedKafka("/proc/nowhere").start()


def test_a_process_that_cannot_be_started_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example without memory for a fork. The watch that restarts a dead Kafka then
    continues."""
    monkeypatch.setattr(kafka_broker, "java_executable", lambda: Path("java"))
    monkeypatch.setattr(kafka_broker, "ensure_jars", lambda _: Jars([], []))
    full = OSError(errno.ENOMEM, "Cannot allocate memory")
    monkeypatch.setattr(kafka_broker, "start_tied", Mock(side_effect=full))
    monkeypatch.setattr(EmbeddedKafka, "_format", lambda *_: None)
    broker = EmbeddedKafka(tmp_path / "home")
    with pytest.raises(LakequeueError, match=r"cannot be started: .*Cannot allocate memory"):
        broker.start()
    assert broker._lock.file is None, "its home is free"


def test_java_reads_no_path_of_a_home_with_an_unusual_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took `a,b` for two folders, and wrote the data of `ü` beside the home."""
    monkeypatch.setattr(kafka_broker, "java_executable", lambda: Path("java"))
    monkeypatch.setattr(kafka_broker, "ensure_jars", lambda _: Jars([], []))
    run, launch = Mock(), Mock(side_effect=OSError)
    run.return_value.returncode = 0
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(kafka_broker, "start_tied", launch)
    home = tmp_path / "a,b ü"
    with pytest.raises(LakequeueError):
        EmbeddedKafka(home).start()
    assert "log.dirs=data\n" in (home / "server.properties").read_text()
    assert run.call_args.kwargs["cwd"] == launch.call_args.kwargs["cwd"] == home


def test_stop_without_start(tmp_path: Path) -> None:
    broker = EmbeddedKafka(tmp_path / "home")
    broker.stop()
    assert (broker.running, broker.pid) == (False, None)


def test_free_ports_are_outside_the_range_of_outgoing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert all(20_000 <= port < 32_000 for port in ports)
    assert len(ports) > 1


FILE = """
# what our Kafka asks for
security.protocol=SASL_SSL
sasl.mechanism = SCRAM-SHA-512
sasl.username=engine
sasl.password=a"b=c
ssl.ca.location=/etc/ca.pem
socket.timeout.ms=30000
"""


def settings_of(folder: Path, text: str) -> dict[str, str]:
    file = folder / "kafka.properties"
    file.write_text(text)
    return kafka_settings({VARIABLE: str(file)})


def test_one_settings_file_serves_all_clients(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, FILE)
    assert settings["sasl.password"] == 'a"b=c'
    assert set(settings) == set(NAMES)
    assert encrypted(settings)
    java = for_java(settings)
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="engine" password="a\\"b=c";'
    )
    assert (java["ssl.truststore.location"], java["ssl.truststore.type"]) == ("/etc/ca.pem", "PEM")
    assert for_spark(settings)["kafka.request.timeout.ms"] == "30000"
    assert for_kafka_python(settings)["request_timeout_ms"] == 30_000


def test_java_gets_no_credentials_if_none_are_given(tmp_path: Path) -> None:
    plain = "security.protocol=PLAINTEXT\n"
    assert for_java(settings_of(tmp_path, plain)) == {"security.protocol": "PLAINTEXT"}


def test_the_libraries_know_the_settings(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, FILE)
    del settings["ssl.ca.location"]  # librdkafka reads it at once
    Producer(settings)
    assert set(for_kafka_python(settings)) <= set(KafkaConsumer.DEFAULT_CONFIG)


def test_all_wrong_settings_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, "a=b\nnonsense\nsecurity.protocol=TLS\nsocket.timeout.ms=soon\n")
    assert [p.where.rpartition(" ")[2] for p in caught.value.problems] == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match=VARIABLE):
        kafka_settings({VARIABLE: str(tmp_path / "nowhere")})


def test_credentials_of_another_kafka_are_in_a_file_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "east").write_text(FILE)
    there = {FOLDER_VARIABLE: str(tmp_path)}
    assert credentials("east", there)["sasl.password"] == 'a"b=c'
    with pytest.raises(ConfigError, match=r"credentials: '.*/west' – must name a file"):
        credentials("west", there)
    (tmp_path / "east").write_text("sasl.password secret\n")
    with pytest.raises(ConfigError) as caught:
        credentials("east", there)
    assert "line 1: this line: '' – must be name=value" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"'east' – is a file in the folder {FOLDER_VARIABLE}"):
        credentials("east", {})


def test_a_topic_just_created_counts_before_kafka_describes_it() -> None:
    """A receipt for a topic that seems to be missing would go to `<vpn>.rejected`, for ever."""
    described = [
        {"name": "old", "partitions": [0, 1, 2]},
        {"name": "default.receipts", "partitions": []},
        {"name": "default.publish", "partitions": [0, 1]},
    ]
    made = {"default.receipts": 8, "default.publish": 2, "default.journal": 1}
    assert _sizes(described, made) == {
        "old": 3, "default.receipts": 8, "default.publish": 2, "default.journal": 1,
    }  # fmt: skip


class Admin:
    """Kafka's administrator: topics, and their settings."""

    def __init__(self, **topics: dict[str, str]) -> None:
        self.topics = topics

    def list_topics(self) -> list[str]:
        return list(self.topics)

    def create_topics(self, new: list[Any]) -> None:
        for one in new:
            self.topics[one.name] = dict(one.topic_configs)

    def alter_configs(self, resources: list[Any], raise_on_unknown: bool) -> Any:
        for one in resources:
            self.topics[one.name] |= one.configs
        return {"topic": {one.name: "OK" for one in resources}}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "partitions": [0]} for name in names]

    def close(self) -> None: ...


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Admin], None]:
    """Use this administrator."""
    return lambda admin: monkeypatch.setattr(kafka_python, "KafkaAdminClient", lambda **_: admin)


class Late(Admin):
    """Lists the publish topic from the fourth request on, and has it all the time."""

    def __init__(self, **topics: dict[str, str]) -> None:
        super().__init__(**topics)
        self.looks = 0
        self.grown: dict[str, int] = {}

    def list_topics(self) -> list[str]:
        self.looks += 1
        return [name for name in self.topics if self.looks > 3 or name != "v.publish"]

    def create_topics(self, new: list[Any]) -> None:
        if new[0].name in self.topics:
            raise TopicAlreadyExistsError
        super().create_topics(new)

    def create_partitions(self, counts: dict[str, int]) -> None:
        self.grown.update(counts)

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        there = dict.fromkeys(self.list_topics(), 1)
        there |= {name: 8 for name in there if name == "v.publish"}
        return [{"name": name, "partitions": [0] * there.get(name, 0)} for name in names]


def test_X4_a_topic_listed_late_has_its_size_and_kafkas_time(
    use: Callable[[Admin], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a growing home would get the error that its topics have too many partitions."""
    use(admin := Late(**{"v.publish": {}, "v.commands": {}}))
    sizes = topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    grown = {"v.publish": 16, "v.commands": 2}
    assert sizes | grown == sizes
    assert admin.grown == grown
    assert admin.topics["v.publish"] == topics_admin.PUBLISH_CONFIG
    admin.looks = -1_000
    monkeypatch.setattr(topics_admin, "LATE_S_MAX", 0.2)
    with pytest.raises(NotConnected, match=r"does not list them: v\.publish"):
        topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=1)
    assert admin.grown == grown


class Sized(Admin):
    """All topics of a VPN, and a publish topic of this size."""

    def __init__(self, size: int) -> None:
        kinds = [f"v.{kind}" for kind in topics_admin.PARTITIONS]
        brokers = [f"{b}.{k}" for b in "ab" for k in ("steps", "control", "instructions", "mesh")]
        super().__init__(**{name: {} for name in kinds + brokers})
        self.size = size

    def create_partitions(self, counts: dict[str, int]) -> None:
        self.grown = counts

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "partitions": [0] * (self.size if name == "v.publish" else 1)}
            for name in names
        ]


@pytest.mark.parametrize(
    ("size", "before", "fits"),
    [(8, 1, True), (9, 1, False), (16, 1, False), (16, 2, True), (17, 2, False), (16, 0, True),
     (17, 0, False), (9, 0, True), (16, 3, True), (17, 3, False)],
)  # fmt: skip
def test_M4_surplus_partitions_are_refused(
    use: Callable[[Admin], None], size: int, before: int, fits: bool
) -> None:
    """Two brokers have eight each. If there were fewer brokers before, nobody has read the
    partitions beyond theirs."""
    use(Sized(size))
    if fits:
        found = topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=before)
        assert found["v.publish"] == 16
        return
    with pytest.raises(LakequeueError, match=rf"topic 'v.publish' has {size} partitions"):
        topics_admin.ensure_topics("k:1", ["v"], [], ["a", "b"], count=2, before=before)


def test_X4_messages_have_kafkas_time_in_new_and_old_topics(
    use: Callable[[Admin], None],
) -> None:
    """Also in topics created by an operator; plain records keep their own."""
    use(admin := Admin(**{"old.publish": {"retention.ms": "1"}, "old.commands": {}, "orders": {}}))
    topics_admin.ensure_topics("k:1", ["old", "new"], ["orders"], ["broker-0"])
    times = {name: found.get("message.timestamp.type") for name, found in admin.topics.items()}
    kafkas = {name for name, kind in times.items() if kind == "LogAppendTime"}
    assert kafkas == {"old.publish", "new.publish"}
    assert admin.topics["old.publish"]["retention.ms"] == "1"


def test_X4_without_the_permission_the_engine_starts_and_logs_the_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuses = Mock(alter_configs=Mock(side_effect=TopicAuthorizationFailedError))
    topics_admin._have_kafkas_time(refuses, ["default.publish"])
    assert "times to live and delays use the publishers' clocks" in caplog.text
