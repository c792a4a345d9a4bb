"""`lakequeue doctor` on a deployment: topics, copies, rights, room, clocks, versions."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from click.testing import CliRunner
from lakequeue.cli import deployment_checks, main
from lakequeue.cli.deployment_checks import (
    CLOCKS_S_MAX,
    KAFKA_DISK_BYTES_MIN,
    KafkaLook,
    TopicLook,
    captured_check,
    clocks_check,
    kafka_checks,
    look_at_kafka,
    oldest_check,
    states_check,
    versions_check,
)
from lakequeue.cli.machine_checks import Check
from lakequeue.monitor.broker_status import _ask_known
from lakequeue.streaming.broker_query import FAILED, RESTARTING, RUNNING, BrokerQuery, BrokerRecords
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.version import code_version

BIG = {"max.message.bytes": "12000000", "min.insync.replicas": "2"}
ALL = frozenset(("READ", "WRITE", "DESCRIBE"))


def topics(**changes: Any) -> dict[str, TopicLook]:
    """The topics of two brokers as they should be, on three of Kafka's; some changed."""
    sizes = {"publish": 16, "commands": 2, "deliveries": 8, "receipts": 8, "directory": 1}
    good = {f"default.{kind}": TopicLook(n, 3, BIG, ALL) for kind, n in sizes.items()}
    return good | {"a.steps": TopicLook(1, 3, BIG), "else": TopicLook(1, 1)} | changes


def checked(found: dict[str, TopicLook], brokers: int = 3, **more: Any) -> dict[str, Check]:
    return {c.name: c for c in kafka_checks(KafkaLook(found, brokers, **more), {"default"}, 2)}


def test_a_good_deployment() -> None:
    checks = checked(topics(), free={1: 10 * KAFKA_DISK_BYTES_MIN})
    assert [check for check in checks.values() if not check.ok or check.advice] == []


