"""The checks of `lakequeue doctor` on this machine, a home and a deployment: a missing requirement
fails with advice, an optional one never fails. And a failed start of the engine: one sentence with
the remedy, exit status 3."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from click.testing import CliRunner
from job.processes import until
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from lakequeue.cli import deployment_checks, engine_checks, main
from lakequeue.cli import machine_checks as doctor
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
from lakequeue.cli.group import EXIT_ENVIRONMENT
from lakequeue.cli.machine_checks import Check, diagnose
from lakequeue.client.kafka import open_kafka
from lakequeue.definitions import parse_configuration
from lakequeue.monitor.broker_status import _ask_known
from lakequeue.protocol import folders
from lakequeue.streaming.broker_query import FAILED, RESTARTING, RUNNING, BrokerQuery, BrokerRecords
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka, free_port
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.spark.spark_session import slots
from lakequeue.streaming.version import code_version

GIB = 1024**3


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_this_machine(tmp_path: Path) -> None:
    checks = by_name(diagnose(tmp_path))
    for name in ("Python", "pyspark", "delta-spark", "kafka-python", "pyarrow", "home"):
        assert checks[name].ok, checks[name]
    assert {"Java", "jars", "free disk", "memory", "cores", "free port"} <= set(checks)


def test_every_failure_has_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "empty"))
    checks = by_name(diagnose("/proc/nowhere"))
    assert {name for name, check in checks.items() if not check.ok} >= {"Java", "jars"}
    assert all(check.advice for check in checks.values() if not check.ok)
    assert "Java 17 or newer is needed" in checks["Java"].advice


def test_doctor_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEQUEUE_CACHE", str(tmp_path / "cache"))
    diagnose(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("check", "ok"),
    [
        (doctor.python_check((3, 10, 9)), False), (doctor.python_check((3, 11, 0)), True),
        (doctor.python_check((3, 13, 1)), True), (doctor.memory_check(2 * GIB), False),
        (doctor.memory_check(8 * GIB), True), (doctor.memory_check(None), True),
        (doctor.cores_check(1), True),
        (doctor.package_check("no-such-distribution", "1", ""), False),
        (doctor.package_check("pyspark", "4.2.0", "4.2.1"), True),
        (doctor.package_check("pyspark", "4.3", ""), False),
        (doctor.package_check("pyspark", "3.5", "4"), False),
    ],
)  # fmt: skip
def test_limits(check: Check, ok: bool) -> None:
    assert check.ok is ok
    assert check.ok or check.advice


# ------------------------------------------------------------ a home, and Kafka's retention


CAPTURES = {"underlying_topic": "sensor-.*", "default_publish_target": "sensor-1"}
QUEUES = [{"name": "orders", "message_type": "text"},
          {"name": "all", "message_type": "text", **CAPTURES}]  # fmt: skip
CONFIGURATION = parse_configuration({"queues": QUEUES})
HOUR = 3_600_000


@pytest.fixture
def home(tmp_path: Path, live: Any) -> Path:
    """A home in which an engine ran."""
    return live(tmp_path / "home").path


def test_doctor_checks_a_home_and_its_checkpoint(home: Path, tmp_path: Path) -> None:
    assert engine_checks.whole_home_check(home).ok
    assert engine_checks.whole_home_check(tmp_path / "none").ok
    shutil.rmtree(home / "checkpoint")
    before = sorted(home.rglob("*"))
    check = engine_checks.whole_home_check(home)
    assert not check.ok
    assert "checkpoint is gone" in check.found
    assert "backup" in check.advice
    assert sorted(home.rglob("*")) == before
    (home / "lakequeue.json").write_text("{")
    assert not engine_checks.whole_home_check(home).ok


def test_doctor_shows_where_a_homes_parts_are(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine_checks.places_checks(home) == [], "everything is in it"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folders._s3.cache_clear()
    HomeFolder(tmp_path / "other", "s3a://lake/tables", str(tmp_path / "checks")).open()
    found = engine_checks.places_checks(tmp_path / "other")
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
    assert engine_checks.slots_check("local[3]", brokers=2).ok
    check = engine_checks.slots_check("local[2]", brokers=2)
    assert not check.ok
    assert "local[3]" in check.advice
    unknown = engine_checks.slots_check("yarn", brokers=2)
    assert (unknown.ok, unknown.required) == (True, False)


def test_which_topics_are_inputs() -> None:
    log = f"{CONFIGURATION.brokers[0]}.steps"
    inputs = {"default.publish", "default.commands", "default.journal", "orders", "sensor-1"}
    others = {"other.publish", "unused", "__consumer_offsets", "broker-9.steps"}
    assert deployment_checks.input_topics({log, *inputs, *others}, CONFIGURATION, None) == (
        inputs,
        {log},
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, ""),
        ({"retention.ms": str(168 * HOUR), "retention.bytes": "-1"}, ""),
        ({"retention.ms": "-1"}, ""),
        ({"retention.ms": str(HOUR)}, "t keeps 1 h"),
        ({"retention.ms": "60000"}, "t keeps 0.0167 h (retention.ms=60000)"),
        ({"retention.bytes": "1000"}, "t keeps only 1,000 bytes"),
        ({"cleanup.policy": "compact,delete"}, "t is compacted"),
    ],
)
def test_input_topics_are_kept_long_enough(settings: dict[str, str], problem: str) -> None:
    assert deployment_checks.input_problem("t", settings).startswith(problem)
    assert bool(deployment_checks.input_problem("t", settings)) is bool(problem)


def test_only_the_engine_may_trim_a_log() -> None:
    good = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    assert deployment_checks.log_problem("t", good) == ""
    assert "retention.ms=5" in deployment_checks.log_problem("t", {**good, "retention.ms": "5"})
    assert "compact" in deployment_checks.log_problem("t", {**good, "cleanup.policy": "compact"})


def test_an_unreachable_kafka_is_reported_by_doctor() -> None:
    (check,) = deployment_checks.deployment_checks("127.0.0.1:1", None, None, "default", False)
    assert (check.name, check.ok) == ("retention", False)
    assert "127.0.0.1:1" in check.advice


def asked(config: Path, url: str, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit status of the command, and its checks by name."""
    command = ["doctor", "--url", url, "--config", str(config), "--json", *more]
    done = CliRunner().invoke(main, command)
    return done.exit_code, {check["name"]: check for check in json.loads(done.stdout)}


