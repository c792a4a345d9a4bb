"""Kafka loses what one broker said to another: what it was about is said again (M2, H4, R3)."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from lakequeue.protocol.mesh_messages import Answer, HandOver
from lakequeue.protocol.wire import WireRecord
from mesh.test_bridges_of_several import Several
from rules.harness import drain
from rules.mortal import MortalEngine

QUEUES: list[dict[str, Any]] = [
    {"name": "far", "message_type": "text", "type": "LocalQueue", "broker": "b"},
    {"name": "full", "message_type": "text", "type": "LocalQueue", "broker": "b",
     "max_spool_messages": 3},
    {"name": "all", "message_type": "text", "max_per_subscription_backlog": 3},
]  # fmt: skip


for one in QUEUES:
    one["subscriptions"] = [f"t/{one['name']}"]


def unreadable(record: WireRecord) -> WireRecord:
    """A record whose body nobody can read."""
    broken = msgspec.structs.replace(mesh_messages.decode(record.value), body=msgspec.Raw(b"\x01"))
    return msgspec.structs.replace(record, value=msgspec.msgpack.encode(broken))


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize(
    ("kind", "nth"),
    [*product(["hand_over", "answer", "refusal", "room"], [1, 2]), ("entries", 1), ("heard", 1)],
)
def test_R3_what_a_lost_word_was_about_is_said_again(
    kind: str, nth: int, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """arrives: it is not lost, but it cannot be read."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": QUEUES}))
    engine.checking = True
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    lost: list[str] = []
    heard = MemoryBroker.tell

    def tell(self: Any, record: Any) -> None:
        envelope = mesh_messages.decode(record.value)
        said = envelope.kind
        body = mesh_messages.decode_body(envelope)
        if isinstance(body, Answer) and body.why:
            said = "refusal"
        lost.append(said)
        if said != kind or lost.count(kind) != nth:
            heard(self, record)
        elif arrives:
            heard(self, unreadable(record))

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    producer = at["a"].producer()
    consumers = {
        name: at["b"].consumer(name, ack_mode="individual", max_backlog=3)
        for name in ("all", "far")
    }
    got: dict[str, list[bytes]] = {"all": [], "far": [], "full": []}

    def consume() -> None:
        for name, consumer in consumers.items():
            for message in drain(consumer):
                got[name].append(message.payload)
                message.ack()

    for n in range(20):
        for name in QUEUES:
            producer.send(f"t/{name['name']}", b"%d" % n)
        if n == 5:
            new = QUEUES[0] | {"name": "other", "subscriptions": []}
            told = c.encode_command(c.Define(definition=new))
            engine.instruct("default", told, "a")
        if n % 4 == 0:
            consume()
    consumers["full"] = at["b"].consumer("full", ack_mode="individual", max_backlog=3)
    for _ in range(30):
        consume()
        engine.advance("1s")
    monkeypatch.setattr(MemoryBroker, "tell", heard)
    assert lost.count(kind) >= nth
    for name, bodies in got.items():
        assert sorted(map(int, bodies)) == list(range(20)), name
    assert got["far"] == sorted(got["far"], key=int)
    assert not at["a"].admin().usage()["lanes"]
    assert at["a"].admin().describe("other")["depth"] == 0
    told = {e["event"] for name in "ab" for e in at[name].admin().events(limit=1_000)}
    assert ("mesh_refused" if arrives else "mesh_gap") in told


def test_M3_R3_what_cannot_be_read_for_long_is_asked_for_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the same record each time. Only its lane waits, in order; all comes once it can be
    read."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": QUEUES}))
    engine.checking = True
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    heard, broken = MemoryBroker.tell, [0]

    def tell(self: Any, record: Any) -> None:
        body = mesh_messages.decode_body(mesh_messages.decode(record.value))
        is_broken = isinstance(body, HandOver) and any(b"broken" in c[0] for c in body.contents)
        broken[0] += is_broken
        heard(self, unreadable(record) if is_broken else record)

    def bodies(queue: str) -> list[bytes]:
        with at["b"].consumer(queue, ack_mode="individual", max_backlog=100) as consumer:
            found = drain(consumer)
            for message in found:
                message.ack()
        return [message.payload for message in found]

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    producer = at["a"].producer()
    producer.send("t/far", b"broken")
    for n in range(10):
        producer.send("t/far", b"%d" % n)
        producer.send("t/full", b"%d" % n)
        assert (bodies("far"), bodies("full")) == ([], [b"%d" % n])
        engine.advance("60s")
    assert 10 <= broken[0] <= 12
    told = [e for e in at["b"].admin().events(limit=1_000) if e["event"] == "mesh_refused"]
    assert len(told) == broken[0]
    assert "not 'hand_over'" in told[0]["why"]
    (lane,) = at["a"].admin().usage()["lanes"]
    assert (lane["queue"], lane["waiting"]) == ("far", 11)
    monkeypatch.setattr(MemoryBroker, "tell", heard)
    engine.advance("60s")
    found = [body for _ in range(11) for body in bodies("far")]
    assert found == [b"broken", *(b"%d" % n for n in range(10))]
    assert not at["a"].admin().usage()["lanes"]


