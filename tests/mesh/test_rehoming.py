"""Brokers are added and removed while a home is at rest (M4, M5, P1, L1, L4, L9, O1–O4).

A home that changes is compared with its twin that does not: the same is done to both, and clients
see the same. Where a home is made of pages by hand, its brokers are driven one by one.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh.home_change import HomeChange, NotAtRest
from lakequeue.mesh.rehome import Resting, rehome
from lakequeue.protocol import commands as c
from lakequeue.protocol import topics, wire
from lakequeue.protocol.errors import ConfigError, LakequeueError
from lakequeue.protocol.messages import HEADER
from lakequeue.state import Limits
from mesh.rehomed import RestingEngine

QUEUES: list[dict[str, Any]] = [
    {"name": "plain", "type": "LocalQueue"},
    {"name": "ranked", "type": "LocalQueue", "priority": "/p", "dead_message_queue": "dead"},
    {"name": "barred", "type": "LocalQueue", "barrier_expression": "/n % 7 = 0"},
    {"name": "keyed", "partition_key": "/k", "max_deliveries": 2, "dead_message_queue": "dead"},
    {"name": "short", "type": "LocalQueue", "expiration": "20s", "dead_message_queue": "dead"},
    {"name": "dead", "type": "LocalQueue"},
]
COLD = Limits(
    delivery_rows=5, live_rows=4, segment_rows=3, block_bytes=300, due_rows=3, merge_rows=2
)
LIMITS = {"plenty": Limits(), "cold": COLD}
CHANGES: dict[str, list[dict[str, str]]] = {
    "one comes": [{"add": "c"}],
    "one goes": [{"remove": "b"}],
    "the first goes": [{"remove": "a"}],
    "all to one": [{"add": "c"}, {"remove": "a", "to": "c"}],
    "one comes and goes": [{"add": "c"}, {"remove": "c"}],
    "queues move": [
        {"add": "c"},
        {"plain": "c", "short": "b"},
        {"barred": "b", "plain": "a"},
        {"barred": "c"},
    ],
    "two take the places of two": [{"add": "c"}, {"add": "d"}, {"remove": "a"}, {"remove": "b"}],
}
NOW = 1_800_000_000_000


def home(
    queues: list[dict[str, Any]], limits: Limits | None = None, brokers: str = "ab"
) -> RestingEngine:
    engine = RestingEngine(None, limits)
    engine.now = NOW
    given = [{"message_type": "json", "max_per_subscription_backlog": 50, **q} for q in queues]
    engine.configure(parse_configuration({"brokers": list(brokers), "queues": given}))
    engine.checking = True
    return engine


def lease(engine: RestingEngine, queue: str, backlog: int, times: int = 1) -> None:
    """A consumer without a session and without a client takes messages, where the queue is."""
    for broker in engine.brokers:
        inbox = c.Inbox(topic=topics.topic("default", topics.DELIVERIES), partition=0)
        said = c.Subscribe(
            queue=queue, subscription=f"raw-{queue}-{broker.home.name}", inbox=inbox,
            max_backlog=backlog,
        )  # fmt: skip
        key = topics.topic("default", topics.COMMANDS)
        engine.command(key, b"", c.encode_command(said), broker.home.number)


def fill(engine: RestingEngine, seed: int) -> None:
    """Messages of all kinds; some are leased, some are delayed, some are dead."""
    chance = random.Random(seed)
    at = {name: engine.connect(name, f"app-{name}") for name in ("a", "b")}
    producers = {name: connection.producer() for name, connection in at.items()}
    for n in range(1, 60):
        body = json.dumps({"n": n, "k": chance.randrange(4), "p": chance.randrange(5)}).encode()
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["delay"] = f"{chance.randrange(1, 40)}s"
        elif chance.random() < 0.2:
            options["ttl"] = f"{chance.randrange(5, 60)}s"
        to = chance.choice([q["name"] for q in QUEUES if q["name"] != "dead"])
        producers[chance.choice("ab")].send(to, body, **options)
        if n == 30:
            for queue in ("plain", "ranked", "keyed"):
                lease(engine, queue, chance.randrange(1, 5))
        if chance.random() < 0.2:
            engine.advance(f"{chance.randrange(1, 4)}s")
    for connection in at.values():
        connection.close()


def taken(engine: RestingEngine) -> dict[str, list[Any]]:
    """What consumers get, queue by queue, in order, until nothing is left."""
    connection = engine.connect(None, "last")
    found: dict[str, list[Any]] = {}
    for queue in QUEUES:
        consumer = connection.consumer(queue["name"], max_backlog=3, ack_mode="individual")
        seen = found[queue["name"]] = []
        for _ in range(45):
            while (message := consumer.receive(timeout=0)) is not None:
                why = sorted(message.headers.items())
                at = engine.now - NOW
                seen.append((at, message.id, message.payload, message.delivery_count, why))
                message.ack()
            engine.advance("1s")
        consumer.close()
    return found


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("changes", CHANGES)
def test_M4_a_home_goes_on_as_if_nothing_had_changed(changes: str, limits: str) -> None:
    """Places, priorities, barriers, lanes, delays, lives, leases, counts (O1–O4, L4, L12, X1)."""
    queues = [{"lease_period": "25s", **q} for q in QUEUES]
    stays, goes = (home(queues, LIMITS[limits]) for _ in range(2))
    for engine in (stays, goes):
        fill(engine, 0)
    for change in CHANGES[changes]:
        goes.change(**change)
    goes.check()
    names = [q["name"] for q in QUEUES]
    for name in names:  # numbers add up
        before, after = (e.connect().admin().describe(name) for e in (stays, goes))
        for what in ("depth", "leased", "delayed", "bytes", "counters"):
            assert after.get(what) == before.get(what), f"{name}: {what}"
    wanted, found = taken(stays), taken(goes)
    for name in names:
        assert found[name] == wanted[name], name


def test_M4_the_same_pages_are_made_byte_for_byte() -> None:
    engine = home([{"lease_period": "25s", **q} for q in QUEUES], COLD)
    fill(engine, 1)
    resting = [Resting(b.home.name, b.home.number, dict(b.store.pages)) for b in engine.brokers]
    kept = [dict(one.pages) for one in resting]
    change = HomeChange({"b": 1, "c": 2})
    found = [rehome(resting, change, 0, engine.secret, COLD) for _ in range(2)]
    assert [one.pages for one in resting] == kept
    assert found[0] == found[1]


def test_M4_who_is_removed_is_heard_by_the_first_that_stays() -> None:
    """What a producer repeats is stored once, and answered under the old number (P1)."""
    engine = home([{"name": "q"}])
    inbox = engine.open_inbox("default.receipts")

    def publish(broker: int, *sequences: int) -> list[dict[str, Any]]:
        inbox.clear()
        for seq in sequences:
            header = json.dumps({"to": "q", "producer": "p", "seq": seq}).encode()
            partition = broker * topics.PUBLISH_PARTITIONS
            engine.publish("default.publish", b"{}", None, [(HEADER, header)], partition=partition)
        return [json.loads(record.value or b"") for record in inbox]

    publish(0, 1, 2)
    first = publish(1, 1, 2, 3)
    engine.change(remove="b")
    again = publish(1, 2, 3, 4)
    assert {one["broker"] for one in again} == {first[0]["broker"]} == {1}
    assert any(one["repeated"] for one in again)
    assert engine.connect().admin().describe("q")["depth"] == 6
    publish(0, 2, 3)  # the same name at the broker that stays is another producer
    assert engine.connect().admin().describe("q")["depth"] == 7
    engine.change(add="c")
    engine.change(remove="a")
    publish(0, 2, 3, 4)
    publish(1, 4, 5)
    assert engine.connect().admin().describe("q")["depth"] == 9


def test_M4_what_a_removed_broker_said_may_come_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A predecessor of its last worker had it on its way to Kafka still: all of it was heard."""
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "a"}])
    said: list[wire.WireRecord] = []
    tell = MemoryBroker.tell

    def heard(broker: MemoryBroker, record: wire.WireRecord) -> None:
        if broker.home.name == "b":
            said.append(record)
        tell(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", heard)
    admin = engine.connect("a").admin()
    admin.subscribe_topic("q", "news")
    other = {"name": "other", "type": "LocalQueue", "broker": "a", "message_type": "json"}
    admin.define(other)
    engine.change(remove="a")
    monkeypatch.setattr(MemoryBroker, "tell", tell)
    for record in said[-2:]:
        tell(engine.broker("b"), record)
    engine.advance("1s")
    producer = engine.connect("b").producer()
    for queue in ("q", "other"):
        producer.send(queue, b"{}")
        assert engine.connect("b").admin().describe(queue)["depth"] == 1
    events = [one["event"] for one in engine.connect("b").admin().events()]
    assert "mesh_gap" not in events


def test_L9_an_ack_that_came_early_waits_where_its_queue_is() -> None:
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "b"}])
    at_b = engine.connect("b")
    engine.connect("a").admin()
    ahead = (1 << 48) + 3
    said = c.Ack(queue="q", subscription="s", ids=str(ahead))
    engine.command("default.commands", b"", c.encode_command(said), 1)
    producer = at_b.producer()
    for _ in range(2):
        producer.send("q", b"{}")
    engine.change(add="c")
    engine.change(remove="a", to="c")
    producer.send("q", b"{}")
    seen = at_b.admin().describe("q")
    assert (seen["depth"], seen["counters"].get("acknowledged")) == (2, 1)


