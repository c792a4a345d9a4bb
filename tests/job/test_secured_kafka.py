"""A Kafka that asks for credentials: who has none, or wrong ones, is told so in one sentence, at
once. (Who has the right ones: `test_standalone.py`.)"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.secured import SecuredKafka, settings_file
from lakequeue.client.kafka import LIBRARIES
from lakequeue.definitions.bridge import parse_bridge
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.kafka_settings import FOLDER_VARIABLE, VARIABLE
from lakequeue.streaming.bridges.home_copier import HomeCopier

pytestmark = pytest.mark.job

TOLD_S_MAX = 60.0
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured") / "kafka") as kafka:
        kafka.add_user()
        kafka.allow_engine(["default"], ["broker-0"])
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
