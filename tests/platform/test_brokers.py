"""Several brokers, without Spark: numbers, shares of topics, and the end of one of them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

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
from lakequeue.streaming.broker_query import FAILED, RUNNING, BrokerQuery, query_name
from lakequeue.streaming.brokers import change_requests
from lakequeue.streaming.brokers.change_requests import ChangeRequests, await_partition
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.spark.spark_session import check_slots, default_master, slots
from lakequeue.streaming.watch import query_watch as engine_watch

NOBODY = "127.0.0.1:1"
THREE = parse_configuration({"brokers": ["a", "b", "c"]})


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    folder = HomeFolder(tmp_path)
    folder.open("real-time")
    return folder


# ---------------------------------------------------------------- numbers


def test_a_brokers_number_is_used_once(home: HomeFolder) -> None:
    assert home.brokers(["a", "b"]) == {"a": 0, "b": 1}
    assert home.numbers == 0  # nothing is written before it is recorded
    home.remember_brokers({"a": 0, "b": 1})
    assert home.brokers(["b", "c", "a"]) == {"a": 0, "b": 1, "c": 2}
    home.remember_brokers({"a": 0, "c": 2})
    assert home.brokers(["a", "b", "c"]) == {"a": 0, "c": 2, "b": 3}
    assert home.brokers(Configuration().brokers) == {"a": 0, "c": 2}  # none is named


def test_a_broker_stays_in_its_group(home: HomeFolder) -> None:
    assert home.groups({"a": "east"}, ["a", "b"]) == {"a": "east"}
    home.remember_brokers({"a": 0, "b": 1}, {"a": "east"})
    home.remember_brokers({"a": 0, "b": 1})
    assert home.groups({}, ["a", "b"]) == {"a": "east"}  # the configuration names none
    assert home.groups({"a": "east", "c": "west"}, ["a", "c"]) == {"a": "east", "c": "west"}
    for name, was in (("a", "in group 'east'"), ("b", "in no group")):
        with pytest.raises(LakequeueError, match=f"broker '{name}': group 'west' – it is {was}"):
            home.groups({name: "west"}, ["a", "b"])


def test_M4_a_configuration_adds_no_broker_to_a_home(tmp_path: Path) -> None:
    """An added broker would know no queues. The first start makes all brokers of the
    configuration."""

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
    def batches(configuration: Configuration) -> Engine:
        return Engine(
            NOBODY, tmp_path, configuration, settings={"lakequeue.trigger": "micro-batch"}
        )

    with pytest.raises(ConfigError, match=r"runs one broker, but there are 3: 'a', 'b', 'c'"):
        batches(THREE)
    for end in ("from", "to"):
        ends = {"from": "broker-0", "to": "broker-0"} | {end: "kafka://far:9092"}
        far = parse_configuration({"bridges": [{"name": "out", "subscriptions": ["a/>"], **ends}]})
        with pytest.raises(ConfigError, match=r"serves no bridge to another Kafka: 'out'"):
            batches(far)
    home = HomeFolder(tmp_path)
    home.open("micro-batch")
    home.remember_brokers({"a": 0, "b": 1})
    with pytest.raises(ConfigError, match=r"there are 2: 'a', 'b'"):
        batches(Configuration()).start()


def test_every_broker_has_a_slot() -> None:
    """By default, also one that is added."""
    assert [slots(default_master(brokers)) for brokers in (1, 3, 64)] == [4, 5, 66]
    check_slots("local[5]", 4, True)
    check_slots("local[4]", 4, False)
    check_slots("spark://host:7077", 4, True)  # only the cluster knows
    with pytest.raises(
        LakequeueError, match=r"4 tasks .* the tables need 5.*spark.master=local\[5,4\]"
    ):
        check_slots("local[4]", 4, True)


# ---------------------------------------------------------------- topics


def test_each_reads_its_own_partitions() -> None:
    sizes = {"v.commands": 2, "v.publish": 12, "a.mesh": 1, "b.mesh": 1}
    assert own_places(sizes, ["v"], "b", 1, alone=False) == [
        ("b.mesh", 0), ("v.commands", 1), *(("v.publish", p) for p in range(8, 12)),
    ]  # fmt: skip
    assert own_places(sizes, ["v"], "c", 2, alone=False) == []
    alone = own_places({"v.commands": 2, "v.publish": 12}, ["v"], "a", 0, alone=True)
    assert len(alone) == 14  # other programs may have made these topics


@pytest.mark.job
def test_another_broker_adds_partitions(kafka: EmbeddedKafka) -> None:
    address, vpn = kafka.bootstrap_servers, "grows"
    sizes = ensure_topics(address, [vpn], [], ["g-a"])
    assert (sizes["grows.commands"], sizes["grows.publish"]) == (1, 8)
    assert "g-a.mesh" not in sizes
    for before in (1, 3):
        sizes = ensure_topics(address, [vpn], [], ["g-a", "g-b"], count=3, before=before)
        assert (sizes["grows.commands"], sizes["grows.publish"], sizes["g-b.mesh"]) == (3, 24, 1)
    with closing(open_kafka(address, "grows")) as transport:
        await_partition(transport, "grows.publish", 23)  # a busy Kafka takes a moment
    for count in (2, 4):
        with pytest.raises(LakequeueError, match=r"'grows\.publish' has 24 partitions.* share 16"):
            ensure_topics(address, [vpn], [], ["g-a", "g-b"], count=count, before=2)


def test_a_partition_of_a_new_topic_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine makes dozens at its first start, and Kafka's brokers learn of them with a delay."""
    unknown = NotConnected("topic 'v.commands' does not exist")
    late = Mock(partitions=Mock(side_effect=[unknown, unknown, 1, 2]))
    await_partition(late, "v.commands", 1)
    assert late.partitions.call_count == 4
    monkeypatch.setattr(change_requests, "ASK_S_MAX", 0.0)
    never = {"topic 'v.commands' does not exist": Mock(side_effect=unknown),
             "partition 1 of topic": Mock(return_value=1)}  # fmt: skip
    for said, partitions in never.items():
        with pytest.raises(NotConnected, match=said):
            await_partition(Mock(partitions=partitions), "v.commands", 1)


