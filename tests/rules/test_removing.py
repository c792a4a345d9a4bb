"""A broker is removed from a home that runs: what it has stands in the way, its clients and what
they send do not, and nothing is lost or comes twice (S5, P1)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.memory.broker_removal import remove_broker, tell_peers
from lakequeue.protocol import LakequeueError, commands
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.messages import HEADER, Records
from lakequeue.state import Batch
from lakequeue.state.mesh import parting

from .harness import drain
from .mesh import Mesh, ids, owned
from .mortal import Fate
from .spread import Spread, local


def message(producer: str, seq: int, to: str, body: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    meta = b'{"to":"%s","producer":"%s","seq":%d}' % (to.encode(), producer.encode(), seq)
    return body, [(HEADER, meta)]


def say(spread: Spread, producer: str, seq: int, partition: int, body: bytes) -> None:
    """A counting producer's record, in a partition of its choice."""
    value, headers = message(producer, seq, "a/b", body)
    spread.engine.publish("default.publish", value, None, headers, partition=partition)


def test_an_empty_broker_is_removed_and_its_clients_go_on() -> None:
    spread = Spread(local("orders", "b", "a/b"))
    before = spread.send("c", "a/b", b'{"n": 1}')
    remove_broker(spread.engine, "c")
    assert [b["name"] for b in spread.admin.brokers()] == ["a", "b"]
    after = spread.send("c", "a/b", b'{"n": 2}')
    assert spread.ids("orders") == [before, after]
    admin = spread.at["c"].admin()
    admin.define(local("more", "b"))
    assert admin.describe("more")["depth"] == 0
    consumer = spread.at["c"].consumer("orders", ack_mode="individual")
    for body in (b'{"n": 1}', b'{"n": 2}'):
        got = consumer.receive(timeout=0)
        assert got.payload == body
        got.ack()
    assert spread.admin.describe("orders")["depth"] == 0
    spread.engine.check()


@pytest.mark.parametrize("way", ["a/b", "orders"])
def test_P1_what_a_removed_broker_stored_is_not_stored_again(way: str) -> None:
    """A producer that was cut off sends again what it has no receipt of: to where it sent it."""
    spread = Spread(local("orders", "b", "a/b"))
    value, headers = message("p", 1, way, b"{}")
    spread.engine.publish("default.publish", value, None, headers, partition=17)
    remove_broker(spread.engine, "c")
    inbox = spread.engine.open_inbox("default.receipts")
    for seq in (1, 2, 2):
        value, headers = message("p", seq, way, b"{}")
        spread.engine.publish("default.publish", value, None, headers, partition=17)
    said = [r.value for r in inbox if r.key == b"p"]
    assert said
    assert all(b'"broker":2' in (one or b"") for one in said)
    if way == "a/b":  # else it is told where the queue is, and numbers anew there
        assert len(spread.ids("orders")) == 2


def test_P1_a_producer_counts_for_each_broker_by_itself_also_for_one_that_is_gone() -> None:
    spread = Spread(local("orders", "a", "a/b"))
    for partition in (16, 0):
        for seq in (1, 2):
            say(spread, "p", seq, partition, b'{"at": %d}' % partition)
    assert len(spread.ids("orders")) == 4
    remove_broker(spread.engine, "c")
    for partition in (16, 0):
        for seq in (2, 3):
            say(spread, "p", seq, partition, b'{"at": %d}' % partition)
    assert len(spread.ids("orders")) == 6
    spread.engine.restart()
    for partition in (16, 0):
        say(spread, "p", 3, partition, b"{}")
    assert len(spread.ids("orders")) == 6


def test_P1_records_of_both_in_one_step_are_not_taken_for_one_run() -> None:
    spread = Spread(local("orders", "a", "a/b"))
    say(spread, "p", 1, 16, b"{}")
    say(spread, "p", 2, 16, b"{}")
    remove_broker(spread.engine, "c")
    columns: list[Any] = []
    for partition, seq in ((0, 1), (0, 2), (16, 3), (16, 4)):
        value, headers = message("p", seq, "a/b", b'{"n": %d}' % len(columns))
        columns.append(("default.publish", partition, seq, 0, None, value, headers[0][1], None))
    records = Records(*(list(column) for column in zip(*columns, strict=True)))
    engine = spread.engine
    engine._carry(engine.brokers[0].step(Batch(publishes=records), engine.now))
    assert len(spread.ids("orders")) == 6
    say(spread, "p", 3, 0, b'{"n": 9}')  # new: there it had sent two
    assert len(spread.ids("orders")) == 7


