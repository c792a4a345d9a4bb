"""Brokers are added and removed while a home is at rest (M4, M5, P1, L1, L4, L9, O1–O4).

A home that changes is compared with its twin that does not: both get the same input, and clients
see the same. Where a home is made of pages by hand, its brokers are driven one by one.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest
from lakequeue import state
from lakequeue.lake.views import states_after
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh import stand_ins
from lakequeue.mesh.home_change import HomeChange, NotAtRest
from lakequeue.mesh.rehome import Resting, rehome
from lakequeue.protocol import commands as c
from lakequeue.protocol import topics, wire
from lakequeue.protocol.errors import ConfigError, LakequeueError
from lakequeue.protocol.ids import make_id
from lakequeue.protocol.messages import HEADER
from lakequeue.state import Broker, DictStore, Limits
from lakequeue.state.commands.permissions import heard_as
from lakequeue.state.queue.broker_facts import HeldReceipt
from lakequeue.state.queue.table import NAMES as STATES
from lakequeue.state.storage.row import DELAYED, READY
from mesh.rehomed import Home, RestingEngine
from rules.mesh import ids, local, shared, take

QUEUES: list[dict[str, Any]] = [
    local("plain"),
    local("ranked", priority="/p", dead_message_queue="dead"),
    local("barred", barrier_expression="/n % 7 = 0"),
    shared("keyed", partition_key="/k", max_deliveries=2, dead_message_queue="dead"),
    local("short", expiration="20s", dead_message_queue="dead"),
    local("dead"),
]
NAMES = [one["name"] for one in QUEUES]
LEASED = [{"lease_period": "25s", **one} for one in QUEUES]
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

NOW = 1_800_000_000_000  # twins have one time


def ms(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def lease(home: Home, queue: str, backlog: int) -> None:
    """A consumer without a session and without a client leases messages at the queue's broker."""
    for broker in home.engine.brokers:
        said = c.Subscribe(
            queue=queue, subscription=f"raw-{queue}-{broker.home.name}", max_backlog=backlog,
            inbox=c.Inbox(topic=topics.topic("default", topics.DELIVERIES), partition=0),
        )  # fmt: skip
        key = topics.topic("default", topics.COMMANDS)
        home.engine.command(key, b"", c.encode_command(said), broker.home.number)


def filled(seed: int, limits: Limits) -> Home:
    """Messages of all kinds; some leased, some delayed, some dead."""
    home = Home(*LEASED, limits=limits)
    home.engine.now = NOW
    chance = random.Random(seed)
    for n in range(1, 60):
        body = {"n": n, "k": chance.randrange(4), "p": chance.randrange(5)}
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["delay"] = f"{chance.randrange(1, 40)}s"
        elif chance.random() < 0.2:
            options["ttl"] = f"{chance.randrange(5, 60)}s"
        to = chance.choice([name for name in NAMES if name != "dead"])
        home.send(chance.choice("ab"), to, body, **options)
        if n == 30:
            for queue in ("plain", "ranked", "keyed"):
                lease(home, queue, chance.randrange(1, 5))
        if chance.random() < 0.2:
            home.advance(f"{chance.randrange(1, 4)}s")
    for connection in home.at.values():
        connection.close()
    return home


def taken(engine: RestingEngine) -> dict[str, list[Any]]:
    """The messages that consumers get, queue by queue, in order, until nothing is left."""
    connection = engine.connect(None, "last")
    found: dict[str, list[Any]] = {}
    for queue in NAMES:
        with connection.consumer(queue, max_backlog=3, ack_mode="individual") as consumer:
            seen = found[queue] = []
            for n in range(15):
                seen += [
                    (n, m.id, m.payload, m.delivery_count, sorted(m.headers.items()))
                    for m in take(consumer)
                ]
                engine.advance("3s")
    return found


def numbers_of(engine: RestingEngine) -> dict[str, dict[str, Any]]:
    admin = engine.connect().admin()
    described = {name: admin.describe(name) for name in NAMES}
    kept = ("depth", "leased", "delayed", "bytes", "counters")
    return {name: {what: one.get(what) for what in kept} for name, one in described.items()}


@functools.cache
def unchanged(limits: str) -> tuple[Any, Any]:
    """The figures of the twin that does not change, and its consumers' messages."""
    engine = filled(0, LIMITS[limits]).engine
    return numbers_of(engine), taken(engine)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("changes", CHANGES)