def test_M4_what_names_a_removed_broker_is_said_and_nothing_changes() -> None:
    engine = home([{"name": "q", "type": "GroupLocalQueue", "initial_owner": "b"}])
    with pytest.raises(ConfigError, match="initial_owner: 'b'"):
        engine.change(remove="b")
    with pytest.raises(LakequeueError, match="this home has no such broker"):
        engine.change(remove="c")
    with pytest.raises(LakequeueError, match="to: 'x'"):
        engine.change(remove="a", to="x")
    engine.change(remove="a")
    with pytest.raises(LakequeueError, match="only one"):
        engine.change(remove="b")
    with pytest.raises(LakequeueError, match="cannot be used again"):
        engine.change(add="a")


@pytest.mark.parametrize(
    ("name", "group", "why"),
    [
        ("a", "", "exists already"),
        ("Süd", "", "a name must be at most 64 letters"),
        ("c", "a/b", "group 'a/b' must be at most 64 letters"),
        ("coast", "", "'coast' would be both a broker and a group"),
        ("c", "a", "'a' would be both a broker and a group"),
        ("default", "", "its topics would be among the topics of VPN 'default'"),
        ("a.b", "", "its topics would be among the topics of broker 'a'"),
    ],
)
def test_M4_a_broker_that_cannot_be_is_not_added(name: str, group: str, why: str) -> None:
    """In memory as on Kafka, so that an application's tests find it."""
    engine = home([{"name": "q"}])
    admin = engine.connect("b").admin()
    admin.add_broker("c1", group="coast")
    with pytest.raises(LakequeueError, match=why):
        admin.add_broker(name, group=group)
    assert [broker.home.name for broker in engine.brokers] == ["a", "b", "c1"]