def test_a_broker_that_has_something_stays_and_says_what() -> None:
    spread = Spread(
        bridges=[{"name": "over", "from": "a", "to": "b", "subscriptions": ["x/>"]}],
    )
    cases = [
        ("b", r"broker 'b': is an end of bridge 'over' of VPN 'default': delete that first"),
        ("a", r"broker 'a': is an end of bridge 'over' of VPN 'default': delete that first"),
    ]
    for name, why in cases:
        with pytest.raises(LakequeueError, match=why):
            remove_broker(spread.engine, name)
    with pytest.raises(ConfigError, match=r"'d' – is none of this home, whose brokers are a, b, c"):
        remove_broker(spread.engine, "d")
    spread.admin.define({"name": "shared", "message_type": "json", "group": ["a", "b", "c"]})
    with pytest.raises(LakequeueError, match=r"'c': is a host of queue 'shared' of VPN 'default'"):
        remove_broker(spread.engine, "c")
    assert [b["name"] for b in spread.admin.brokers()] == ["a", "b", "c"]
    spread.admin.delete("shared")
    remove_broker(spread.engine, "c")
    with pytest.raises(ConfigError, match=r"'c' – is none of this home, whose brokers are a, b"):
        remove_broker(spread.engine, "c")
    spread.engine.check()


@pytest.mark.parametrize("queue", [{"type": "Queue"}, {"type": "LocalQueue", "broker": "b"}])
def test_H4_what_is_on_its_way_to_a_broker_lets_it_stay(queue: dict[str, Any]) -> None:
    """A broker to which messages may be on their way has their queue, or is to have it."""
    mesh = Mesh(**queue)
    if queue["type"] == "Queue":
        consumer = mesh.consumer("c")
    mesh.engine.cut("c")
    sent = [mesh.send("b") for _ in range(3)]
    if queue["type"] == "LocalQueue":
        move = commands.MoveQueue(queue="orders", broker="c")
        mesh.engine.command("default.commands", b"", commands.encode_command(move))
        for deaf, hears in (("b", "c"), ("c", "b")):  # c expects it, then b lets it go
            mesh.engine.cut(deaf)
            mesh.engine.mend(hears)
    assert owned(mesh.engine.broker("b"), mesh.engine.now) == ([], sent)
    is_shared = queue["type"] == "Queue"
    why = "did not say the last word" if is_shared else "1 definitions.* of queues are not done yet"
    with pytest.raises(LakequeueError, match=why):
        remove_broker(mesh.engine, "c")
    mesh.engine.mend("c")
    admin = mesh.at["a"].admin()
    assert ids(admin.browse("orders")) == sent
    if is_shared:
        assert ids(drain(consumer)) == sent
    else:
        assert admin.describe("orders")["broker"] == "c"
        assert remove_broker(mesh.engine, "c") == [("default", "orders", "a")]
        assert ids(admin.browse("orders")) == sent