def test_M4_clients_notice_no_change_of_brokers(changes: str, limits: str) -> None:
    """Positions, priorities, barriers, lanes, delays, expirations, leases, counts (O1–O4, L4, L12,
    X1)."""
    engine = filled(0, LIMITS[limits]).engine
    for change in CHANGES[changes]:
        engine.change(**change)
    numbers, wanted = unchanged(limits)
    assert numbers_of(engine) == numbers
    found = taken(engine)
    for name in NAMES:
        assert found[name] == wanted[name], name


@pytest.mark.parametrize("change", [{"remove": "b"}, {"plain": "b", "ranked": "b", "short": "b"}])
def test_R1_M4_the_journal_shows_moved_messages_as_they_are(change: dict[str, str]) -> None:
    """With their leases, delays and counts, and what they died of."""
    engine = filled(0, Limits()).engine
    engine.change(**change)
    rows = [row for row in engine.journal() if row["event"] in states_after()]
    newest = {(row["queue"], row["message_id"]): row for row in rows}
    admin, states = engine.connect().admin(), set()
    for name in NAMES:
        for m in admin.browse(name, limit=1_000):
            states.add(m.state)
            row = newest[name, m.id]
            ends = {"leased": m.lease_expires_at, "delayed": m.ready_at}
            told = states_after()[row["event"]] - {DELAYED if row["until"] is None else READY}
            assert [STATES[one] for one in told] == [m.state]
            assert (row["deliveries"], row["until"]) == (m.delivery_count, ms(ends.get(m.state)))
            if "dead" in row["reason"] or name == "dead":
                assert row["reason"].endswith(m.headers["lq-dead-reason"])
    assert states == {"ready", "leased", "delayed"}


def test_M4_rehoming_makes_the_same_pages_byte_for_byte() -> None:
    engine = filled(1, COLD).engine
    resting = [Resting(b.home.name, b.home.number, dict(b.store.pages)) for b in engine.brokers]
    kept = [dict(one.pages) for one in resting]
    change = HomeChange({"b": 1, "c": 2})
    found = [rehome(resting, change, 0, engine.secret, COLD) for _ in range(2)]
    assert [one.pages for one in resting] == kept
    assert found[0] == found[1]


def test_M4_the_first_remaining_broker_answers_for_a_removed_one() -> None:
    """A producer's repetition is stored once, and acknowledged under the old number (P1)."""
    home = Home(shared("q"))
    engine = home.engine
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
    assert home.depth() == 6
    publish(0, 2, 3)  # the same name at the remaining broker is another producer
    assert home.depth() == 7
    engine.change(add="c")
    engine.change(remove="a")
    publish(0, 2, 3, 4)
    publish(1, 4, 5)
    assert home.depth() == 9


