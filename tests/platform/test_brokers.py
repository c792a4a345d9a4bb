"""Several brokers, without Spark: numbers, shares of topics, and what ends one of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from job.processes import until
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from lakequeue.client.kafka import LIBRARIES, open_kafka
from lakequeue.client.session.queue_directory import known_brokers, number_of
from lakequeue.definitions import Configuration, parse_configuration
from lakequeue.protocol import ConfigError, topics
from lakequeue.protocol.commands import (
    Begin,
    Clients,
    Configure,
    ExistingTopics,
    Peers,
    decode_command,
)
from lakequeue.protocol.errors import LakequeueError, NotConnected
from lakequeue.sources.live import own_places
from lakequeue.streaming import EmbeddedKafka, Engine
from lakequeue.streaming import restarts as supervision
from lakequeue.streaming.broker_query import FAILED, RUNNING, BrokerQuery, broker_of, query_name
from lakequeue.streaming.brokers import change_requests
from lakequeue.streaming.brokers.change_requests import ChangeRequests, await_partition
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.spark.spark_session import check_slots, default_master, slots
from lakequeue.streaming.watch import query_watch as engine_watch

NOBODY = "127.0.0.1:1"
THREE = parse_configuration({"brokers": ["a", "b", "c"]})


# ---------------------------------------------------------------- numbers


def test_a_number_is_given_once(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    assert home.brokers(["a", "b"]) == {"a": 0, "b": 1}
    assert home.numbers == 0  # nothing is written before it is remembered
    home.remember_brokers({"a": 0, "b": 1})
    assert home.brokers(["b", "c", "a"]) == {"a": 0, "b": 1, "c": 2}
    home.remember_brokers({"a": 0, "c": 2})
    assert home.brokers(["a", "b", "c"]) == {"a": 0, "c": 2, "b": 3}
    assert home.brokers(Configuration().brokers) == {"a": 0, "c": 2}  # none is named


def test_a_broker_stays_in_its_group(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    assert home.groups({"a": "east"}, ["a", "b"]) == {"a": "east"}
    home.remember_brokers({"a": 0, "b": 1}, {"a": "east"})
    home.remember_brokers({"a": 0, "b": 1})
    assert home.groups({}, ["a", "b"]) == {"a": "east"}  # the configuration says none
    assert home.groups({"a": "east", "c": "west"}, ["a", "c"]) == {"a": "east", "c": "west"}
    for name, was in (("a", "in group 'east'"), ("b", "in no group")):
        with pytest.raises(LakequeueError, match=f"broker '{name}': group 'west' – it is {was}"):
            home.groups({name: "west"}, ["a", "b"])


def test_a_home_of_one_broker_keeps_it(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open("real-time")
    place = tmp_path / "checkpoint" / "west"
    place.mkdir(parents=True)
    (place / "metadata").write_text('{"id": "one"}')
    home.remember_checkpoints()
    assert home.brokers(["west"]) == {"west": 0}
    assert home.brokers(["east"]) == {"west": 0, "east": 1}  # what is in it goes on
    assert home.brokers(Configuration().brokers) == {"west": 0}


def test_M4_a_configuration_adds_no_broker_to_a_home(tmp_path: Path) -> None:
    """Whoever is new there would know of no queue. The first start makes all that are named."""

    def named(*names: str) -> Engine:
        engine = Engine("127.0.0.1:9", tmp_path, Configuration(brokers=names))
        engine._folder.open(engine.trigger)
        engine._number_brokers()
        return engine

    first = named("a", "b")
    first._folder.remember_brokers({name: b.number for name, b in first.brokers.items()})
    first._folder.remember_checkpoints()
    assert list(named("a").brokers) == ["a", "b"]
    with pytest.raises(LakequeueError, match=r"'c' – the home .* has 'a', 'b': start .* --add"):
        named("a", "b", "c")


def test_micro_batches_are_for_one_broker(tmp_path: Path) -> None:
    batches = {"lakequeue.trigger": "micro-batch"}
    with pytest.raises(ConfigError, match=r"runs one broker, but there are 3: 'a', 'b', 'c'"):
        Engine(NOBODY, tmp_path, THREE, settings=batches)
    for end in ("from", "to"):
        ends = {"from": "broker-0", "to": "broker-0"} | {end: "kafka://far:9092"}
        far = parse_configuration({"bridges": [{"name": "out", "subscriptions": ["a/>"], **ends}]})
        with pytest.raises(ConfigError, match=r"serves no bridge to another Kafka: 'out'"):
            Engine(NOBODY, tmp_path, far, settings=batches)
    home = HomeFolder(tmp_path)
    home.open("micro-batch")
    home.remember_brokers({"a": 0, "b": 1})
    engine = Engine(NOBODY, tmp_path, Configuration(), settings=batches)
    with pytest.raises(ConfigError, match=r"there are 2: 'a', 'b'"):
        engine.start()


# ---------------------------------------------------------------- slots, names


def test_every_broker_has_a_slot() -> None:
    assert slots(default_master(1)) == 4
    assert slots(default_master(64)) == 65
    check_slots("local[5]", 4, True)
    check_slots("local[4]", 4, False)
    check_slots("spark://host:7077", 4, True)  # only the cluster knows
    with pytest.raises(LakequeueError, match=r"4 tasks .* 4 brokers and the tables need 5"):
        check_slots("local[4]", 4, True)


# ---------------------------------------------------------------- topics


def test_each_reads_its_own_partitions() -> None:
    sizes = {"v.commands": 2, "v.publish": 12, "a.mesh": 1, "b.mesh": 1}
    assert own_places(sizes, ["v"], "b", 1, alone=False) == [
        ("b.mesh", 0), ("v.commands", 1), *(("v.publish", p) for p in range(8, 12)),
    ]  # fmt: skip
    assert own_places(sizes, ["v"], "c", 2, alone=False) == []
    alone = own_places({"v.commands": 2, "v.publish": 12}, ["v"], "a", 0, alone=True)
    assert len(alone) == 14  # others' programs may have made these topics


@pytest.mark.job
def test_a_broker_more_is_partitions_more(kafka: EmbeddedKafka) -> None:
    address, vpn = kafka.bootstrap_servers, "grows"
    sizes = ensure_topics(address, [vpn], [], ["g-a"])
    assert (sizes["grows.commands"], sizes["grows.publish"]) == (1, 8)
    assert "g-a.mesh" not in sizes
    for before in (1, 3):
        sizes = ensure_topics(address, [vpn], [], ["g-a", "g-b"], count=3, before=before)
        assert (sizes["grows.commands"], sizes["grows.publish"], sizes["g-b.mesh"]) == (3, 24, 1)
    transport = open_kafka(address, "grows")
    await_partition(transport, "grows.publish", 23)  # a Kafka with much to do takes a moment
    transport.close()
    with pytest.raises(LakequeueError, match=r"'grows\.publish' has 24 partitions.* share 16"):
        ensure_topics(address, [vpn], [], ["g-a", "g-b"], count=2, before=2)
    with pytest.raises(LakequeueError, match=r"'grows\.publish' has 24 partitions.* share 16"):
        ensure_topics(address, [vpn], [], ["g-a", "g-b"], count=4, before=2)


class LateTopic:
    """A `Transport` that says this, one after the other, of a topic's partitions."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    def partitions(self, topic: str) -> int:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NotConnected(f"topic {topic!r} does not exist")
        return answer


