"""A Kafka that asks for credentials: one file says them, for clients, the loop and Spark; and who
has none, or wrong ones, is told so in one sentence, at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from job.processes import EngineProcess, until
from job.secured import SecuredKafka, settings_file
from job.tables import check_tables
from lakequeue.client.kafka import LIBRARIES
from lakequeue.definitions.bridge import parse_bridge
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.kafka_settings import FOLDER_VARIABLE, VARIABLE, kafka_settings
from lakequeue.streaming.bridges.home_copier import HomeCopier

pytestmark = pytest.mark.job

TOLD_S_MAX = 60.0
KEY = "0123456789-app-key"
GUARDED = """
auth: required
brokers: [broker-0, broker-1]
clients:
  - {name: app, key: {env: APP_KEY}}
  - {name: app, vpn: a, key: {env: APP_KEY}}
  - {name: app, vpn: b, key: {env: APP_KEY}}
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: orders, vpn: a, message_type: text, max_per_subscription_backlog: 50}
  - {name: others, vpn: a, message_type: text, owner: them, permission: read-only}
  - {name: orders, vpn: b, message_type: text, max_per_subscription_backlog: 50}
"""
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured") / "kafka") as kafka:
        for user in ("engine", "a", "b"):
            kafka.add_user(user)
        kafka.allow_engine("default", "a", "b")
        kafka.allow_client("a", "a")
        kafka.allow_client("b", "b")
        yield kafka


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_without_credentials_is_told(
    kafka: SecuredKafka, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
    monkeypatch.delenv(VARIABLE, raising=False)
    for mechanism in (None, "PLAIN", "SCRAM-SHA-512"):
        said = VARIABLE
        if mechanism is not None:
            monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, mechanism, "not it")))
            said = "refuses the credentials"
        begun = time.monotonic()
        with pytest.raises(lakequeue.NotConnected) as caught:
            lakequeue.connect(f"kafka://{kafka.secured}")
        assert time.monotonic() - begun < TOLD_S_MAX
        sentence = str(caught.value)
        assert said in sentence, mechanism
        assert kafka.secured in sentence
        assert "\n" not in sentence
        assert len(sentence) < 300


def test_an_engine_with_wrong_credentials_is_told(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "SCRAM-SHA-512", "not it")))
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "lakequeue.cli", "run", "--bootstrap", kafka.secured,
         "--home", str(tmp_path / "home"), "--config", str(config)],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if VARIABLE in line]
    assert len(lines) == 1, done.stderr
    assert kafka.secured in lines[0]
    assert "Traceback" not in done.stderr


def test_everybody_has_credentials(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine over TLS, with two brokers: topics are made, the loops step, Spark's tables read.
    Clients of both libraries and both mechanisms; and none reaches beyond its VPN, queues, key."""
    certificate = kafka.certificate
    own = settings_file(tmp_path, "SCRAM-SHA-512", certificate=certificate)
    monkeypatch.setenv(VARIABLE, str(own))
    monkeypatch.setenv("APP_KEY", KEY)
    config = tmp_path / "guarded.yaml"
    config.write_text(GUARDED)
    engine = EngineProcess(kafka.encrypted, tmp_path / "home", config)
    ids: set[str] = set()
    try:
        engine.wait_ready()
        monkeypatch.setenv("LAKEQUEUE_CLIENT_KEY", f"app:{KEY}")
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, mechanism)))
            for library in LIBRARIES:
                monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
                ids.add(one_message(f"kafka://{kafka.secured}", "default"))
        for library in LIBRARIES:
            monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
            for vpn in ("a", "b"):
                theirs = settings_file(tmp_path, "SCRAM-SHA-512", user=vpn, certificate=certificate)
                monkeypatch.setenv(VARIABLE, str(theirs))
                ids.add(one_message(f"kafka://{kafka.encrypted}", vpn))
        theirs = settings_file(tmp_path, "SCRAM-SHA-512", user="a", certificate=certificate)
        monkeypatch.setenv(VARIABLE, str(theirs))
        nothing_beyond_its_vpn(kafka)
        nothing_without_the_right(kafka)
        told = subprocess.run(
            [sys.executable, "-m", "lakequeue.cli", "queues", "--url", f"kafka://{kafka.encrypted}",
             "--vpn", "a", "--json"], capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert '"orders"' in told.stdout, told.stderr
        monkeypatch.delenv(VARIABLE)
        vpns = "default", "a", "b"
        check_tables(tmp_path / "home" / "tables", kafka.bootstrap_servers, ids, vpns)
        assert engine.terminate() == 0
        assert "Traceback" not in engine.errors()
        logs = [*(tmp_path / "home").glob("*.log"), engine.log]
        assert logs
        for log in logs:
            text = log.read_text(errors="replace")
            assert "quoted" not in text, log  # the password
            assert KEY not in text, log
    finally:
        engine.kill()


def test_h1_a_bridge_is_told_why_the_far_kafka_refuses_it(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes as far as the topics, which nobody made here, with the right credentials only."""
    wrong = settings_file(tmp_path, "SCRAM-SHA-512", "not it").name
    right = settings_file(tmp_path, "SCRAM-SHA-512").name
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "PLAIN")))  # the home's, for the home
    bridge = {"name": "b", "from": "near", "to": f"kafka://{kafka.secured}", "subscriptions": [">"]}
    for named, said in {
        "nobody": "nobody' – must name a file", None: "asks for credentials",
        wrong: f"refuses the credentials {wrong!r}", right: "has no topic 'default.bridge-in'",
    }.items():  # fmt: skip
        credentials = {} if named is None else {"credentials": named}
        copier = HomeCopier(kafka.bootstrap_servers, 1, parse_bridge(bridge | credentials))
        with pytest.raises(LakequeueError) as caught:
            copier._copy()
        sentence = str(caught.value)
        assert said in sentence
        assert "not it" not in sentence
        assert len(sentence) < 400


def one_message(url: str, vpn: str) -> str:
    with lakequeue.connect(url, vpn=vpn) as connection:
        receipt = connection.producer().send("orders", vpn.encode())
        with connection.consumer("orders", ack_mode="individual") as consumer:
            message = consumer.receive(120)
            assert message is not None
            assert message.payload == vpn.encode()
            message.ack()
        admin = connection.admin()
        until(lambda: admin.describe("orders")["depth"] == 0, 20, "acknowledged")
    return str(receipt.message_id)


def nothing_beyond_its_vpn(kafka: SecuredKafka) -> None:
    """Kafka lets a client of VPN a neither read nor write what is b's, or a broker's."""
    settings = {"bootstrap.servers": kafka.encrypted, **kafka_settings()}
    refusals: dict[str, int] = {}
    producer = Producer(settings)
    written = ["b.publish", "b.commands", "a.directory", "a.deliveries", "broker-0.instructions",
               "broker-0.mesh", "broker-0.control", "broker-0.steps"]  # fmt: skip
    for topic in written:
        producer.produce(
            topic, b"{}", on_delivery=lambda error, m, t=topic: refusals.update({t: error.code()})
        )
    producer.flush(90)
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert {t for t, code in refusals.items() if code == denied} >= {*written}
    consumer = Consumer({**settings, "group.id": "a"})
    for topic in ("b.deliveries", "b.receipts", "b.journal", "broker-0.steps"):
        error = consumer.list_topics(topic, timeout=20).topics[topic].error
        assert error is not None, topic
        assert error.code() == denied
    consumer.close()
    with pytest.raises(lakequeue.LakequeueError):
        lakequeue.connect(f"kafka://{kafka.encrypted}", vpn="b", key=f"app:{KEY}")


def nothing_without_the_right(kafka: SecuredKafka) -> None:
    """The engine refuses who has no key, another's, or no right to a queue."""
    url = f"kafka://{kafka.encrypted}"
    with lakequeue.connect(url, vpn="a", key="app:another-key-0123") as connection:
        with pytest.raises(lakequeue.PermissionDenied, match="has another key than the one"):
            connection.admin().describe("orders")
    with lakequeue.connect(url, vpn="a", key=f"app:{KEY}") as connection:
        with pytest.raises(lakequeue.PermissionDenied, match="has 'read-only' on queue 'others'"):
            connection.consumer("others")
        assert connection.admin().describe("others")["depth"] == 0
        assert connection.admin().usage()["vpn"]["refused"]["permission_denied"] >= 2