def test_M4_late_records_of_a_removed_broker_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A predecessor of its last worker still had them in flight to Kafka; all were processed
    before."""
    home = Home(local("q", "a"))
    said: list[wire.WireRecord] = []
    with monkeypatch.context() as listening:
        tell = MemoryBroker.tell

        def heard(broker: MemoryBroker, record: wire.WireRecord) -> None:
            if broker.home.name == "b":
                said.append(record)
            tell(broker, record)

        listening.setattr(MemoryBroker, "tell", heard)
        home.admin.subscribe_topic("q", "news")
        home.admin.define(local("other", "a"))
        home.engine.change(remove="a")
    for record in said[-2:]:
        tell(home.engine.broker("b"), record)
    home.advance("1s")
    for queue in ("q", "other"):
        home.send("b", queue)
        assert home.depth(queue) == 1
    events = [one["event"] for one in home.at["b"].admin().events()]
    assert "mesh_gap" not in events


def test_M4_a_late_list_of_brokers_does_not_bring_a_removed_one_back() -> None:
    """Each change of the directory would wait for its confirmation, for ever."""
    home = Home(local("q", "a"))
    home.engine.change(remove="b")
    for brokers in ({"a": 0, "b": 1}, {"a": 0}):
        home.engine.instruct("default", c.encode_command(c.Peers(brokers=brokers)), "a")
    home.admin.define(local("other", "a"))
    assert (home.facts("a").brokers, set(home.facts("a").peers)) == ({"a": 0}, set())


def test_L9_an_early_ack_waits_at_its_queues_broker() -> None:
    home = Home(local("q", "b"))
    said = c.Ack(queue="q", subscription="s", ids=str((1 << 48) + 3))
    home.engine.command("default.commands", b"", c.encode_command(said), 1)
    for _ in range(2):
        home.send("b", "q")
    home.engine.change(add="c")
    home.engine.change(remove="a", to="c")
    home.send("b", "q")
    seen = home.at["b"].admin().describe("q")
    assert (seen["depth"], seen["counters"].get("acknowledged")) == (2, 1)


def test_M4_definitions_that_name_the_broker_prevent_its_removal() -> None:
    change = Home(shared("q", type="GroupLocalQueue", initial_owner="b")).engine.change
    for refused, why in (
        ({"remove": "b"}, "initial_owner: 'b'"),
        ({"remove": "c"}, "this home has no such broker"),
        ({"remove": "a", "to": "x"}, "to: 'x'"),
    ):
        with pytest.raises((ConfigError, LakequeueError), match=why):
            change(**refused)
    change(remove="a")
    with pytest.raises(LakequeueError, match="only one"):
        change(remove="b")
    with pytest.raises(LakequeueError, match="cannot be used again"):
        change(add="a")


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
def test_M4_an_invalid_broker_is_not_added(name: str, group: str, why: str) -> None:
    """In memory as on Kafka, so that an application's tests find it."""
    home = Home(shared("q"))
    home.admin.add_broker("c1", group="coast")
    with pytest.raises(LakequeueError, match=why):
        home.admin.add_broker(name, group=group)
    assert [broker.home.name for broker in home.engine.brokers] == ["a", "b", "c1"]


def test_M5_consumers_and_producers_follow_a_queue_that_moves_at_rest() -> None:
    home = Home(local("q", "a", "news"))
    consumer = home.consumer("a", 1, "q")
    for n, (to, sender) in enumerate(("ba", "ab", "bb")):
        home.admin.move_queue("q", to, pause=True)
        home.engine.check()
        assert home.where() == {"q": to}
        home.send(sender, "news", n)
        home.advance("1s")
        assert [(m.payload, m.redelivered) for m in take(consumer)] == [(b"%d" % n, False)]
    assert home.depth() == 0


@pytest.mark.parametrize(
    ("queue", "to", "why"),
    [
        ("q", "x", "allowed are the home's brokers: a, b"), ("all", "b", "only a LocalQueue"),
        ("none", "b", "there is no such queue"),
    ],
)  # fmt: skip
def test_M5_a_refused_move_at_rest_has_a_reason(queue: str, to: str, why: str) -> None:
    with pytest.raises(LakequeueError, match=why):
        Home(local("q"), shared("all")).admin.move_queue(queue, to, pause=True)


def test_M4_nothing_changes_while_something_is_between_brokers() -> None:
    home = Home(local("q", "b", "news"))
    home.engine.cut("b")
    home.send("a", "news")
    with pytest.raises(NotAtRest, match="has yet to read"):
        home.engine.change(remove="b")
    home.engine.mend("b")
    home.engine.change(remove="b")
    assert home.depth() == 1


def test_M4_S9_messages_that_enter_a_queue_at_rest_set_its_alert() -> None:
    home = Home(local("full", "b", "news", max_spool_messages=3))
    for _ in range(6):
        home.send("a", "news")
    at = home.at["b"].admin()

    def seen() -> tuple[int, list[str]]:
        shown = at.describe("full")
        return shown["depth"], shown["alerts"]

    home.drained("full", "b")
    assert seen() == (0, [])
    home.engine.change(remove="a", to="b")
    assert seen() == (3, ["spool_usage"])
    assert at.events()[-1]["event"] == "spool_usage_high"


@pytest.mark.parametrize(
    "change", [{"remove": "a", "to": "b"}, {"remove": "c", "to": "a"}, {"add": "d"}]
)
def test_M4_M3_messages_waiting_for_room_elsewhere_keep_waiting(change: dict[str, str]) -> None:
    """At the new home of their holder, or in the queue if that comes to the holder."""
    home = Home(local("full", "c", "news", max_spool_messages=1), brokers="abc")
    sent = [home.send("a", "news") for _ in range(4)]
    home.engine.change(**change)
    assert ids(home.drained("full", change.get("to", "b"), rounds=20)) == sent
    assert home.depth("full") == 0