def test_a_topic_that_was_just_made_may_not_be_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine makes dozens at its first start; Kafka's brokers hear of them when they come to
    it."""
    late: Any = LateTopic(None, None, 1, 2)
    await_partition(late, "v.commands", 1)
    assert late.answers == [2]
    monkeypatch.setattr(change_requests, "ASK_S_MAX", 0.0)
    for answer, said in ((None, "topic 'v.commands' does not exist"), (1, "partition 1 of topic")):
        never: Any = LateTopic(answer)
        with pytest.raises(NotConnected, match=said):
            await_partition(never, "v.commands", 1)


@pytest.mark.job
def test_X4_what_is_published_has_kafkas_time(kafka: EmbeddedKafka) -> None:
    """Also where the topic was there before: soon, for Kafka takes over a setting when it comes to
    it."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics([NewTopic("timed.publish", 8, 1, topic_configs={"retention.ms": "9000"})])
    ensure_topics(kafka.bootstrap_servers, ["timed"], [], ["t-a"])
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    until(
        lambda: producer.send("timed.publish", b"{}", timestamp_ms=1).get(30).timestamp > 10**12,
        10, "it has Kafka's time",
    )  # fmt: skip
    producer.close()
    topic = ConfigResource(ConfigResourceType.TOPIC, "timed.publish")
    assert "9000" in str(admin.describe_configs([topic])), "what else is set stays"
    admin.close()