def test_M5_consumers_and_producers_follow_a_queue_that_moves_at_rest() -> None:
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "a", "subscriptions": ["news"]}])
    near, far = engine.connect("a"), engine.connect("b")
    consumer = near.consumer("q", max_backlog=1, ack_mode="individual")
    for n, (to, connection) in enumerate((("b", near), ("a", far), ("b", far))):
        near.admin().move_queue("q", to, pause=True)
        engine.check()
        assert near.admin().describe("q")["broker"] == to
        connection.producer().send("news", b"%d" % n)
        engine.advance("1s")
        message = consumer.receive(timeout=0)
        assert (message.payload, message.redelivered) == (b"%d" % n, False)
        message.ack()
    assert near.admin().describe("q")["depth"] == 0


def test_M5_what_cannot_move_at_rest_is_said() -> None:
    engine = home([{"name": "q", "type": "LocalQueue"}, {"name": "all"}])
    admin = engine.connect("a").admin()
    for queue, to, why in (
        ("q", "x", "allowed are the home's brokers: a, b"), ("all", "b", "only a LocalQueue"),
        ("none", "b", "there is no such queue"),
    ):  # fmt: skip
        with pytest.raises(LakequeueError, match=why):
            admin.move_queue(queue, to, pause=True)


def test_M4_nothing_changes_while_something_is_between_brokers() -> None:
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "b", "subscriptions": ["news"]}])
    engine.cut("b")
    engine.connect("a").producer().send("news", b"{}")
    with pytest.raises(NotAtRest, match="has yet to read"):
        engine.change(remove="b")
    engine.mend("b")
    engine.change(remove="b")
    assert engine.connect().admin().describe("q")["depth"] == 1