def test_M4_M3_messages_waiting_for_a_queue_enter_its_new_host() -> None:
    """A queue that no longer has keys gets more hosts when a broker is added (M1)."""
    home = Home(shared("full", "news", max_spool_messages=1, partition_key="/k"))
    sent = [home.send("b", "news") for _ in range(3)]
    home.admin.define({"name": "full", "partition_key": None})
    home.engine.change(add="c")
    assert sorted(ids(home.drained("full", "b", rounds=20))) == sorted(sent)


@pytest.mark.parametrize("state", ["ready", "leased", "delayed"])
def test_M4_R6_joining_two_parts_of_a_queue_keeps_a_message_once(
    state: str,
) -> None:
    """A command had moved it from another queue into the second part."""
    home = Home(shared("spread", "news"), local("own", None, "news"))
    host = home.where()["own"]
    other = "ab".replace(host, "")
    taker = home.consumer(other, 1, "spread")
    home.send(host, "news")
    message = taker.receive(timeout=0)
    if state == "delayed":
        message.cancel("1h")
    if state != "leased":
        taker.close()
    home.admin.move("own", "spread")
    assert home.depth("spread") == 2
    home.engine.change(remove=other)
    assert home.depth("spread") == 1
    assert home.admin.describe("spread")["delayed"] == 0
    assert len(home.drained("spread", host)) == 1
    assert home.depth("spread") == 0
    home.engine.check()


def test_M4_a_moved_queue_stays_when_its_configured_broker_is_removed() -> None:
    home = Home(local("q", "c"), brokers="abc")
    home.admin.move_queue("q", "b")
    home.advance("1s")
    home.engine.change(remove="c")
    assert home.where() == {"q": "b"}


def test_M4_a_home_with_one_broker_gets_a_second() -> None:
    """Its queues form the home's directory from then on."""
    alone = Home(*QUEUES, limits=COLD, brokers="a")
    for _ in range(20):
        alone.send("a", "plain")
    pages, engine = dict(alone.engine.brokers[0].store.pages), RestingEngine()
    assert "mesh" not in pages
    engine.secret, engine.now = alone.engine.secret, alone.engine.now
    change = HomeChange({"a": 0, "b": 1})
    found = rehome([Resting("a", 0, pages)], change, 0, engine.secret, COLD)
    engine.take_home([(one.name, one.number, one.pages) for one in found.brokers], {})
    for queue in ("plain", "keyed"):
        engine.connect("b").producer().send(queue, b"{}")
    engine.check()
    admin = engine.connect("a").admin()
    assert [admin.describe(q)["depth"] for q in ("plain", "keyed")] == [21, 1]
    engine.connect("b").admin().define(shared("new"))
    assert admin.describe("new")["depth"] == 0


@pytest.mark.parametrize("opened", ["before", "after"])
def test_M5_a_consumer_follows_a_queue_of_a_home_that_had_one_broker(opened: str) -> None:
    """The directory's numbering continues, although a single broker counts its events. opened: the
    connection, before or after the second broker was added."""
    home = Home(brokers="a")
    for n in range(20):
        home.admin.define(local(f"q{n}"))
    if opened == "after":
        home.engine.change(add="b")
    with home.engine.connect("a").consumer("q19", max_backlog=5) as consumer:
        if opened == "before":
            home.engine.change(add="b")
        at_b = home.engine.connect("b")
        at_b.admin().move_queue("q19", "b")
        at_b.producer().send("q19", b"x")
        assert [m.payload for m in take(consumer)] == [b"x"]


def test_M4_an_administrator_adds_and_removes_brokers() -> None:
    """As over Kafka: the result names what moved, and clients reconnect by themselves."""
    home = Home(local("q", "b"), shared("everywhere"))
    admin, consumer = home.at["b"].admin(), home.consumer("b", 1, "q")
    admin.add_broker("c", group="west")
    assert [one["name"] for one in admin.brokers()] == ["a", "b", "c"]
    assert admin.brokers()[2]["group"] == "west"
    home.send("b", "q", 1)
    assert len(take(consumer)) == 1
    assert admin.remove_broker("b", to="c") == [{"vpn": "default", "queue": "q", "broker": "c"}]
    with pytest.raises(LakequeueError, match="cannot be used again"):
        admin.add_broker("b")
    for body in (b"2", b"3"):
        home.send("b", "q", body)
        home.advance("0s")
        assert [m.payload for m in take(consumer)] == [body]
    assert [one["name"] for one in admin.brokers()] == ["a", "c"]
    assert home.depth() == 0