@pytest.mark.job
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_of_kafka_learns_of_new_partitions(kafka: EmbeddedKafka, library: str) -> None:
    """The engine's own: it wrote to the topic when that had fewer."""
    vpn = f"learns-{library}"
    topic = topics.topic(vpn, topics.COMMANDS)
    ensure_topics(kafka.bootstrap_servers, [vpn], [])
    transport = open_kafka(kafka.bootstrap_servers, "learns", library)
    try:
        transport.command(topic, b"engine", b"1")
        assert transport.flush(10)
        ensure_topics(kafka.bootstrap_servers, [vpn], [], count=2, before=1)
        await_partition(transport, topic, 1)
        transport.listen(topic, 1)
        transport.command(topic, b"engine", b"2", 1)
        assert transport.flush(10)
        (record,) = transport.poll(10)
        assert (record.partition, record.value) == (1, b"2")
    finally:
        transport.close()


@pytest.mark.job
def test_clients_find_a_broker_by_its_name(kafka: EmbeddedKafka) -> None:
    vpn = "find"
    ensure_topics(kafka.bootstrap_servers, [vpn], [])
    transport = open_kafka(kafka.bootstrap_servers, "find")
    try:
        assert known_brokers(transport, vpn) == []
        topic = topics.topic(vpn, topics.DIRECTORY)
        for key, value in (
            ("broker/b", {"number": 1}), ("broker/c", {"number": 2}), ("queue/q", {}),
            ("broker/a", {"number": 0, "state": "running"}), ("broker/c", None),
        ):  # fmt: skip
            written = None if value is None else json.dumps(value).encode()
            transport.publish(topic, written, key.encode(), [], 0)
        transport.flush(5)
        known = known_brokers(transport, vpn)
        assert [(b["name"], b["number"], b["state"]) for b in known] == [
            ("a", 0, "running"), ("b", 1, ""),
        ]  # fmt: skip
        assert number_of("b", known) == 1
        with pytest.raises(
            ConfigError, match=r"'c' – there is no such broker; the brokers are 'a', 'b'"
        ):
            number_of("c", known)
    finally:
        transport.close()


# ---------------------------------------------------------------- what ends one of them


class Query:
    """A query, as Spark shows it."""

    def __init__(self, name: str, reason: str = "") -> None:
        self.name, self._reason = name, reason

    @property
    def isActive(self) -> bool:
        return not self._reason

    def exception(self) -> str:
        return self._reason


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Three brokers that run; nothing of it is real."""
    monkeypatch.setattr(engine_watch, "require_broker", lambda bootstrap: None)
    made = Engine(NOBODY, tmp_path, THREE)
    made._folder.open(made.trigger)

    def start(broker: BrokerQuery) -> None:
        broker.query = Query(query_name(broker.name, False))

    monkeypatch.setattr(made.application, "start_query", start)
    monkeypatch.setattr(made.captured, "ask", lambda timeout_s: made.captured.unasked.clear())
    for broker in made.brokers.values():
        start(broker)
    return made


def fail(engine: Engine, broker: str, reason: str) -> None:
    engine.brokers[broker].query = Query(f"lakequeue:{broker}", reason)


def test_a_broker_that_is_refused_leaves_the_others_alone(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    others = engine.brokers["a"].query, engine.brokers["c"].query
    fail(engine, "b", "x\nlakequeue.replica.driver.Refused: its log was cut")
    engine.watch.look_after()
    assert engine.brokers["b"].failure == "its log was cut"
    assert engine.brokers["b"].state == FAILED
    assert "broker 'b' stays stopped, the others go on: its log was cut" in caplog.text
    engine.watch.look_after()
    assert (engine.brokers["a"].query, engine.brokers["c"].query) == others
    assert [engine.brokers[b].state for b in "ac"] == [RUNNING, RUNNING]
    fail(engine, "a", "Refused: its log was cut too")
    engine.watch.look_after()
    fail(engine, "c", "Refused: and the last one's")
    with pytest.raises(LakequeueError, match="and the last one's"):
        engine.watch.look_after()


def test_no_broker_waits_for_anothers_pause(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has its own count of ends, and its own pauses."""
    monkeypatch.setattr(supervision, "PAUSE_S_MAX", 100.0)
    clock = 1_000.0
    for module in (supervision, engine_watch):
        monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    for _ in range(supervision.RESTARTS_MAX):
        fail(engine, "b", "its worker dies")
        engine.watch.look_after()
        assert not engine.brokers["b"].is_active
        clock += 20.0
        engine.watch.look_after()
        assert engine.brokers["b"].is_active
    fail(engine, "b", "its worker dies")
    fail(engine, "a", "its worker died")
    engine.watch.look_after()
    assert "6th end within 5 minutes" in engine.brokers["b"].failure
    clock += 1.0
    engine.watch.look_after()
    assert engine.brokers["a"].is_active
    assert not engine.brokers["b"].is_active


