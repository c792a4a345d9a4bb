"""Queues move while their messages come and wait (M1, M2, M3, P1)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh import moves, stand_ins
from lakequeue.protocol import ConfigError, LakequeueError, mesh_messages
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import HEADER
from lakequeue.state import Limits
from lakequeue.state.queue.change import apply
from lakequeue.state.queue.table import Event
from mesh.test_lost_mesh_messages import Losing
from rules import mesh as home
from rules.harness import drain
from rules.mortal import Fate
from rules.test_directory import Mesh, local
from rules.test_moving import numbers, sent

# ---------------------------------------------------------------- what only these brokers do


def test_P1_what_is_sent_again_behind_a_move_is_stored_once() -> None:
    """Its broker has stored it, and its answer was not heard."""
    mesh = Mesh(local("q", broker="a"))
    header = b'{"to":"q","producer":"p","seq":1,"reply":0}'
    for step in range(3):
        mesh.engine.publish("default.publish", b"{}", None, [(HEADER, header)])
        if step == 0:
            mesh.admin.move_queue("q", "b")
    assert mesh.admin.describe("q")["depth"] == 1


def test_M2_while_the_other_broker_is_away_publishes_are_answered_at_once() -> None:
    """The queue has begun to leave: what comes crosses behind it."""
    mesh = Mesh(local("q", broker="a"))
    producers = {name: mesh.at[name].producer() for name in "abc"}
    sent(producers["a"], "q", range(2))
    mesh.engine.cut("b")
    mesh.at["c"].ask(c.MoveQueue(queue="q", broker="b"), lambda answer: None)
    consumer = mesh.at["a"].consumer("q", max_backlog=1, ack_mode="individual")
    assert numbers(drain(consumer)) == [0], "until that one answers nothing changes"
    mesh.engine.mend("b")
    mesh.engine.cut("b")
    for number, name in enumerate("abc", 2):
        sent(producers[name], "q", range(number, number + 1))
    mesh.engine.mend("b")
    mesh.engine.advance("1s")
    assert mesh.where() == {"q": "b"}
    assert numbers(mesh.admin.browse("q"))[:2] == [0, 1]
    assert sorted(numbers(mesh.admin.browse("q"))) == list(range(5))


def test_M3_what_waits_for_a_full_queue_follows_it_in_order() -> None:
    """At a third broker, and at the one where the queue goes, which then hands it to itself."""
    full = local("q", broker="a", max_spool_messages=2, subscriptions=["news"])
    mesh = Mesh(full | {"max_per_subscription_backlog": 10})
    sent(mesh.at["a"].producer(), "q", range(2))
    waiting = {name: mesh.at[name].producer() for name in "bc"}
    for name, numbers_of in (("b", range(10, 14)), ("c", range(20, 24))):
        sent(waiting[name], "news", numbers_of)
    mesh.admin.move_queue("q", "b")
    sent(waiting["b"], "news", range(14, 16))
    consumer = mesh.at["c"].consumer("q", max_backlog=10, ack_mode="individual")
    got: list[int] = []
    for _ in range(12):
        for message in drain(consumer):
            got += numbers([message])
            message.ack()
        mesh.engine.advance("1s")
    assert got[:2] == [0, 1]
    assert [n for n in got if 10 <= n < 20] == list(range(10, 16))
    assert [n for n in got if n >= 20] == list(range(20, 24))
    for broker in mesh.engine.brokers:
        assert mesh.at["a"].request(c.Usage(), broker=broker.home.number)["lanes"] == []


def test_M1_a_queue_with_keys_moves_within_its_group() -> None:
    mesh = Mesh(
        {"name": "keyed", "message_type": "json", "partition_key": "/k", "group": ["a", "b"]}
    )
    producer = mesh.at["c"].producer()
    for n in range(6):
        producer.send("keyed", json.dumps({"n": n, "k": n % 2}))
    (at,) = mesh.entries()["keyed"]["hosts"]
    with pytest.raises(ConfigError, match="broker: 'c' – allowed is its group: a, b"):
        mesh.admin.move_queue("keyed", "c")
    mesh.admin.move_queue("keyed", "ab".replace(at, ""))
    consumer = mesh.at["c"].consumer("keyed", max_backlog=1, ack_mode="individual")
    got = []
    while messages := drain(consumer):
        got += [json.loads(m.payload)["n"] for m in messages]
        for message in messages:
            message.ack()
    assert got == list(range(6))


@pytest.mark.parametrize("asked", ["a", "b", "c"])
def test_M5_a_move_to_a_broker_that_stays_away_is_called_back(asked: str) -> None:
    mesh = Mesh(local("q", broker="b"))
    sent(mesh.at["b"].producer(), "q", range(2))
    mesh.engine.cut("c")
    told: list[object] = []
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), told.append)
    mesh.engine.advance("1s")
    if asked == "c":
        mesh.engine.mend("c")
        assert mesh.where() == {"q": "c"}
        mesh.engine.cut("b")  # it went, and there is nothing to be called back
        mesh.at["c"].admin().move_queue("q", "c")
        assert mesh.where() == {"q": "c"}
        return
    mesh.at[asked].admin().move_queue("q", "b")
    mesh.engine.advance("0s")
    assert "called back" in str(told)
    assert mesh.where() == {"q": "b"}
    sent(mesh.at["a"].producer(), "q", range(2, 4))
    assert numbers(mesh.admin.browse("q")) == list(range(4))
    mesh.admin.move_queue("q", "a")  # it may go elsewhere
    mesh.engine.mend("c")
    mesh.engine.advance("1s")
    assert mesh.where() == {"q": "a"}
    assert numbers(mesh.admin.browse("q")) == list(range(4))
    mesh.admin.move_queue("q", "c")
    assert numbers(mesh.admin.browse("q")) == list(range(4))
    for broker in mesh.engine.brokers:
        facts = broker._replica.broker.mesh.facts
        known = facts.moves, facts.coming, facts.leaving, facts.arriving
        assert known == ({}, {}, {}, {})


@pytest.mark.parametrize("stays", [False, True])
def test_M5_R3_the_keeper_learns_how_a_move_ended_though_the_word_of_it_is_lost(
    stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(local("q", broker="b"))
    sent(mesh.at["b"].producer(), "q", range(2))
    if stays:
        mesh.engine.cut("c")
    losing = Losing(monkeypatch, "has_moved", 1)
    told: list[object] = []
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), told.append)
    mesh.engine.advance("1s")
    if stays:
        mesh.at["b"].ask(c.MoveQueue(queue="q", broker="b"), lambda answer: None)
        mesh.engine.mend("c")
    mesh.engine.advance("1s")
    assert (losing.left, told) == (0, [])
    host = "b" if stays else "c"
    mesh.at[host].admin().define(local("other"))  # the keeper notices the gap
    mesh.engine.advance("1s")
    assert ("called back" in str(told)) == stays
    assert mesh.where()["q"] == host
    mesh.admin.move_queue("q", "a")
    assert numbers(mesh.admin.browse("q")) == list(range(2))


def test_M5_what_has_begun_to_go_cannot_be_called_back() -> None:
    mesh = Mesh(local("q", broker="a"))
    mesh.engine.cut("b")
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="b"), lambda answer: None)
    mesh.engine.mend("b")
    mesh.engine.cut("b")
    if mesh.where() == {"q": "a"}:
        with pytest.raises(LakequeueError, match="is moving already"):
            mesh.admin.move_queue("q", "a")
    mesh.engine.mend("b")
    mesh.engine.advance("1s")
    assert mesh.where() == {"q": "b"}


def test_M5_a_home_of_an_earlier_version_goes_on_with_a_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That version entered the new host as soon as the queue had gone. Here Kafka loses the record
    that completes the move, so the new host has the messages, and no queue yet."""
    mesh = Mesh(local("q", broker="a"))
    sent(mesh.at["a"].producer(), "q", range(3))
    heard, carried = MemoryBroker.tell, list[str]()

    def tell(broker: Any, record: Any) -> None:
        carried.append(mesh_messages.decode(record.value).kind)
        if carried.count("carry") < 2:
            heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="b"), lambda answer: None)
    facts = mesh.engine.brokers[0]._replica.broker.mesh.facts
    entry = facts.entries["default"]["q"]
    own, other = (broker.home.number for broker in mesh.engine.brokers[:2])
    assert (entry.hosts, entry.moves_to) == ([own], other)
    entry.hosts, entry.moves_to, facts.directory_changed = [other], None, True
    mesh.engine.restart()
    monkeypatch.setattr(MemoryBroker, "tell", heard)
    mesh.admin.define(local("q", broker="a", max_deliveries=7))  # all hear of its hosts
    mesh.engine.advance("1s")
    assert mesh.where()["q"] == "b"
    assert numbers(mesh.admin.browse("q")) == list(range(3))