def test_H5_a_shut_down_queue_stays_so_when_a_broker_is_added() -> None:
    """Also in a home with one broker, which has no directory yet."""
    home = Home(shared("q"), brokers="a")
    home.send("a", "q")
    home.admin.shutdown("q", egress=True)
    home.engine.change(add="b")
    consumer = home.engine.connect("b", "app-b").consumer("q", ack_mode="auto")
    assert consumer.receive(timeout=0) is None
    home.admin.shutdown("q", egress=False)
    assert consumer.receive(timeout=0) is not None


# ---------------------------------------------------------------- shared contents


def test_M4_S2_a_content_dropped_by_one_queue_stays_for_the_others() -> None:
    """It was shared there, too; the queue that keeps its last message has a later one here."""
    home = Home(shared("last", "t", max_spool_usage=0), shared("one", "t"), shared("two", "t"))
    for n, broker in enumerate("ba"):
        home.send(broker, "t", n)
        home.advance("1s")
    home.engine.change(remove="b")
    found = {queue: sorted(m.payload for m in home.drained(queue, "a")) for queue in home.where()}
    assert found == {"last": [b"1"], "one": [b"0", b"1"], "two": [b"0", b"1"]}
    spool = home.state("a").spool
    assert (spool.messages, spool.bytes) == (0, 0)


def test_M4_S10_one_message_is_left_for_a_queue_that_keeps_the_last() -> None:
    keys = {"reject_msg_to_sender_on_discard": "including-when-shutdown"}
    home = Home(local("last", "a", "t", max_spool_usage=0, **keys))
    home.engine.cut("a")
    for n in range(3):
        home.send("b", "t", n)
    home.tell(c.Shutdown(queue="last", ingress=True, egress=False))
    home.engine.mend("a")
    home.advance("1s")
    assert home.admin.usage()["lanes"][0]["waiting"] == 3
    home.engine.change(remove="b")
    assert home.admin.usage()["lanes"][0]["waiting"] == 3  # it is still shut down
    home.admin.shutdown("last")
    home.advance("2s")
    assert [m.payload for m in home.drained("last", "a")] == [b"2"]


@pytest.mark.parametrize("removed", [False, True])
def test_M5_the_new_host_reads_a_captured_topic_from_the_old_position(
    removed: bool,
) -> None:
    """A queue there captures the same topic already, and has read more of it."""
    home = Home(
        local("fed", "a", underlying_topic="plain"), local("near", "b", underlying_topic="plain"),
        local("other", "a", underlying_topic="more"),
    )  # fmt: skip
    home.send("b", "near")  # its topics are known by now
    read: list[dict[tuple[str, int], int]] = [
        {("plain", 0): 5, ("plain", 1): 7, ("more", 0): 3}, {("plain", 0): 9}
    ]  # fmt: skip
    resting = [
        Resting(one.home.name, one.home.number, dict(one.store.pages), offsets)
        for one, offsets in zip(home.engine.brokers, read, strict=True)
    ]
    moves = {("default", name): "b" for name in ("fed", "other")}
    change = HomeChange({"b": 1}) if removed else HomeChange({"a": 0, "b": 1}, moves=moves)
    found = rehome(resting, change, 5, b"", Limits())
    (there,) = (one for one in found.brokers if one.name == "b")
    captured = {place: at for place, at in there.offsets.items() if place[0] in ("plain", "more")}
    assert captured == {("plain", 0): 5, ("plain", 1): 0, ("more", 0): 3}


def test_R2_M5_a_queue_with_a_bookmark_takes_all_records_where_it_moves_to() -> None:
    """That broker's ids say nothing about the bookmark."""
    home = Home(local("orders", "b", recovery_point=str(make_id(1, 3))), local("others", "b", "t"))
    home.engine.publish("orders", b"{}", None, [])  # it would get the counter 1
    for _ in range(2):
        home.send("b", "t")
    home.engine.publish("orders", b"{}", None, [])
    assert home.depth("orders") == 1
    home.engine.change(orders="a")
    home.engine.publish("orders", b"{}", None, [])
    assert (home.where()["orders"], home.depth("orders")) == ("a", 2)