@pytest.mark.parametrize("silent", ["b", "c"])
def test_H4_what_was_granted_to_a_broker_is_back_before_it_leaves(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the directory has nothing there: as where a definition was undone at a new host, to
    which another host had granted messages. Nobody says farewell before what it granted was heard,
    and nobody is gone before what it refused was heard."""
    monkeypatch.setattr(parting, "_check_empty", lambda *_: [])
    mesh = Mesh()
    mesh.consumer("c", 2)
    mesh.engine.cut("c")
    sent = [mesh.send("b") for _ in range(3)]
    b = mesh.engine.broker("b")
    assert owned(b, mesh.engine.now) == (sent[2:], sent[:2])
    mesh.carry("c", commands.Delete(queue="orders"))
    if silent == "b":  # what is said of the grant is not heard
        mesh.engine.cut("b")
        mesh.engine.mend("c")
    with pytest.raises(LakequeueError, match="did not say the last word"):
        remove_broker(mesh.engine, "c")
    assert owned(b, mesh.engine.now) == (sent[2:], sent[:2])
    mesh.engine.mend(silent)
    remove_broker(mesh.engine, "c")
    assert owned(b, mesh.engine.now) == (sent, [])
    assert mesh.at["b"].consumer("orders").receive(timeout=0).id == sent[0]


def test_the_last_broker_stays() -> None:
    spread = Spread()
    for name in ("b", "c"):
        remove_broker(spread.engine, name)
    with pytest.raises(LakequeueError, match="'a': cannot be removed, for it is the home's only"):
        remove_broker(spread.engine, "a")
    spread.admin.define({"name": "orders", "message_type": "json", "subscriptions": ["a/>"]})
    for broker in "abc":
        spread.send(broker, "a/b")
    assert len(spread.ids("orders")) == 3
    spread.engine.check()


def test_S5_what_is_undecided_is_decided_first() -> None:
    """A broker that is away has not voted: then who asked it cannot go yet, and goes on."""
    spread = Spread(local("orders", "b", "a/b"))
    spread.engine.broker("b").is_stopped = True
    sent = spread.start("c", "a/b", b'{"n": 1}')
    with pytest.raises(LakequeueError, match=r"'c': cannot be removed now, for 'c' did not say"):
        remove_broker(spread.engine, "c")
    assert [b["name"] for b in spread.admin.brokers()] == ["a", "b", "c"]
    more = spread.start("c", "a/b", b'{"n": 2}')
    spread.engine.broker("b").is_stopped = False
    spread.engine.advance("1s")
    assert [sent.result(0).message_id, more.result(0).message_id] == spread.ids("orders")
    remove_broker(spread.engine, "c")
    last = spread.send("c", "a/b")
    assert spread.ids("orders")[2:] == [last]


def test_who_has_not_heard_the_last_words_is_waited_for() -> None:
    spread = Spread(local("orders", "b", "a/b"))
    spread.engine.cut("b")
    with pytest.raises(LakequeueError, match="did not say the last word"):
        remove_broker(spread.engine, "c")
    spread.engine.mend("b")
    remove_broker(spread.engine, "c")
    assert not [e for e in spread.engine.journal() if e["event"] in ("mesh_gap", "mesh_refused")]


def test_nothing_is_placed_on_a_broker_that_is_being_removed() -> None:
    spread = Spread(local("orders", "b"))
    begun = spread.at["a"].request(commands.RemoveBroker(broker="c"))
    for n in range(4):
        spread.admin.define({"name": f"q{n}", "message_type": "json", "type": "LocalQueue"})
    assert {q["broker"] for q in spread.admin.queues()} == {"a", "b"}
    for definition in (local("here", "c"), {"name": "shared", "message_type": "json"}):
        with pytest.raises(LakequeueError, match=r"broker 'c' is being removed"):
            spread.admin.define(definition)
    with pytest.raises(LakequeueError, match=r"'orders': broker 'c' is being removed"):
        spread.admin.move_queue("orders", broker="c")
    with pytest.raises(ConfigError, match=r"must be a broker of this home, which has 'a', 'b'"):
        spread.admin.bridge({"name": "x", "from": "a", "to": "c", "subscriptions": ["x/>"]})
    assert begun["round"] == 1
    remove_broker(spread.engine, "c")
    with pytest.raises(LakequeueError, match="was begun again, or given up"):
        spread.at["a"].request(commands.RemoveBroker(broker="c", round=1))


def test_only_the_engine_closes_a_broker() -> None:
    spread = Spread()
    spread.engine.command(
        "default.commands", b"", commands.encode_command(commands.CloseBroker(round=1)), "c"
    )
    assert [e for e in spread.engine.journal() if e["event"] == "command_refused"] == []
    assert spread.engine.open_inbox("x") is not None
    with pytest.raises(LakequeueError):
        spread.at["c"].request(commands.CloseBroker(round=1))


def test_more_producers_than_a_step_tells_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "HISTORIES", 3)
    spread = Spread(local("orders", "a", "a/b"))
    for again in (False, True):
        for n in range(10):
            say(spread, f"p{n}", 1, 16, b"{}")
        if not again:
            remove_broker(spread.engine, "c")
    assert spread.admin.describe("orders")["depth"] == 10


@pytest.mark.parametrize("seed", range(20))
def test_brokers_die_while_one_is_removed(seed: int) -> None:
    """Whatever is sent to whom, before, while it leaves and after: each message once, and the
    receipts say so. Every third time it is the first, which keeps the directory."""
    fate = Fate(seed, death=0.08)
    gone = "a" if seed % 3 == 0 else "c"
    spread = Spread(local("orders", "b", "a/>"), local("others", "c", "a/*"), fate=fate)
    random = fate.random
    sent = []

    def traffic(times: int) -> None:
        for _ in range(times):
            body = b'{"n": %d}' % len(sent)
            sent.append(spread.start(random.choice("abc"), f"a/{random.randrange(3)}", body))

    traffic(10)
    away = random.choice("bc" if gone == "a" else "ab")
    spread.engine.broker(away).is_stopped = True
    traffic(5)
    with pytest.raises(LakequeueError):
        remove_broker(spread.engine, gone)
    spread.engine.broker(away).is_stopped = False
    spread.engine.advance("1s")
    spread.admin.move_queue("others", broker=random.choice("bc" if gone == "a" else "ab"))
    traffic(5)
    late = random.random() < 0.5
    if late:
        spread.engine.cut("b")
        traffic(3)
        with pytest.raises(LakequeueError):
            remove_broker(spread.engine, gone)
        traffic(3)
        spread.engine.mend("b")
        spread.engine.advance("1s")
    remove_broker(spread.engine, gone)
    traffic(10)
    spread.engine.until_answered(sent)
    ids = [one.result(0).message_id for one in sent]
    for queue in ("orders", "others"):
        assert sorted(spread.ids(queue)) == sorted(ids)
        assert len(spread.bodies(queue)) == len(set(spread.bodies(queue))) == len(sent)
    assert fate.deaths
    spread.engine.check()


def test_Q5_what_a_leaving_broker_took_for_a_distributed_queue_is_in_it_once() -> None:
    spread = Spread(
        local("s", "a", "t"), {"name": "all", "message_type": "json", "subscriptions": ["t"]}
    )
    spread.engine.cut("c")
    asked: list[Any] = []
    spread.at["a"].ask(commands.RemoveBroker(broker="c"), asked.append)
    sent = spread.start("c", "t")  # which is offered to who knows that c is leaving
    spread.engine.mend("c")
    remove_broker(spread.engine, "c")
    assert spread.ids("s") == [sent.result(0).message_id]
    assert spread.ids("all") == [sent.result(0).message_id]


def test_Q2_H5_a_broker_that_stays_after_all_hears_what_a_queues_hosts_were_told() -> None:
    """Topics that began or ended meanwhile do so there too; what it knew already stays."""
    mesh = Mesh(subscriptions=["fixed", "fixed/2"])
    admin = mesh.at["b"].admin()
    for topic in ("late", "late/2"):
        admin.subscribe_topic("orders", topic)
    admin.shutdown("orders", egress=True)
    begin = commands.encode_command(commands.RemoveBroker(broker="c"))
    mesh.engine.instruct("default", begin, "a")
    mesh.engine.advance("1s")
    assert sorted(admin.describe("orders")["brokers"]) == ["a", "b"]
    admin.unsubscribe_topic("orders", "late")
    admin.unsubscribe_topic("orders", "fixed")
    admin.subscribe_topic("orders", "later")
    admin.shutdown("orders")
    tell_peers(mesh.engine)
    mesh.engine.advance("1s")
    with mesh.at["c"].producer() as producer:
        for topic in ("fixed/2", "late/2", "later"):
            producer.send(topic, b"{}")
        for topic in ("fixed", "late"):
            with pytest.raises(LakequeueError, match=topic):
                producer.send(topic, b"{}")
    consumer = mesh.consumer("c")
    assert len(drain(consumer)) == 3
    mesh.engine.check()