@pytest.mark.job
def test_X4_published_records_have_kafkas_time(kafka: EmbeddedKafka) -> None:
    """Also where the topic existed before, after a moment: Kafka applies a setting with a delay."""
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
    assert "9000" in str(admin.describe_configs([topic])), "other settings stay"
    admin.close()


@pytest.mark.job
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_of_kafka_learns_of_new_partitions(kafka: EmbeddedKafka, library: str) -> None:
    """The engine's own client: it wrote to the topic when that had fewer."""
    vpn = f"learns-{library}"
    topic = topics.topic(vpn, topics.COMMANDS)
    ensure_topics(kafka.bootstrap_servers, [vpn], [])
    with closing(open_kafka(kafka.bootstrap_servers, "learns", library)) as transport:
        transport.command(topic, b"engine", b"1")
        assert transport.flush(10)
        ensure_topics(kafka.bootstrap_servers, [vpn], [], count=2, before=1)
        await_partition(transport, topic, 1)
        transport.listen(topic, 1)
        transport.command(topic, b"engine", b"2", 1)
        assert transport.flush(10)
        (record,) = transport.poll(10)
        assert (record.partition, record.value) == (1, b"2")


@pytest.mark.job
def test_clients_find_a_broker_by_its_name(kafka: EmbeddedKafka) -> None:
    ensure_topics(kafka.bootstrap_servers, ["find"], [])
    with closing(open_kafka(kafka.bootstrap_servers, "find")) as transport:
        assert known_brokers(transport, "find") == []
        topic = topics.topic("find", topics.DIRECTORY)
        for key, value in (
            ("broker/b", b'{"number": 1}'), ("broker/c", b'{"number": 2}'), ("queue/q", b"{}"),
            ("broker/a", b'{"number": 0, "state": "running"}'), ("broker/c", None),
        ):  # fmt: skip
            transport.publish(topic, value, key.encode(), [], 0)
        transport.flush(5)
        known = known_brokers(transport, "find")
    found = [(b["name"], b["number"], b["state"]) for b in known]
    assert found == [("a", 0, "running"), ("b", 1, "")]
    assert number_of("b", known) == 1
    with pytest.raises(ConfigError, match=r"'c' – there is no such broker; .* are 'a', 'b'"):
        number_of("c", known)


# ---------------------------------------------------------------- the end of one of them