def test_what_is_told_to_a_broker_stands_where_only_the_engine_writes(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, int, Any]] = []

    class Transport:
        def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
            told.append((topic, partition, decode_command(value)))

        def flush(self, timeout: float) -> bool:
            return True

        def publish(self, *record: Any) -> None:
            pass

        def partitions(self, topic: str) -> int:
            return 3

    engine._transport = Transport()
    for broker in engine.brokers.values():
        engine._begin(broker)
    begun = [at for topic, at, c in told if isinstance(c, Begin) and topic == "default.commands"]
    assert begun == [0, 1, 2]
    peers = {topic: c.brokers for topic, _, c in told if isinstance(c, Peers)}
    brokers = {"a": 0, "b": 1, "c": 2}
    assert peers == {f"{name}.instructions": brokers for name in brokers}
    assert all(topic.endswith(".instructions") or isinstance(c, Begin) for topic, _, c in told)
    first = [type(c) for topic, _, c in told if topic == "b.instructions"][:5]
    # Who may speak is known before all else.
    assert first == [Begin, Clients, ExistingTopics, Peers, Configure]
    told.clear()
    with caplog.at_level(logging.CRITICAL):
        engine._notes("c", "lost:default.publish:3")
    assert [topic for topic, _, _ in told] == ["c.instructions"]


# ---------------------------------------------------------------- a broker more


def test_a_wish_is_answered_under_its_key() -> None:
    added: list[str] = []
    answers: list[tuple[bytes, dict[str, Any]]] = []

    def add(name: str, group: str) -> None:
        if name == "b":
            raise LakequeueError("broker 'b' is there already")
        added.append(name + group)

    removed: list[tuple[str, str]] = []

    def remove(name: str, to: str) -> list[tuple[str, str, str]]:
        removed.append((name, to))
        return [("v", f"q{n}", to) for n in range(1_001 if to else 0)]

    def move(vpn: str, queue: str, to: str) -> list[tuple[str, str, str]]:
        return [(vpn, queue, to)]

    requests = ChangeRequests(
        NOBODY, ["v"], add, lambda key, value: answers.append((key, json.loads(value))), remove,
        move,
    )  # fmt: skip
    requests.read(b"wish/q", b'{"wish": "move", "id": "9", "to": "b"}', "v")
    assert answers.pop() == (b"wish/q", {"id": "9", "done": True, "moved": [["v", "q", "b"]]})
    requests.read(b"wish/a", b'{"wish": "remove", "id": "0"}')
    assert answers.pop() == (b"wish/a", {"id": "0", "done": True, "moved": []})
    requests.read(b"wish/a", b'{"wish": "remove", "id": "0", "to": "b"}')
    moved = answers.pop()[1]["moved"]
    assert (len(moved), moved[-1]) == (1_000, ["v", "q999", "b"])
    assert removed == [("a", ""), ("a", "b")]
    requests.read(b"wish/c", b'{"wish": "add", "id": "1", "group": "-west"}')
    requests.read(b"wish/b", b'{"wish": "add", "id": "2"}')
    requests.read(b"wish/c", b'{"wish": "sing", "id": "3"}')
    assert answers == [
        (b"wish/c", {"id": "1", "done": True}),
        (b"wish/b", {"id": "2", "refused": "broker 'b' is there already"}),
        (
            b"wish/c",
            {"id": "3", "refused": "wish: 'sing' – allowed are 'add', 'move' and 'remove'"},
        ),
    ]
    for key, value in answers:  # it hears itself
        requests.read(key, json.dumps(value).encode())
    for junk in (b"", b"[]", b"{", b'{"wish": "add"}', b"\xff"):
        requests.read(b"wish/d", junk)
    requests.read(b"broker/d", b'{"wish": "add", "id": "4"}')
    requests.read(b"wish/d", None)
    assert len(answers) == 3
    assert added == ["c-west"]


def test_whose_query_it_is() -> None:
    brokers = {name: BrokerQuery(name, i) for i, name in enumerate("ab")}
    assert [broker_of(query_name(b, False), brokers) for b in "ab"] == ["a", "b"]
    assert broker_of(query_name("a", True), {"a": brokers["a"]}) == "a"
    assert broker_of("lakequeue-tables", brokers) is None
    assert broker_of("lakequeue:gone", brokers) is None