class Losing:
    """Of the words of this kind the first `n` are lost. Put in the place of `MemoryBroker.tell`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, n: int) -> None:
        self.left, heard = n, MemoryBroker.tell

        def tell(broker: Any, record: Any) -> None:
            if self.left and mesh_messages.decode(record.value).kind == kind:
                self.left -= 1
            else:
                heard(broker, record)

        monkeypatch.setattr(MemoryBroker, "tell", tell)


@pytest.mark.parametrize("options", [{}, {"delay": "1s"}, {"ttl": "60s"}])
def test_P1_R3_a_message_is_stored_once_though_the_answer_is_lost(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken and acknowledged long before it is said again."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": QUEUES}))
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    losing = Losing(monkeypatch, "answer", 1)
    producer = at["a"].producer()
    consumer = at["b"].consumer("far", ack_mode="individual", max_backlog=3)
    got = []
    for n in range(3):
        producer.send("t/far", b"%d" % n, **options)
        for _ in range(3):
            engine.advance("1s")
            for message in drain(consumer):
                message.ack()
                got.append(message.payload)
    assert losing.left == 0
    assert got == [b"0", b"1", b"2"]
    assert not at["a"].admin().usage()["lanes"]


@pytest.mark.parametrize("to", ["a", "c"])
@pytest.mark.parametrize("dies", [False, True])
def test_M5_P1_R3_an_answer_is_lost_and_the_queue_moves_on(
    to: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in transit is refused where the queue was, and handed over to where it is. A dead
    message may come again, and then says so."""
    old = {"name": "old", "message_type": "text", "type": "LocalQueue", "broker": "a"}
    old |= {"dead_message_queue": "far", "max_deliveries": 1, "lease_period": "100ms"}
    engine = MortalEngine(
        parse_configuration({"brokers": ["a", "b", "c"], "queues": [*QUEUES, old]})
    )
    engine.checking = True
    at = {name: MemoryConnection(engine, "default", name, name) for name in "abc"}
    counts: list[tuple[bytes, int]] = []

    def take(name: str) -> None:
        with at[name].consumer("far", ack_mode="individual") as consumer:
            for message in drain(consumer):
                counts.append((message.payload, message.delivery_count))
                message.ack()

    losing = Losing(monkeypatch, "answer", 1)
    at["a"].producer().send("old" if dies else "t/far", b"x")
    if dies:
        assert drain(at["a"].consumer("old", ack_mode="individual"))
        engine.advance("1s")
    take("b")
    assert (losing.left, counts) == (0, [(b"x", 1)])
    at["a"].admin().move_queue("far", to)
    engine.advance("5s")
    assert "mesh_gap" in [e["event"] for e in at["a"].admin().events()]
    take(to)
    assert counts[1:] == ([(b"x", 2)] if dies else [])
    assert not at["a"].admin().usage()["lanes"]


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("kind", ["answer", "hand_over", "room"])
def test_H4_L2_R3_a_granted_message_that_may_come_again_says_so(
    kind: str, semantics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was granted and acknowledged, and nobody knows which word of it Kafka has lost."""
    queue = QUEUES[2] | {"semantics": semantics}
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": [queue]}))
    engine.checking = True
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    consumer = at["b"].consumer("all", ack_mode="individual", max_backlog=3)
    producer = at["a"].producer()
    losing = Losing(monkeypatch, kind, 1)
    counts: dict[bytes, list[int]] = {}
    for n in range(12):
        producer.send("t/all", b"%d" % n)
        engine.advance("1s")
        for message in drain(consumer):
            message.ack()
            counts.setdefault(message.payload, []).append(message.delivery_count)
    assert losing.left == 0
    for body, found in counts.items():
        assert found[0] == 1, body
        assert min(found[1:], default=2) > 1, body
    repeated = sum(len(found) > 1 for found in counts.values())
    assert (len(counts), at["a"].admin().describe("all")["depth"]) == (12, 0)
    assert repeated == (kind == "answer" and semantics == "at-least-once")


def test_H4_R3_room_that_ended_is_counted_anew_though_the_word_of_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages that cross meanwhile are counted by one broker only: both must begin anew."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": [QUEUES[2]]}))
    engine.checking = True
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    producer, got = at["a"].producer(), []

    def send(first: int) -> None:
        for body in range(first, first + 3):
            producer.send("t/all", b"%d" % body)
        engine.advance("1s")

    def consume() -> None:
        for message in drain(consumer):
            message.ack()
            got.append(int(message.payload))

    consumer = at["b"].consumer("all", ack_mode="individual", max_backlog=3)
    send(0)
    consume()
    losing = Losing(monkeypatch, "room", 1)
    consumer.close()
    send(3)
    assert losing.left == 0
    consumer = at["b"].consumer("all", ack_mode="individual", max_backlog=3)
    consume()
    send(6)
    consume()
    assert got == list(range(9))


@pytest.mark.parametrize("far", ["one", "three"])
@pytest.mark.parametrize("kind", ["answer", "hand_over", "bridge_send", "bridge_receipt"])
def test_H1_R3_what_a_bridge_carries_comes_once_though_a_word_is_lost(
    kind: str, far: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Several("one", far)
    home.define("q", "a/>")
    losing = Losing(monkeypatch, kind, 1)
    producers = [home.a(broker, f"p{broker}").producer() for broker in ("one", "two")]
    got = []
    for n in range(6):
        producers[n % 2].send("a/b", b"%d" % n)
        home.engine.advance("2s")
        got += home.bodies("q")
    for n in range(3):  # brokers notice as they hear the next word
        home.define(f"other{n}", "x")
        home.engine.advance("30s")
        got += home.bodies("q")
    assert losing.left == 0 or (kind.startswith("bridge") and far == "one")
    assert sorted(got) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("key", [None, "/k"])
def test_O1_O4_R3_a_lane_keeps_its_order_though_a_word_is_lost(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind the lost one are not taken before it comes again."""
    far = {"name": "far", "message_type": "json", "type": "LocalQueue", "broker": "b"}
    far |= {"subscriptions": ["t"], "max_per_subscription_backlog": 9}
    queues = [far | ({"partition_key": key} if key else {})]
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": queues}))
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    losing = Losing(monkeypatch, "hand_over", 1)
    producer = at["a"].producer()
    consumer = at["b"].consumer("far", ack_mode="individual", max_backlog=9)
    got = []
    for n in range(6):
        producer.send("t", b'{"n":%d,"k":1}' % n)
    for _ in range(10):
        for message in drain(consumer):
            message.ack()
            got.append(message.payload[5:6])
        engine.advance("1s")
    assert losing.left == 0
    assert got == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_M2_what_came_again_is_not_asked_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other broker would not repeat it, and this one would wait for that for ever."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": QUEUES}))
    engine.checking = True
    admin = MemoryConnection(engine, "default", "a", "a").admin()
    heard, seen, first = MemoryBroker.tell, set[str](), [0]

    def tell(self: Any, record: Any) -> None:
        """The first record of b cannot be read, its repetition is lost, the next is unreadable."""
        envelope = mesh_messages.decode(record.value)
        if envelope.name == "b":
            first[0] = first[0] or envelope.number
            at = envelope.number - first[0]
            what = {0: "unreadable", 1: "lost", 3: "unreadable"}.get(at, "")
            seen.add(what)
            if what == "lost":
                return
            record = unreadable(record) if what else record
        heard(self, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    producer = MemoryConnection(engine, "default", "p", "a").producer()
    for n in range(3):
        producer.send("t/far", b"%d" % n)
    for _ in range(70):
        engine.advance("1s")
    assert seen == {"", "lost", "unreadable"}
    admin.define({"name": "new", "message_type": "text"})
    assert "new" in [queue["name"] for queue in admin.queues()]


@pytest.mark.parametrize("kind", ["hand_over", "bridge_send"])
def test_M3_H2_nothing_passes_a_record_that_cannot_be_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment ago another one was asked for, so this one is asked for later, and what its sender
    said behind it is heard first."""
    home = Several("one", "three")
    queue = {"name": "q", "message_type": "text", "type": "LocalQueue", "broker": "three"}
    at = home.b if kind == "hand_over" else home.a
    home.b("one").admin().define(queue | {"subscriptions": ["a/>"]})
    heard, seen = MemoryBroker.tell, [0]

    def tell(self: Any, record: Any) -> None:
        envelope = mesh_messages.decode(record.value)
        if (envelope.name, envelope.kind) == ("one", kind):
            seen[0] += 1
            record = unreadable(record) if seen[0] in (1, 3) else record
        heard(self, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    producer = at("one").producer()
    for n in range(6):
        producer.send("a/b", b"%d" % n)
    home.engine.advance("80s")
    assert seen[0] > 4
    assert home.bodies("q") == ["0", "1", "2", "3", "4", "5"]


def test_M3_P1_R3_a_lane_that_is_refused_knows_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer about a stored message cannot be read. Then the queue is full, and the lane takes
    that message back with the others. It was acknowledged long before it is handed over again."""
    engine = MortalEngine(parse_configuration({"brokers": ["a", "b"], "queues": QUEUES}))
    at = {name: MemoryConnection(engine, "default", name, name) for name in "ab"}
    heard, seen = MemoryBroker.tell, [0]

    def tell(self: Any, record: Any) -> None:
        """The second one that cannot be read within a minute is asked for later."""
        envelope = mesh_messages.decode(record.value)
        if (envelope.name, envelope.kind) == ("b", "answer"):
            seen[0] += 1
            record = unreadable(record) if seen[0] in (1, 3) else record
        heard(self, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    producer = at["a"].producer()
    for n in range(5):
        producer.send("t/full", b"%d" % n)
        engine.advance("10ms")
    assert at["b"].admin().describe("full")["depth"] == 3
    consumer, got = at["b"].consumer("full", ack_mode="individual", max_backlog=3), []
    for pause in (*["100ms"] * 7, *["1s"] * 10):
        for message in drain(consumer):
            message.ack()
            got.append((message.payload, message.redelivered))
        engine.advance(pause)
    assert got == [(b"%d" % n, False) for n in range(5)]
