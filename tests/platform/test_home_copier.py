"""The copier between two homes (H1), on librdkafka's own mock of Kafka: the two brokers are in
memory, all between them is as in the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.bridge import parse_bridge
from lakequeue.memory import MemoryConnection, MemoryEngine
from lakequeue.protocol import NotConnected, home_bridges
from lakequeue.protocol.wire import WireRecord
from lakequeue.streaming.bridges import bridge_watch, home_copier
from lakequeue.streaming.bridges.bridge_watch import BridgeWatch
from lakequeue.streaming.bridges.home_copier import HomeCopier

EVERY_S_MAX = 60.0
TOPICS = ("near.bridge-out", "near.mesh", "default.bridge-in", "default.bridge-answers")


class Way:
    """In the place of `JoinedHomes`: a step's outputs go to Kafka."""

    def __init__(self, write: Callable[[WireRecord], None]) -> None:
        self.write = write

    def take(self, record: WireRecord) -> None:
        if record.topic in TOPICS:
            self.write(record)

    def carry(self) -> None:
        """The copier does it."""


class Ends:
    """The homes of `near` and `far`, with their records in Kafka."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.writer = Producer({"bootstrap.servers": address, "linger.ms": 0})
        for topic in (*TOPICS, "default.directory"):
            self.writer.list_topics(topic, timeout=5)  # the mock creates it
        self.reader = Consumer({"bootstrap.servers": address, "group.id": "ends"})
        self.reader.assign([TopicPartition(t, 0, 0) for t in (TOPICS[1], TOPICS[2])])
        self.engines = {n: MemoryEngine(parse_configuration({"brokers": [n]})) for n in
                        ("near", "far")}  # fmt: skip
        self.near, self.far = (MemoryConnection(e, "default", n) for n, e in self.engines.items())
        self.answers = self.engines["far"].open_inbox(TOPICS[3])
        self.engines["near"].homes = Way(self.write)
        self.definition = {
            "name": "b", "from": "near", "to": f"kafka://{address}", "subscriptions": ["a/>"],
        }  # fmt: skip
        self.copiers: list[HomeCopier] = []

    def write(self, record: WireRecord) -> None:
        self.writer.produce(record.topic, record.value, record.key, 0)
        self.writer.poll(0)

    def begin(self, first: int | None = None) -> HomeCopier:
        """Start another copier in place of the previous one; first: from this record on."""
        for before in self.copiers[-1:]:
            before.stop()
            before.join(60)
            assert not before.is_alive()
        if first is not None:
            group = {"bootstrap.servers": self.address, "group.id": "lakequeue.bridge.0.default.b"}
            consumer = Consumer(group)
            consumer.commit(offsets=[TopicPartition(TOPICS[0], 0, first, "{}")], asynchronous=False)
            consumer.close()
        copier = HomeCopier(self.address, 0, parse_bridge(self.definition))
        copier.start()
        self.copiers.append(copier)
        return copier

    def turn(self) -> None:
        """The records that have come to the two homes, and the far one's answers."""
        message = self.reader.poll(0.02)
        while message is not None:
            if message.error() is None:
                to = self.engines["near" if message.topic() == TOPICS[1] else "far"]
                record = WireRecord(message.topic(), 0, message.key(), message.value())
                to.hear(0, record)
            message = self.reader.poll(0)
        while self.answers:
            answer = self.answers.popleft()
            self.writer.produce(TOPICS[3], answer.value, answer.key, 0)
        self.writer.poll(0)

    def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + EVERY_S_MAX
        while not (found := holds()):
            assert time.monotonic() < deadline, self.seen()
            self.turn()
        return found

    def seen(self) -> dict[str, Any]:
        return self.near.admin().describe_bridge("b")

    def close(self) -> None:
        for copier in self.copiers:
            copier.stop()
            copier.join(60)
        self.reader.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    mock = Producer({"bootstrap.servers": "localhost:1", "test.mock.num.brokers": 1})
    (broker,) = mock.list_topics(timeout=5).brokers.values()
    one = Ends(f"{broker.host}:{broker.port}")
    yield one
    one.close()