def test_M4_S9_messages_that_enter_a_queue_at_rest_set_its_alert() -> None:
    full = {"name": "full", "type": "LocalQueue", "broker": "b", "max_spool_messages": 3}
    engine = home([full | {"subscriptions": ["news"]}])
    producer = engine.connect("a").producer()
    for n in range(6):
        producer.send("news", b'{"n": %d}' % n)
    at = engine.connect("b")
    with at.consumer("full", ack_mode="individual", max_backlog=10) as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            message.ack()
    seen = at.admin().describe("full")
    assert (seen["depth"], seen["alerts"]) == (0, [])
    engine.change(remove="a", to="b")
    engine.check()
    seen = at.admin().describe("full")
    assert (seen["depth"], seen["alerts"]) == (3, ["spool_usage"])
    assert at.admin().events()[-1]["event"] == "spool_usage_high"


@pytest.mark.parametrize(
    "change", [{"remove": "a", "to": "b"}, {"remove": "c", "to": "a"}, {"add": "d"}]
)
def test_M4_M3_what_waits_for_room_at_another_broker_waits_on(change: dict[str, str]) -> None:
    """Where the one that holds it goes to, or, where the queue comes to it, in the queue."""
    engine = home(
        [
            {
                "name": "full",
                "type": "LocalQueue",
                "broker": "c",
                "max_spool_messages": 1,
                "subscriptions": ["news"],
            }
        ],
        brokers="abc",
    )
    producer = engine.connect("a").producer()
    sent = [producer.send("news", b'{"n": %d}' % n).message_id for n in range(4)]
    engine.change(**change)
    engine.check()
    at = engine.connect(change.get("to") or "b")
    found = []
    with at.consumer("full", ack_mode="individual", max_backlog=10) as consumer:
        for _ in range(20):
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.id)
            engine.advance("1s")
    assert found == sent
    assert at.admin().describe("full")["depth"] == 0


def test_M4_M3_what_waits_for_a_queue_that_spreads_to_its_own_broker_enters_it_there() -> None:
    """A queue without keys any more has more hosts when a broker comes (M1)."""
    full = {"name": "full", "max_spool_messages": 1, "subscriptions": ["news"]}
    engine = home([full | {"partition_key": "/k"}])
    producer = engine.connect("b").producer()
    sent = [producer.send("news", b'{"n": %d}' % n).message_id for n in range(3)]
    engine.connect("a").admin().define({"name": "full", "partition_key": None})
    engine.change(add="c")
    engine.check()
    found = []
    with engine.connect("b").consumer("full", ack_mode="individual") as consumer:
        for _ in range(20):
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.id)
            engine.advance("1s")
    assert sorted(found) == sorted(sent)


@pytest.mark.parametrize("leased", [False, True])
def test_M4_R6_a_message_in_two_parts_of_a_queue_is_there_once_when_they_are_joined(
    leased: bool,
) -> None:
    """A command had moved it from another queue into the second part."""
    one = {"subscriptions": ["news"]}
    engine = home([{"name": "spread"} | one, {"name": "own", "type": "LocalQueue"} | one])
    admin = engine.connect("a").admin()
    host = admin.describe("own")["broker"]
    other = "b" if host == "a" else "a"
    taker = engine.connect(other).consumer("spread", ack_mode="individual")
    engine.connect(host).producer().send("news", b"{}")
    assert taker.receive(timeout=0) is not None
    if not leased:
        taker.close()
    admin.move("own", "spread")
    assert admin.describe("spread")["depth"] == 2
    engine.change(remove=other)
    engine.check()
    found = []
    at = engine.connect(host)
    assert at.admin().describe("spread")["depth"] == 1
    with at.consumer("spread", ack_mode="individual") as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            message.ack()
            found.append(message.id)
    assert len(found) == 1
    assert at.admin().describe("spread")["depth"] == 0
    engine.check()