@pytest.mark.parametrize(
    ("topic", "wrong", "check", "said"),
    [
        ("default.commands", TopicLook(1, 3, BIG, ALL), "partitions", "default.commands has 1"),
        ("default.publish", TopicLook(8, 3, BIG, ALL), "partitions", "default.publish has 8"),
        ("default.receipts", TopicLook(8, 3, BIG | {"max.message.bytes": "1048588"}, ALL),
         "record size", "default.receipts takes 1,048,588"),
        ("a.steps", TopicLook(1, 3, BIG | {"max.message.bytes": "5"}), "record size", "a.steps"),
        ("a.steps", TopicLook(1, 1, BIG), "copies",
         "a.steps has 1 replicas, min.insync.replicas=2"),
        ("a.steps", TopicLook(1, 3, BIG | {"min.insync.replicas": "3"}), "copies", "has 3 r"),
        ("a.steps", TopicLook(1, 3, BIG | {"min.insync.replicas": "1"}), "copies", "replicas=1"),
        ("default.deliveries", TopicLook(8, 3, BIG, frozenset(("WRITE",))), "rights",
         "no READ on default.deliveries"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(topic: str, wrong: TopicLook, check: str, said: str) -> None:
    checks = checked(topics(**{topic: wrong}))
    assert {name for name, one in checks.items() if not one.ok} == {check}
    assert said in checks[check].found
    assert checks[check].advice


def test_a_full_disk_and_what_kafka_does_not_tell() -> None:
    full = checked(topics(), free={1: 10 * KAFKA_DISK_BYTES_MIN, 2: 1_000_000})["Kafka's disk"]
    assert (full.ok, "broker 2: 0.0 GB" in full.found) == (False, True)
    silent = checked({name: TopicLook(t.partitions, 3, BIG) for name, t in topics().items()})
    assert silent["rights"].found == silent["Kafka's disk"].found == "Kafka does not say"
    alone = checked(topics(), brokers=1)["copies"]
    assert (alone.ok, alone.required, "Three" in alone.advice) == (True, False, True)


def test_one_broker_reads_all_partitions() -> None:
    few = {name: TopicLook(1, 3, BIG, ALL) for name in topics()}
    (check,) = (
        c for c in kafka_checks(KafkaLook(few, 3), {"default"}, 1) if c.name == "partitions"
    )
    assert check.ok


@pytest.mark.parametrize(("age_s", "advised"), [(3_000.0, False), (4_000.0, True)])
def test_messages_that_are_older_than_what_kafka_keeps(age_s: float, advised: bool) -> None:
    hour = {"default.publish": TopicLook(8, 3, {"retention.ms": "3600000"})}
    check = oldest_check(KafkaLook(hour), "default", {"orders": age_s, "new": 1.0})
    assert (check.ok, bool(check.advice)) == (True, advised)
    assert ("orders hold older" in check.advice) is advised
    for_ever = {"default.publish": TopicLook(8, 3, {"retention.ms": "-1"})}
    assert not oldest_check(KafkaLook(for_ever), "default", {"orders": age_s}).advice


@pytest.mark.parametrize(
    ("apart_s", "ok", "said"),
    [(0.3, True, "0.3 s apart"), (CLOCKS_S_MAX + 1, False, "6.0 s ahead of the engine's"),
     (-60.0, False, "60.0 s behind the engine's")],
)  # fmt: skip
def test_clocks(apart_s: float, ok: bool, said: str) -> None:
    check = clocks_check({"time": 1_000_000}, 1_000 + apart_s)
    assert (check.ok, check.found, bool(check.advice)) == (ok, said, not ok)
    assert clocks_check({}).ok


def test_brokers_that_do_not_run_are_named_with_the_reason() -> None:
    """As the directory has them: of one that hangs (`step_watch`), one that was given up."""
    said: dict[str, dict[str, Any]] = {}
    records = BrokerRecords(
        lambda key, value: said.update({key.decode(): json.loads(value or b"{}")})
    )
    hangs, failed, good = (BrokerQuery(name, n) for n, name in enumerate("abc"))
    hangs.hangs, failed.failure = "no step for 30 s", "its log is gone"
    for broker, state in ((hangs, RESTARTING), (failed, FAILED), (good, RUNNING)):
        records.state(broker, state)
    brokers = [{"name": key.removeprefix("broker/"), **one} for key, one in said.items()]
    check = states_check(brokers)
    wanted = "a is restarting (no step for 30 s); b is failed (its log is gone)"
    assert (check.ok, check.found, bool(check.advice)) == (False, wanted, True)
    assert (states_check(brokers[2:]).ok, states_check(brokers[2:]).found) == (True, "1 run")
    look = _ask_known(None, brokers[0], 0)
    assert look.silent == "Broker a is restarting: no step for 30 s", "what the page says"


def test_versions() -> None:
    same = versions_check({"version": "0.1.0", "code": "0.1.0+aa"}, "0.1.0+aa")
    assert (same.ok, same.advice) == (True, "")
    check = versions_check({"version": "0.2.0", "code": "0.2.0+bb"}, "0.1.0+aa")
    assert (check.ok, check.found) == (False, "engine 0.2.0+bb, here 0.1.0+aa")
    assert "Install 0.2.0 here" in check.advice
    older = versions_check({"version": "0.1.0"}, "0.1.0+aa")  # from before it told its code
    assert (older.ok, older.found, older.advice) == (True, "engine 0.1.0, here 0.1.0+aa", "")
    assert versions_check({}).ok


def test_another_build_of_the_same_release_is_told() -> None:
    """As behind an upgrade whose engine was not started again: no failure, a client may differ."""
    check = versions_check({"version": "0.1.0", "code": "0.1.0+bb"}, "0.1.0+aa")
    assert (check.ok, check.found) == (True, "engine 0.1.0+bb, here 0.1.0+aa")
    assert "restart it" in check.advice


@pytest.mark.job
def test_on_a_real_kafka_and_with_an_engines_words(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """What Kafka tells is understood; an engine of another version and clock is heard."""
    import threading

    from lakequeue.client.kafka import open_kafka
    from lakequeue.streaming.kafka.topics_admin import ensure_topics

    ensure_topics(kafka.bootstrap_servers, ["default"], [], ["a"])
    look = look_at_kafka(kafka.bootstrap_servers)
    assert look.brokers == 1
    assert look.topics["default.publish"].settings["max.message.bytes"] == "12000000"
    assert (look.topics["default.publish"].partitions, look.topics["a.steps"].replicas) == (8, 1)
    assert min(look.free.values()) > 0
    over, transport = threading.Event(), open_kafka(kafka.bootstrap_servers, "engine")

    def beat() -> None:
        about = {"host": "h", "process": 1, "version": "9.9", "time": (time.time() - 90) * 1_000}
        while not over.wait(0.3):
            transport.command("default.engine", b"engine", json.dumps(about).encode())

    beats = threading.Thread(target=beat)
    beats.start()
    (tmp_path / "queues.yaml").write_text("brokers: [a, b]\n")
    command = ["doctor", "--url", kafka.bootstrap_servers, "--json", "--config"]
    done = CliRunner().invoke(main, [*command, str(tmp_path / "queues.yaml")])
    over.set()
    beats.join()
    transport.close()
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert found["engine"]["ok"]
    assert found["clocks"]["found"].endswith("s ahead of the engine's")
    assert found["versions"]["found"] == f"engine 9.9, here {code_version()}"
    assert found["partitions"]["found"] == "default.commands has 1; default.publish has 8"
    assert found["record size"]["ok"]
    assert done.exit_code == 1


def test_a_queue_whose_captured_topic_is_not_there() -> None:
    """A topic to which clients publish need not be in Kafka."""
    queues = [
        {"name": name, "definition": {"underlying_topic": topic}, "alerts": alerts,
         "counters": {"spooled": spooled}}
        for name, topic, spooled, alerts in (
            ("own", "own", 0, []), ("all", "flights.*", 0, []), ("late", "flights", 0, []),
            ("sent", "gone", 5, []), ("x", "gone", 0, []), ("y", "gone", 5, ["topic_missing"]),
        )
    ]  # fmt: skip
    found = captured_check(KafkaLook({"flights": TopicLook(1, 1)}), queues)
    assert (found.ok, found.found) == (False, "x captures gone; y captures gone")
    assert captured_check(KafkaLook({"flights": TopicLook(1, 1)}), queues[:4]).ok


def test_an_engine_that_lives_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = lakequeue.connect
    with connect("memory://") as engine:
        engine.admin().define({"name": "q", "message_type": "json", "underlying_topic": "gone"})

        def open_one(url: str, **given: Any) -> Any:
            return nullcontext(engine) if url == "kafka://there:9092" else connect(url, **given)

        monkeypatch.setattr("lakequeue.connect", open_one)
        monkeypatch.setattr(deployment_checks, "look_at_kafka", lambda _: KafkaLook(topics()))
        found = deployment_checks.deployment_checks("there:9092", {"default"}, 1, "default", True)
    wrong = {one.name: one.ok for one in found}
    assert [wrong[name] for name in ("brokers", "oldest message", "captured topics")] == [
        True, True, False,
    ]  # fmt: skip