# ---------------------------------------------------------------- only what is confirmed is dropped

FEW = Limits(live_rows=4, segment_rows=4, bulk_rows=4, beside=1)
NEAR = [local(f"at-{name}", broker=name, subscriptions=[f"t/{name}"]) for name in home.BROKERS]
OF_MOVES = ("come", "carry", "answer", "has_moved")


def filled(monkeypatch: pytest.MonkeyPatch, fate: Fate | None = None) -> home.Mesh:
    """A home with twelve messages in a queue of broker b: one was delivered, two are delayed. At
    most five are in transit at once."""
    monkeypatch.setattr(stand_ins, "WINDOW", 5)
    mesh = home.Mesh(fate, FEW, queues=[local("q", broker="b"), *NEAR])
    for n in range(12):
        mesh.send("b", {"n": n}, "q", **({"delay": "1h"} if n in (3, 7) else {}))
    consumer = mesh.consumer("b", 1, "q")
    (first,) = drain(consumer)
    first.cancel()
    consumer.close()
    return mesh


def go_on(mesh: home.Mesh) -> None:
    """All brokers write to each other, which shows what was lost."""
    for sender in home.BROKERS:
        for to in home.BROKERS:
            mesh.send(sender, queue=f"t/{to}")
    mesh.advance("1s")