def test_M4_a_queue_that_has_moved_stays_when_the_broker_that_it_is_defined_at_goes() -> None:
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "c"}], brokers="abc")
    admin = engine.connect("a").admin()
    admin.move_queue("q", "b")
    engine.advance("1s")
    engine.change(remove="c")
    engine.check()
    assert admin.describe("q")["broker"] == "b"


def test_M4_a_home_with_one_broker_that_knew_of_no_other_gets_a_second() -> None:
    """Its queues are the home's directory from then on."""
    alone = home(QUEUES, COLD, brokers="a")
    producer = alone.connect("a").producer()
    for n in range(20):
        producer.send("plain", json.dumps({"n": n}).encode())
    pages, engine = dict(alone.brokers[0].store.pages), RestingEngine()
    assert "mesh" not in pages
    engine.secret, engine.now = alone.secret, alone.now
    change = HomeChange({"a": 0, "b": 1})
    found = rehome([Resting("a", 0, pages)], change, 0, engine.secret, COLD)
    engine.take_home([(one.name, one.number, one.pages) for one in found.brokers], {})
    engine.connect("b").producer().send("plain", b"{}")
    engine.connect("b").producer().send("keyed", b"{}")
    engine.check()
    admin = engine.connect("a").admin()
    assert [admin.describe(q)["depth"] for q in ("plain", "keyed")] == [21, 1]
    engine.connect("b").admin().define({"name": "new", "message_type": "json"})
    assert admin.describe("new")["depth"] == 0


@pytest.mark.parametrize("opened", ["before", "after"])
def test_M5_a_consumer_follows_a_queue_of_a_home_that_had_one_broker(opened: str) -> None:
    """What clients are told of queues is numbered on, though one broker counts its events. opened:
    the connection, before or after the second broker was there."""
    engine = RestingEngine(parse_configuration({"brokers": ["a"]}))
    own = {"name": "q", "message_type": "text", "type": "LocalQueue"}
    for n in range(20):
        engine.connect("a").admin().define(own | {"name": f"q{n}"})
    if opened == "after":
        engine.change(add="b")
    with engine.connect("a").consumer("q19", max_backlog=5) as consumer:
        if opened == "before":
            engine.change(add="b")
        engine.connect("b").admin().move_queue("q19", "b")
        engine.connect("b").producer().send("q19", b"x")
        message = consumer.receive(timeout=0)
        assert message is not None
        assert message.payload == b"x"


# ---------------------------------------------------------------- captured topics


def test_M4_an_administrator_adds_and_removes_brokers() -> None:
    """As over Kafka: what went where is said, and clients go on by themselves."""
    engine = home([{"name": "q", "type": "LocalQueue", "broker": "b"}, {"name": "everywhere"}])
    connection = engine.connect("b")
    admin, producer = connection.admin(), connection.producer()
    consumer = connection.consumer("q", max_backlog=1, ack_mode="individual")
    producer.send("q", b"1")
    admin.add_broker("c", group="west")
    assert [one["name"] for one in admin.brokers()] == ["a", "b", "c"]
    assert admin.brokers()[2]["group"] == "west"
    message = consumer.receive(timeout=0)
    message.ack()
    assert admin.remove_broker("b", to="c") == [{"vpn": "default", "queue": "q", "broker": "c"}]
    with pytest.raises(LakequeueError, match="cannot be used again"):
        admin.add_broker("b")
    for body in (b"2", b"3"):
        producer.send("q", body)
        engine.advance("0s")
        message = consumer.receive(timeout=0)
        assert message.payload == body
        message.ack()
    assert [one["name"] for one in admin.brokers()] == ["a", "c"]
    assert admin.describe("q")["depth"] == 0


def test_H5_a_queue_that_is_shut_down_stays_so_and_can_be_opened_when_a_broker_comes() -> None:
    """Of a home with one broker too, which has no directory yet."""
    queues = [{"name": "q", "message_type": "json"}]
    engine = RestingEngine(parse_configuration({"brokers": ["a"], "queues": queues}))
    admin = engine.connect("a", "ops").admin()
    engine.connect("a", "app").producer().send("q", b"{}")
    admin.shutdown("q", egress=True)
    engine.change(add="b")
    consumer = engine.connect("b", "app-b").consumer("q", ack_mode="auto")
    assert consumer.receive(timeout=0) is None
    admin.shutdown("q", egress=False)
    assert consumer.receive(timeout=0) is not None