def test_H1_a_copier_may_stop_anywhere_and_the_next_start_earlier(ends: Ends) -> None:
    ends.far.admin().bridge({**ends.definition, "from": "kafka://west:1", "to": "far"})
    own = {"name": "q", "message_type": "text", "subscriptions": ["a/>"]}
    ends.far.admin().define(own)
    ends.near.admin().bridge(ends.definition)
    assert ends.seen()["state"] == "waiting"
    ends.begin()
    ends.until(lambda: ends.seen()["state"] == "open")
    producer = ends.near.producer()
    for n in range(120):
        producer.send(f"a/{n % 3}", str(n).encode())
        if n in (30, 60, 90):
            for _ in range(n // 30):
                ends.turn()
            ends.begin(first=0 if n == 60 else None)
    ends.until(lambda: ends.seen()["taken"] == 120)
    arrived = ends.far.admin().describe_bridge("b")
    assert (arrived["taken"], arrived["home"]) == (120, {"epoch": 0, "broker": "near"})
    got = []
    with ends.far.consumer("q", max_backlog=200, ack_mode="individual") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            got.append(int(message.payload))
            message.ack()
    assert sorted(got) == list(range(120))
    for rest in range(3):
        assert [n for n in got if n % 3 == rest] == list(range(rest, 120, 3))
    seen = ends.seen()
    assert (seen["on_its_way"], seen["waiting"]) == (0, 0)
    ends.until(lambda: ends.copiers[-1].position)
    repeated = arrived["repeated"]
    ends.begin(first=0)  # all of it once more
    ends.until(lambda: ends.far.admin().describe_bridge("b")["repeated"] > repeated)
    assert ends.far.admin().describe("q")["depth"] == 0


class Deaf:
    """An engine that is down."""

    def hear(self, *_: Any) -> None:
        """Read nothing."""


def test_H1_silence_is_reported_and_everything_is_copied_again(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kafka whose engine is down is no open connection (H2), however often it is tried. A far end
    that refuses gives its reason."""
    monkeypatch.setattr(home_copier, "SILENCE_S", 0.3)
    ends.near.admin().bridge(ends.definition)
    copier = ends.begin()
    ends.until(lambda: ends.seen()["state"] == "open")
    far, ends.engines["far"] = ends.engines["far"], Deaf()
    ends.near.producer().send("a/b", b"x")
    ends.until(lambda: "has answered nothing for 0 s" in ends.seen()["why"])
    states = set()
    ends.until(lambda: states.add(ends.seen()["state"]) or copier._silence_s > 1.0)
    assert states == {"waiting"}
    ends.engines["far"] = far
    ends.until(lambda: "no bridge of this name arrives here" in ends.seen()["why"])
    ends.until(lambda: states.add(ends.seen()["why"]) or copier._silence_s > 2.0)
    assert len(states) == 2, "for as long as it refuses"
    own = {"name": "q", "message_type": "text", "subscriptions": ["a/>"]}
    ends.far.admin().define(own)
    ends.far.admin().bridge({**ends.definition, "from": "kafka://west:1", "to": "far"})
    ends.until(lambda: ends.seen()["taken"] == 1)
    assert (ends.seen()["state"], ends.seen()["why"]) == ("open", "")
    assert ends.far.admin().describe("q")["depth"] == 1


def test_H1_an_answer_that_cannot_be_read_is_reported_once(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes again with its record, later each time."""
    monkeypatch.setattr(home_copier, "SILENCE_S", 0.1)
    far = {**ends.definition, "from": "kafka://west:1", "to": "far"}
    own = {"name": "q", "message_type": "text", "subscriptions": ["a/>"]}
    ends.far.admin().bridge(far)
    ends.far.admin().define(own)
    ends.near.admin().bridge(ends.definition)
    decode, is_mended = home_bridges.decode_copied, list[bool]()

    def fail(value: bytes | None) -> Any:
        if not is_mended:
            raise ValueError("planted")
        return decode(value)

    monkeypatch.setattr(home_bridges, "decode_copied", fail)
    copier = ends.begin()
    ends.until(lambda: ends.seen()["state"] == "open")
    ends.near.producer().send("a/b", b"x")
    ends.until(lambda: "its answer cannot be read: planted" in ends.seen()["why"])
    states = set[str]()
    ends.until(lambda: states.add(ends.seen()["state"]) or copier._silence_s > 1.0)
    assert states == {"waiting"}
    assert len([e for e in ends.near.admin().events() if e["event"] == "bridge_waits"]) == 1
    is_mended.append(True)
    ends.until(lambda: ends.seen()["taken"] == 1)
    assert (ends.seen()["state"], ends.seen()["why"]) == ("open", "")


def test_H1_a_missing_far_end_is_reported(ends: Ends) -> None:
    ends.near.admin().bridge(ends.definition)
    for changes, why in (
        ({"to": f"kafka://{ends.address}?broker=nobody"}, "has no broker 'nobody'; it has none"),
        ({"to": "memory://x"}, "memory://x: an engine on Kafka reaches kafka:// only"),
        ({"credentials": "east"}, "credentials: 'east' – is a file in the folder"),
    ):
        kept, ends.definition = ends.definition, ends.definition | changes
        ends.begin()
        ends.until(lambda why=why: why in ends.seen()["why"])
        assert why in ends.seen()["why"]
        ends.definition = kept


BRIDGE = {"name": "b", "from": "near", "to": "kafka://127.0.0.1:1", "subscriptions": ["a/>"]}


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> HomeCopier:
    """One whose copies fail, with a pause of 10 ms; its producer is a `Mock`."""
    monkeypatch.setattr(home_copier, "Producer", Mock())
    monkeypatch.setattr(home_copier, "PAUSE_S", 0.01)
    monkeypatch.setattr(home_copier, "PAUSE_S_MAX", 0.01)
    return HomeCopier("127.0.0.1:1", 0, parse_bridge(BRIDGE))


def states_of(copier: HomeCopier) -> list[str]:
    """The reasons that it told its broker."""
    said = [call.args[1] for call in copier._writer.produce.call_args_list]
    return [home_bridges.decode_copied(value).why for value in said]


def test_H1_a_copier_goes_on_though_kafka_takes_nothing(copier: HomeCopier) -> None:
    """It repeats reports that its broker has not read."""
    copies: list[list[str]] = []

    def copy() -> None:
        produce = copier._writer.produce
        copies.append(states_of(copier) if copies else [])
        if len(copies) == 4:  # the last one expires in the producer
            produce.call_args.kwargs["on_delivery"](KafkaError(KafkaError._MSG_TIMED_OUT), None)
        if len(copies) == 6:
            copier.stop()
        produce.side_effect = BufferError("Queue full") if len(copies) < 3 else None
        raise RuntimeError("it fails")

    copier._copy = copy  # type: ignore[method-assign]
    copier.run()
    assert len(copies) == 6
    why = "RuntimeError: it fails"
    assert copies[2:] == [[why] * 2, [why] * 3, [why] * 4, [why] * 4]


class Slow:
    """Copies for a bridge, until a test lets it end."""

    made: ClassVar[list[Slow]] = []

    def __init__(self, bootstrap: str, epoch: int, bridge: Any) -> None:
        self.bridge, self.alive, self.stopped = bridge, False, False
        self.position = 7

    def start(self) -> None:
        self.alive = True
        self.made.append(self)

    def stop(self) -> None:
        self.stopped = True

    def join(self, seconds: float) -> None:
        """It takes longer."""

    def is_alive(self) -> bool:
        return self.alive


def test_H1_a_bridge_has_one_copier_and_always_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts once the one before has ended: because the definition has changed, or
    after an unexpected failure."""
    made: list[Slow] = []
    monkeypatch.setattr(Slow, "made", made)
    monkeypatch.setattr(bridge_watch, "HomeCopier", Slow)
    monkeypatch.setattr(bridge_watch, "ensure_own", lambda *_: None)
    watch, place = BridgeWatch("127.0.0.1:1", ["default"]), ("default", "b")
    for to in ("kafka://127.0.0.1:1", "kafka://127.0.0.1:2"):
        watch._wanted[place] = parse_bridge({**BRIDGE, "to": to}), 0
        watch._changed.add(place)
        for _ in range(2):
            watch.idle()
    assert [(one.bridge.to, one.stopped) for one in made] == [("kafka://127.0.0.1:1", True)]
    made[0].alive = False
    watch.idle()
    made[1].alive = False
    for _ in range(2):
        watch.idle()
    assert [one.bridge.to[-1] for one in made] == ["1", "2", "2"]
    watch._wanted.clear()
    watch._changed.add(place)
    watch.idle()
    assert made[2].stopped
    made[2].alive = False
    for _ in range(2):
        watch.idle()
    assert len(made) == 3


def test_H1_nothing_is_removed_that_a_bridge_without_a_copier_may_have_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker's bridges share a topic, and Kafka may refuse one of them its other topics."""
    removed: list[Any] = []
    monkeypatch.setattr(bridge_watch, "HomeCopier", Slow)
    monkeypatch.setattr(bridge_watch, "TRIM_S", 0.0)
    monkeypatch.setattr(
        bridge_watch, "TopicsNow", lambda _: SimpleNamespace(delete_before=removed.append)
    )
    ensure = Mock(side_effect=[None, NotConnected("Kafka is away"), None])
    monkeypatch.setattr(bridge_watch, "ensure_own", ensure)
    watch = BridgeWatch("127.0.0.1:1", ["default"])
    for name in ("b", "c"):
        watch._wanted["default", name] = parse_bridge({**BRIDGE, "name": name}), 0
        watch._changed.add(("default", name))
    watch.idle()
    assert (len(watch._copiers), removed) == (1, [])
    watch.idle()
    assert removed == [], "a directory may name one more"

    def poll(timeout_s: float) -> Any:
        watch.stop()
        end = SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF)
        return SimpleNamespace(error=lambda: end, topic=lambda: "default.directory")

    watch.__dict__["_consumer"] = Mock(poll=poll)
    watch.run()
    assert removed == [{("near.bridge-out", 0): 7}]
