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
from job.processes import EngineProcess, until
from job.secured import SecuredKafka, settings_file
from job.tables import check_tables
from lakequeue.client.kafka_library import LIBRARIES
from lakequeue.protocol.kafka_settings import VARIABLE

pytestmark = pytest.mark.job

TOLD_S_MAX = 8.0
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured") / "kafka") as kafka:
        kafka.add_user()
        yield kafka


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", ["none", "wrong PLAIN", "wrong SCRAM-SHA-512"])
def test_a_client_without_credentials_is_told(
    kafka: SecuredKafka, tmp_path: Path, library: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
    monkeypatch.delenv(VARIABLE, raising=False)
    said = VARIABLE
    if case != "none":
        file = settings_file(tmp_path, case.removeprefix("wrong "), "not it")
        monkeypatch.setenv(VARIABLE, str(file))
        said = "refuses the credentials"
    begun = time.monotonic()
    with pytest.raises(lakequeue.NotConnected) as caught:
        lakequeue.connect(f"kafka://{kafka.secured}")
    assert time.monotonic() - begun < TOLD_S_MAX
    sentence = str(caught.value)
    assert said in sentence
    assert kafka.secured in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize("password", [None, "not it"])
def test_an_engine_without_credentials_is_told(
    kafka: SecuredKafka, tmp_path: Path, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if password is not None:
        monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "SCRAM-SHA-512", password)))
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "lakequeue.cli", "run", "--bootstrap", kafka.secured,
         "--home", str(tmp_path / "home"), "--config", str(config)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if VARIABLE in line]
    assert len(lines) == 1, done.stderr
    assert kafka.secured in lines[0]
    assert "Traceback" not in done.stderr


def test_everybody_has_credentials(
    kafka: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine: topics are made, the loop steps, Spark's tables read. Clients of both libraries
    and both mechanisms."""
    monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "SCRAM-SHA-512")))
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    engine = EngineProcess(kafka.secured, tmp_path / "home", config)
    ids: set[str] = set()
    try:
        engine.wait_ready()
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, mechanism)))
            for library in LIBRARIES:
                monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
                with lakequeue.connect(f"kafka://{kafka.secured}") as connection:
                    text = f"{mechanism} {library}".encode()
                    ids.add(connection.producer().send("orders", text).message_id)
                    with connection.consumer("orders", ack_mode="individual") as consumer:
                        message = consumer.receive(20)
                        assert message is not None
                        assert message.payload == text
                        message.ack()
                    admin = connection.admin()
                    until(lambda a=admin: a.describe("orders")["depth"] == 0, 20, "acknowledged")
        monkeypatch.delenv(VARIABLE)
        check_tables(tmp_path / "home" / "tables", kafka.bootstrap_servers, ids)
        assert engine.terminate() == 0
        assert "Traceback" not in engine.errors()
    finally:
        engine.kill()