# ---------------------------------------------------------------- refusals and their reasons


def rest(home: Home) -> list[Resting]:
    """The home's brokers at rest."""
    return [
        Resting(one.home.name, one.home.number, dict(one.store.pages))
        for one in home.engine.brokers
    ]


def test_M5_the_endpoint_of_a_bridge_cannot_move() -> None:
    home = Home(local("q", "b"))
    home.admin.bridge({"name": "out", "to": "memory://east", "subscriptions": ["x"]})
    with pytest.raises(ConfigError, match="'#bridge/out' – is the endpoint of a bridge"):
        home.engine.change(**{"#bridge/out": "b"})


@pytest.mark.parametrize("why", ["failed", "busy", "busy, its broker goes"])
def test_M4_a_queue_with_unfinished_work_cannot_move(why: str) -> None:
    home = Home(local("q", "b"))
    state = home.state("b")
    queue = state.find("default", "q")
    state.touch(queue)
    if why == "failed":
        queue.header.faulted = "RuntimeError: planted"
    else:
        state.header.pending[queue.number] = True
    change = HomeChange({"a": 0, "b": 1}, moves={("default", "q"): "a"})
    if why == "busy, its broker goes":
        change = HomeChange({"a": 0})
    error = ConfigError if why == "failed" else NotAtRest
    with pytest.raises(error, match=r"failed \(Runt.*define it again|'q' is being carried out"):
        rehome(rest(home), change, 0, b"", Limits())


def test_M4_the_heir_carries_out_a_removed_brokers_signed_commands_once() -> None:
    """It keeps the numbers that the clients of each removed broker have used."""
    home = Home(brokers="abc")
    for name, seq in (("b", 5), ("c", 7)):
        home.state(name).header.heard["default/app"] = {"s": (seq, 1, home.engine.now)}
    resting = rest(home)
    for there in ({"a": 0, "b": 1}, {"a": 0}):
        resting = rehome(resting, HomeChange(there), 0, b"", Limits()).brokers
    heir = Broker.load(DictStore(resting[0].pages), state.Home("a", 0, 0, b""), Limits())
    heard = {name: sessions["s"][0] for name, sessions in heir.header.heard.items()}
    assert heard == {"default/app@1": 5, "default/app@2": 7}
    assert heard_as("default", "app", 2, heir.home.number) in heard


def test_M4_a_home_with_messages_in_transit_is_not_at_rest() -> None:
    """Although all records between brokers were read."""
    home = Home(local("q", "b", "t"))
    home.send("a", "t")
    state = home.state("a")
    queue = stand_ins.find(state, "default", "q")
    assert queue is not None
    state.touch(queue)
    queue.header.subscriptions[0].held = 1
    with pytest.raises(NotAtRest, match="messages of queue '#out/q' are in transit"):
        rehome(rest(home), HomeChange({"a": 0}), 0, b"", Limits())


def test_M4_a_home_remembers_every_removed_broker() -> None:
    """Their records may come again."""
    home = Home(brokers="abc")
    home.engine.change(remove="b")
    home.engine.change(remove="c")
    assert home.facts("a").removed == [1, 2]


def test_M4_receipts_that_wait_for_the_tables_go_to_the_heir() -> None:
    """Together with the state of the tables."""
    home = Home(brokers="ab")
    state_of_b = home.state("b")
    needs = {"default.publish/16": 9}
    receipt = HeldReceipt("default", "p", 3, 0, [[1, 3, 7]], [], 1, [], "", 0, needs)
    state_of_b.held.append(receipt)
    state_of_b.header.in_tables = {"default.publish/16": 5}
    home.state("a").header.in_tables = {"default.publish/0": 4, "default.publish/16": 2}
    (found,) = rehome(rest(home), HomeChange({"a": 0}), 0, b"", Limits()).brokers
    heir = Broker.load(DictStore(found.pages), state.Home("a", 0, 0, b""), Limits())
    assert list(heir.held) == [receipt]
    assert heir.header.in_tables == {"default.publish/0": 4, "default.publish/16": 5}