def query(broker: str, reason: str = "") -> Any:
    """A query, as Spark shows it; reason: why it ended."""
    name = query_name(broker, False)
    return SimpleNamespace(name=name, isActive=not reason, exception=lambda: reason)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Three running brokers, without any real part."""
    monkeypatch.setattr(engine_watch, "require_broker", lambda bootstrap: None)
    made = Engine(NOBODY, tmp_path, THREE)
    made._folder.open(made.trigger)

    def start(broker: BrokerQuery) -> None:
        broker.query = query(broker.name)

    monkeypatch.setattr(made.application, "start_query", start)
    monkeypatch.setattr(made.captured, "ask", lambda timeout_s: made.captured.unasked.clear())
    for broker in made.brokers.values():
        start(broker)
    return made


def fail(engine: Engine, broker: str, reason: str) -> None:
    engine.brokers[broker].query = query(broker, reason)


def test_a_refused_broker_does_not_affect_the_others(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    others = engine.brokers["a"].query, engine.brokers["c"].query
    fail(engine, "b", "x\nlakequeue.replica.driver.Refused: its log was cut")
    engine.watch.look_after()
    assert engine.brokers["b"].failure == "its log was cut"
    assert engine.brokers["b"].state == FAILED
    assert "broker 'b' stays stopped, the others continue: its log was cut" in caplog.text
    engine.watch.look_after()
    assert (engine.brokers["a"].query, engine.brokers["c"].query) == others
    assert [engine.brokers[b].state for b in "ac"] == [RUNNING, RUNNING]
    fail(engine, "a", "Refused: its log was cut too")
    engine.watch.look_after()
    fail(engine, "c", "Refused: and the last one's")
    with pytest.raises(LakequeueError, match="and the last one's"):
        engine.watch.look_after()


def test_no_broker_waits_for_anothers_pause(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
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


def test_instructions_are_on_a_topic_only_the_engine_may_write(engine: Engine) -> None:
    told: list[tuple[str, int, Any]] = []

    def command(topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        told.append((topic, partition, decode_command(value)))

    engine._transport = Mock(command=command, partitions=lambda topic: 3)
    for broker in engine.brokers.values():
        engine._begin(broker)
    begun = [at for topic, at, c in told if isinstance(c, Begin) and topic == "default.commands"]
    assert begun == [0, 1, 2]
    peers = {topic: c.brokers for topic, _, c in told if isinstance(c, Peers)}
    assert peers == {f"{name}.instructions": {"a": 0, "b": 1, "c": 2} for name in "abc"}
    assert all(topic.endswith(".instructions") or isinstance(c, Begin) for topic, _, c in told)
    first = [type(c) for topic, _, c in told if topic == "b.instructions"][:5]
    # The clients' permissions are known before all else.
    assert first == [Begin, Clients, ExistingTopics, Peers, Configure]
    told.clear()
    engine._notes("c", "lost:default.publish:3")
    assert [topic for topic, _, _ in told] == ["c.instructions"]


# ---------------------------------------------------------------- another broker


class Requests(ChangeRequests):
    """The actions of a home that knows broker `b`, and its answers."""

    def __init__(self) -> None:
        self.did: list[tuple[str, ...]] = []
        self.answers: list[tuple[str, Any]] = []
        does = Mock(add=self._add, remove=self._remove, move=self._move)
        super().__init__(NOBODY, ["v"], does, self._say)

    def _say(self, key: bytes, value: bytes) -> None:
        self.answers.append((key.decode(), json.loads(value)))

    def _add(self, name: str, group: str) -> None:
        if name == "b":
            raise LakequeueError("broker 'b' is there already")
        self.did.append(("add", name, group))

    def _remove(self, name: str, to: str) -> list[tuple[str, str, str]]:
        self.did.append(("remove", name, to))
        return [("v", f"q{n}", to) for n in range(1_001 if to else 0)]

    def _move(self, vpn: str, queue: str, to: str) -> list[tuple[str, str, str]]:
        self.did.append(("move", vpn, queue, to))
        return [(vpn, queue, to)]


MANY = [["v", f"q{n}", "b"] for n in range(1_000)]
NO_SUCH = "wish: 'sing' – allowed are 'add', 'move' and 'remove'"


@pytest.mark.parametrize(
    ("name", "wish", "did", "answer"),
    [
        ("c", {"wish": "add", "group": "-west"}, ("add", "c", "-west"), {"done": True}),
        ("b", {"wish": "add"}, None, {"refused": "broker 'b' is there already"}),
        ("q", {"wish": "move", "to": "b"}, ("move", "v", "q", "b"),
         {"done": True, "moved": [["v", "q", "b"]]}),
        ("a", {"wish": "remove"}, ("remove", "a", ""), {"done": True, "moved": []}),
        ("a", {"wish": "remove", "to": "b"}, ("remove", "a", "b"), {"done": True, "moved": MANY}),
        ("c", {"wish": "sing"}, None, {"refused": NO_SUCH}),
    ],
)  # fmt: skip
def test_a_change_request_is_answered_under_its_key(
    name: str, wish: Any, did: Any, answer: Any
) -> None:
    requests = Requests()
    requests.read(f"wish/{name}".encode(), json.dumps(wish | {"id": "9"}).encode(), "v")
    assert requests.did == ([did] if did else [])
    assert requests.answers == [(f"wish/{name}", {"id": "9", **answer})]


def test_invalid_change_requests_are_skipped() -> None:
    requests = Requests()
    answers = [{"id": "1", "done": True}, {"id": "2", "refused": NO_SUCH}]  # its own answers
    answers = [json.dumps(one).encode() for one in answers]
    for junk in (*answers, b"", b"[]", b"{", b'{"wish": "add"}', b"\xff", None):
        requests.read(b"wish/d", junk)
    requests.read(b"broker/d", b'{"wish": "add", "id": "4"}')
    assert (requests.did, requests.answers) == ([], [])
