"""What `lakequeue doctor` says of a home, of Spark's slots and of Kafka's topics."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.cli.engine_checks import (
    input_problem,
    input_topics,
    log_problem,
    look,
    places_checks,
    retention_check,
    slots_check,
    whole_home_check,
)
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import folders
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.spark.spark_session import slots

CONFIGURATION = parse_configuration(
    {
        "queues": [
            {"name": "orders", "message_type": "text"},
            {
                "name": "all",
                "message_type": "text",
                "underlying_topic": "sensor-.*",
                "default_publish_target": "sensor-1",
            },
        ]
    }
)
HOUR = 3_600_000


@pytest.fixture
def home(tmp_path: Path, live: Any) -> Path:
    """A home in which an engine ran."""
    return live(tmp_path / "home").path


def test_a_home_and_its_checkpoint(home: Path, tmp_path: Path) -> None:
    assert whole_home_check(home).ok
    assert whole_home_check(tmp_path / "none").ok
    shutil.rmtree(home / "checkpoint")
    before = sorted(home.rglob("*"))
    check = whole_home_check(home)
    assert not check.ok
    assert "checkpoint is gone" in check.found
    assert "backup" in check.advice
    assert sorted(home.rglob("*")) == before
    (home / "lakequeue.json").write_text("{")
    assert not whole_home_check(home).ok


def test_the_places_of_a_home_that_has_its_parts_elsewhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert places_checks(home) == [], "all is in it"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folders._s3.cache_clear()
    HomeFolder(tmp_path / "other", "s3a://lake/tables", str(tmp_path / "checks")).open()
    found = places_checks(tmp_path / "other")
    folders._s3.cache_clear()
    assert [(c.name, c.ok) for c in found] == [
        ("place of checkpoints", True), ("place of tables", False)
    ]  # fmt: skip
    assert found[1].found.startswith("s3a://lake/tables cannot be written")
    assert "AWS_ENDPOINT_URL" in found[1].advice


@pytest.mark.parametrize(
    ("master", "count"),
    [
        ("local", 1), ("local[4]", 4), ("local[4,4]", 4), ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", 2), ("spark://host:7077", None), ("yarn", None),
    ],
)  # fmt: skip
def test_slots(master: str, count: int | None) -> None:
    assert slots(master) == count


def test_a_slot_for_each_broker_and_one_for_the_tables() -> None:
    assert slots_check("local[3]", brokers=2).ok
    check = slots_check("local[2]", brokers=2)
    assert not check.ok
    assert "local[3]" in check.advice
    unknown = slots_check("yarn", brokers=2)
    assert (unknown.ok, unknown.required) == (True, False)


def test_which_topics_are_inputs() -> None:
    there = {
        "default.publish", "default.commands", "default.journal", "other.publish", "orders",
        "sensor-1", "unused", "__consumer_offsets", "broker-0.steps",
    }  # fmt: skip
    broker = CONFIGURATION.brokers[0]
    inputs, logs = input_topics(there | {f"{broker}.steps"}, CONFIGURATION, None)
    assert inputs == {
        "default.publish", "default.commands", "default.journal", "orders", "sensor-1",
    }  # fmt: skip
    assert logs == {f"{broker}.steps"}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, ""),
        ({"retention.ms": str(168 * HOUR), "retention.bytes": "-1"}, ""),
        ({"retention.ms": "-1"}, ""),
        ({"retention.ms": str(HOUR)}, "t keeps 1 h"),
        ({"retention.bytes": "1000"}, "t keeps only 1,000 bytes"),
        ({"cleanup.policy": "compact,delete"}, "t is compacted"),
    ],
)
def test_inputs_are_kept(settings: dict[str, str], problem: str) -> None:
    assert input_problem("t", settings).startswith(problem)
    assert bool(input_problem("t", settings)) is bool(problem)


def test_nobody_but_the_engine_cuts_a_log() -> None:
    good = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert log_problem("t", good) == ""
    assert "retention.ms=5" in log_problem("t", {**good, "retention.ms": "5"})
    assert "compact" in log_problem("t", {**good, "cleanup.policy": "compact"})


def test_a_kafka_that_is_away_is_said() -> None:
    (check,) = look(None, None, "local[4]", "127.0.0.1:1")
    assert not check.ok
    assert "127.0.0.1:1" in check.advice


@pytest.mark.job
def test_on_a_real_kafka(kafka: EmbeddedKafka) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics([NewTopic("sensor-kept", 1, 1)])
    assert retention_check(kafka.bootstrap_servers, CONFIGURATION, None).ok
    short = NewTopic("sensor-short", 1, 1, topic_configs={"retention.ms": "60000"})
    admin.create_topics([short])
    check = retention_check(kafka.bootstrap_servers, CONFIGURATION, None)
    admin.delete_topics(["sensor-kept", "sensor-short"])
    admin.close()
    assert not check.ok
    assert "sensor-short keeps 0.0167 h (retention.ms=60000)" in check.found


@pytest.mark.job
def test_doctor_names_every_input_that_is_kept_too_shortly(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Own topics, captured ones, the tables' journal, and the log; and the exit status says so."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    config = tmp_path / "queues.yaml"
    definition = "{name: q, vpn: kept, message_type: text, underlying_topic: kept-plain}"
    config.write_text(f"brokers: [kept-broker]\nqueues:\n  - {definition}\n")
    short = {"retention.ms": "3600000"}
    inputs = ["kept.publish", "kept.commands", "kept.journal", "kept-plain", "kept-broker.steps"]
    others = ["kept.deliveries", "kept.receipts", "kept-unused"]
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    topics = [NewTopic(name, 1, 1, topic_configs=short) for name in [*inputs, *others]]
    admin.create_topics(topics)
    command = ["doctor", "--url", f"kafka://{kafka.bootstrap_servers}", "--config", str(config)]
    result = CliRunner().invoke(main, [*command, "--home", str(tmp_path / "home"), "--json"])
    admin.delete_topics([*inputs, *others])
    admin.close()
    (check,) = (c for c in json.loads(result.stdout) if c["name"] == "retention")
    assert result.exit_code == 1
    assert not check["ok"]
    for name in inputs:
        assert f"{name} " in check["found"]
    for name in others:
        assert name not in check["found"]
    assert "kafka-configs.sh --alter" in check["advice"]