@pytest.mark.job
def test_doctor_names_every_input_with_too_short_a_retention(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The engine's topics, captured ones, the tables' journal, and the log; the exit status shows
    it too."""
    config = tmp_path / "queues.yaml"
    definition = "{name: q, vpn: kept, message_type: text, underlying_topic: kept-plain}"
    config.write_text(f"brokers: [kept-broker]\nqueues:\n  - {definition}\n")
    short = {"retention.ms": "3600000"}
    inputs = {"kept.publish", "kept.commands", "kept.journal", "kept-plain", "kept-broker.steps"}
    all_of_them = [*inputs, "kept.deliveries", "kept.receipts", "kept-unused"]
    url = f"kafka://{kafka.bootstrap_servers}"
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        admin.create_topics([NewTopic(name, 1, 1, topic_configs=short) for name in all_of_them])
        status, checks = asked(config, url, "--home", str(tmp_path / "home"))
        admin.delete_topics(all_of_them)
    check = checks["retention"]
    assert (status, check["ok"]) == (1, False)
    assert {name for name in all_of_them if f"{name} " in check["found"]} == inputs
    assert "kafka-configs.sh --alter" in check["advice"]


# ------------------------------------------------------------ a deployment


BIG = {"max.message.bytes": "12000000", "min.insync.replicas": "2"}
ALL = frozenset(("READ", "WRITE", "DESCRIBE"))


def topics(**changes: Any) -> dict[str, TopicLook]:
    """The topics of two brokers with correct settings, on a Kafka of three; some changed."""
    sizes = {"publish": 16, "commands": 2, "deliveries": 8, "receipts": 8, "directory": 1}
    good = {f"default.{kind}": TopicLook(n, 3, BIG, ALL) for kind, n in sizes.items()}
    return good | {"a.steps": TopicLook(1, 3, BIG), "else": TopicLook(1, 1)} | changes


def checked(found: dict[str, TopicLook], brokers: int = 3, **more: Any) -> dict[str, Check]:
    return by_name(kafka_checks(KafkaLook(found, brokers, **more), {"default"}, 2))


@pytest.mark.parametrize(
    ("topic", "wrong", "check", "said"),
    [
        ("default.commands", TopicLook(1, 3, BIG, ALL), "partitions", "default.commands has 1"),
        ("default.publish", TopicLook(8, 3, BIG, ALL), "partitions", "default.publish has 8"),
        ("default.receipts", TopicLook(8, 3, BIG | {"max.message.bytes": "1048588"}, ALL),
         "record size", "default.receipts accepts 1,048,588"),
        ("a.steps", TopicLook(1, 3, BIG | {"max.message.bytes": "5"}), "record size", "a.steps"),
        ("a.steps", TopicLook(1, 1, BIG), "copies",
         "a.steps has 1 replicas, min.insync.replicas=2"),
        ("a.steps", TopicLook(1, 3, BIG | {"min.insync.replicas": "3"}), "copies", "has 3 r"),
        ("a.steps", TopicLook(1, 3, BIG | {"min.insync.replicas": "1"}), "copies", "replicas=1"),
        ("default.deliveries", TopicLook(8, 3, BIG, frozenset(("WRITE",))), "rights",
         "no READ on default.deliveries"),
    ],
)  # fmt: skip
def test_faults_of_a_deployment_are_named(
    topic: str, wrong: TopicLook, check: str, said: str
) -> None:
    checks = checked(topics(**{topic: wrong}))
    assert {name for name, one in checks.items() if not one.ok} == {check}
    assert said in checks[check].found
    assert checks[check].advice


def test_a_full_disk_and_facts_that_kafka_does_not_report() -> None:
    full = checked(topics(), free={1: 10 * KAFKA_DISK_BYTES_MIN, 2: 1_000_000})["Kafka's disk"]
    assert (full.ok, "broker 2: 0.0 GB" in full.found) == (False, True)
    silent = checked({name: TopicLook(t.partitions, 3, BIG) for name, t in topics().items()})
    assert silent["rights"].found == silent["Kafka's disk"].found == "Kafka does not report it"
    alone = checked(topics(), brokers=1)["copies"]
    assert (alone.ok, alone.required, "three copies" in alone.advice) == (True, False, True)


def test_one_broker_reads_all_partitions() -> None:
    few = {name: TopicLook(1, 3, BIG, ALL) for name in topics()}
    assert by_name(kafka_checks(KafkaLook(few, 3), {"default"}, 1))["partitions"].ok


@pytest.mark.parametrize(("age_s", "advised"), [(3_000.0, False), (4_000.0, True)])
def test_messages_older_than_kafkas_retention_bring_advice(age_s: float, advised: bool) -> None:
    hour = {"default.publish": TopicLook(8, 3, {"retention.ms": "3600000"})}
    check = oldest_check(KafkaLook(hour), "default", {"orders": age_s, "new": 1.0})
    assert (check.ok, bool(check.advice)) == (True, advised)
    assert ("orders have older" in check.advice) is advised
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


def test_brokers_that_are_not_running_are_named_with_the_reason() -> None:
    """As the directory reports them: one that hangs (`step_watch`), one whose restarts were given
    up."""
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
    assert look.silent == "Broker a is restarting: no step for 30 s", "the page's text"


HERE = "0.1.0+aa"


@pytest.mark.parametrize(
    ("engine", "ok", "found", "advice"),
    [
        ({"version": "0.1.0", "code": HERE}, True, None, ""),
        ({"version": "0.2.0", "code": "0.2.0+bb"}, False, "engine 0.2.0+bb", "Install 0.2.0 here"),
        # After an upgrade without a restart of the engine: a client may differ.
        ({"version": "0.1.0", "code": "0.1.0+bb"}, True, "engine 0.1.0+bb", "restart it"),
        ({"version": "0.1.0"}, True, "engine 0.1.0", ""),  # it does not report its code yet
        ({}, True, None, ""),
    ],
    ids=["the same", "another", "another build", "an old one", "unknown"],
)
def test_versions(engine: dict[str, str], ok: bool, found: str | None, advice: str) -> None:
    check = versions_check(engine, HERE)
    assert check.ok is ok
    assert found is None or check.found == f"{found}, here {HERE}"
    assert advice in check.advice
    assert bool(check.advice) is bool(advice)


@pytest.mark.job
def test_doctor_with_a_real_kafka_and_an_engines_reports(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Kafka's answers are understood, and so is an engine of another version and clock."""
    address = kafka.bootstrap_servers
    ensure_topics(address, ["default"], [], ["a"])
    # A busy Kafka takes a moment before it shows the settings of a new topic.
    until(lambda: look_at_kafka(address).topics["default.publish"].settings, 30, "settings")
    look = look_at_kafka(address)
    assert look.brokers == 1
    assert look.topics["default.publish"].settings["max.message.bytes"] == "12000000"
    assert (look.topics["default.publish"].partitions, look.topics["a.steps"].replicas) == (8, 1)
    assert min(look.free.values()) > 0
    (tmp_path / "queues.yaml").write_text("brokers: [a, b]\n")
    over = threading.Event()
    with closing(open_kafka(address, "engine")) as transport:

        def beat() -> None:
            now = (time.time() - 90) * 1_000
            about = {"host": "h", "process": 1, "version": "9.9", "time": now}
            while not over.wait(0.3):
                transport.command("default.engine", b"engine", json.dumps(about).encode())

        beats = threading.Thread(target=beat)
        beats.start()
        status, found = asked(tmp_path / "queues.yaml", address)
        over.set()
        beats.join()
    assert found["engine"]["ok"]
    assert found["clocks"]["found"].endswith("s ahead of the engine's")
    assert found["versions"]["found"] == f"engine 9.9, here {code_version()}"
    assert found["partitions"]["found"] == "default.commands has 1; default.publish has 8"
    assert found["record size"]["ok"]
    assert status == 1


def test_a_queue_with_a_missing_captured_topic_is_named() -> None:
    """A topic to which clients publish need not exist in Kafka."""
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


def test_a_running_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = lakequeue.connect
    with connect("memory://") as engine:
        engine.admin().define({"name": "q", "message_type": "json", "underlying_topic": "gone"})

        def open_one(url: str, **given: Any) -> Any:
            return nullcontext(engine) if url == "kafka://there:9092" else connect(url, **given)

        monkeypatch.setattr("lakequeue.connect", open_one)
        monkeypatch.setattr(deployment_checks, "look_at_kafka", lambda _: KafkaLook(topics()))
        found = deployment_checks.deployment_checks("there:9092", None, None, "default", True)
    ok = {one.name: one.ok for one in found}
    assert ok["brokers"]
    assert ok["oldest message"]
    assert not ok["captured topics"]


# ------------------------------------------------------------ the engine's start


CONFIG = "queues:\n  - {name: orders, message_type: json}\n"


@pytest.fixture
def listener() -> Iterator[int]:
    """A port with a silent listener, which may be taken for Kafka."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        yield server.getsockname()[1]


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """The one sentence with which a start of the home ends, with the right exit status."""
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)

    def start(*arguments: object) -> str:
        places = ("--home", str(tmp_path / "home"), "--config", str(config))
        done = CliRunner().invoke(main, [*map(str, arguments), *places])
        assert done.exit_code == EXIT_ENVIRONMENT == 3, done.output
        assert "Traceback" not in done.output
        assert "should not have happened" not in done.output
        progress = ("Starting", "starting", "waiting", "Fetching")
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        (sentence,) = [line for line in lines if not line.startswith(progress)]
        return sentence

    return start


def test_a_start_without_kafka_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    said = refused("run", "--bootstrap", address)
    assert address in said
    assert "--bootstrap" in said
    assert not (tmp_path / "home").exists(), "nothing was started"


def test_a_start_without_java_is_refused(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    said = refused("up", "--port", 0)
    assert "Java" in said
    assert "install" in said


def test_a_start_on_a_taken_port_is_refused(refused: Callable[..., str], listener: int) -> None:
    said = refused("up", "--port", listener)
    assert str(listener) in said
    assert "another port" in said