def found(mesh: home.Mesh, host: str) -> list[int]:
    """The queue's messages as they are delivered, also the delayed ones."""
    mesh.advance("1h")
    consumer, got = mesh.consumer(host, 20, "q"), []
    while messages := drain(consumer):
        for message in messages:
            got.append(json.loads(message.payload)["n"])
            assert message.redelivered == (got[-1] == 0)
            message.ack()
    return got


def facts_of(mesh: home.Mesh, name: str) -> Any:
    broker: Any = mesh.engine.broker(name)
    return broker._replica.broker.mesh.facts


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("nth", range(10))
def test_M5_R3_nothing_is_lost_whichever_record_of_a_move_kafka_loses(
    nth: int, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none comes twice, in whatever steps brokers die."""
    mesh = filled(monkeypatch, Fate(seed) if seed else None)
    heard, said = MemoryBroker.tell, list[str]()

    def tell(broker: Any, record: Any) -> None:
        kind = mesh_messages.decode(record.value).kind
        if kind in OF_MOVES:
            said.append(kind)
        if kind not in OF_MOVES or len(said) != nth + 1:
            heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    for _ in range(3):
        go_on(mesh)
    assert len(said) > nth
    assert set(said) == set(OF_MOVES)
    assert sorted(found(mesh, "c")) == list(range(12))
    for name in home.BROKERS:
        facts = facts_of(mesh, name)
        assert facts.entries["default"]["q"].hosts == [2]
        moving = facts.moves, facts.coming, facts.leaving, facts.arriving, facts.went
        assert not any(moving)


def test_M5_the_old_host_keeps_what_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends no more than a window, and takes no further steps meanwhile."""
    mesh = filled(monkeypatch)
    losing = Losing(monkeypatch, "carry", 100)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    mesh.advance("1s")
    engine_broker: Any = mesh.engine.broker("b")
    broker = engine_broker._replica.broker
    header = broker.find("default", "q").header
    assert header.depth == 12
    assert 5 <= header.leased < 12
    assert not broker.header.pending
    mesh.send("a", {"n": 12}, "q")  # waits behind the queue
    mesh.engine.restart()
    losing.left = 0
    go_on(mesh)
    assert mesh.at["a"].admin().describe("q")["broker"] == "c"
    assert sorted(found(mesh, "c")) == list(range(13))


def test_P1_X5_what_expires_while_its_queue_arrives_comes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer for it is lost, so the old host repeats it."""
    dies = local("q", broker="b", expiration="3s", dead_message_queue="at-c")
    mesh = home.Mesh(queues=[*NEAR, dies])
    for n in range(4):
        mesh.send("b", {"n": n}, "q")
    losing = Losing(monkeypatch, "answer", 100)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    mesh.advance("4s")
    losing.left = 0
    go_on(mesh)
    seen = mesh.at["a"].admin().describe("q")
    assert (seen["broker"], seen["depth"], seen["counters"]["expired"]) == ("c", 0, 4)
    assert mesh.at["a"].admin().describe("at-c")["counters"]["spooled"] == 4 + len(home.BROKERS)


def test_S9_Q9_alerts_follow_a_queue_that_is_defined_again_while_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = local("q", broker="b", max_spool_messages=4)
    mesh = home.Mesh(queues=[*NEAR, full])
    for n in range(4):
        mesh.send("b", {"n": n}, "q")
    losing = Losing(monkeypatch, "answer", 100)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    mesh.advance("1s")
    mesh.at["a"].ask(c.Define(definition=full | {"max_spool_messages": 400}), lambda answer: None)
    mesh.advance("1s")
    broker: Any = mesh.engine.broker("c")
    (queue,) = [q for q in broker._replica.broker.queues.values() if q.header.arriving]
    assert (queue.header.depth, queue.header.usage_high) == (4, False)
    losing.left = 0
    go_on(mesh)
    assert mesh.at["a"].admin().describe("q")["broker"] == "c"


def test_M5_what_fails_at_the_new_host_is_dead_and_the_queue_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = filled(monkeypatch)
    take_in = moves._take_in

    def fails(broker: Any, queue: Any, rows: Any, contents: Any, peer: str) -> None:
        if any(json.loads(content[0])["n"] in (5, 7) for content in contents):
            raise RuntimeError("a bug")
        take_in(broker, queue, rows, contents, peer)

    monkeypatch.setattr(moves, "_take_in", fails)
    mesh.at["a"].admin().move_queue("q", "c")
    counters = mesh.at["a"].admin().describe("q")["counters"]
    assert counters["expired"] == counters["discarded"] == 2
    assert sorted(found(mesh, "c")) == [n for n in range(12) if n not in (5, 7)]


def test_M5_a_home_that_an_earlier_version_stopped_in_the_middle_of_a_move_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That version forgot messages as soon as it had sent them, and waited for no answer."""
    mesh = filled(monkeypatch)
    engine_broker: Any = mesh.engine.broker("b")
    state = engine_broker._replica.broker
    hand_over, leave = moves._hand_over, moves.leave

    def as_earlier(broker: Any, facts: Any, queue: Any, one: Any, rows: Any) -> None:
        hand_over(broker, facts, queue, one, rows)
        apply(broker, queue, rows, Event.TRANSFER)

    def begin(broker: Any, facts: Any, queue: Any, task: Any, budget: Any) -> bool:
        if queue.header.depth == 12:
            leave(broker, facts, queue, task, budget)
            queue.header.subscriptions = []
            queue.leases.clear()
        task.waits = True  # until it is stopped
        return False

    monkeypatch.setattr(moves, "_hand_over", as_earlier)
    monkeypatch.setattr(moves, "leave", begin)
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    monkeypatch.setattr(moves, "_hand_over", hand_over)
    monkeypatch.setattr(moves, "leave", leave)
    queue = state.find("default", "q")
    assert 0 < queue.header.depth < 12
    queue.header.tasks[0].waits = False
    state.header.pending[queue.number] = True
    mesh.engine.restart()
    go_on(mesh)
    assert sorted(found(mesh, "c")) == list(range(12))
