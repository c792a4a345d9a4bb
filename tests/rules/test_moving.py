"""A local queue moves to another broker with its messages while it is in use: nothing is lost,
order is kept, leases end as at a disconnect, and clients follow."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import LakequeueError, LeaseLost
from lakequeue.protocol import commands as c

from .harness import drain
from .mesh import Mesh, local, numbers, shared


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(local("q", "a"))


def send(mesh: Mesh, broker: str, *bodies: int) -> None:
    for body in bodies:
        mesh.send(broker, "q", body)


def test_a_queue_moves_with_its_messages_and_settings(mesh: Mesh) -> None:
    mesh.admin.subscribe_topic("q", "a/>")
    mesh.admin.define(local("other", "b"))
    send(mesh, "c", *range(20))
    mesh.send("c", "q", b"20", headers={"k": "v"}, key="key", priority=7, ttl="1h")
    mesh.send("c", "q", b"21", delay="10s")
    taken = mesh.consumer("c", 2, "q")
    first, second = drain(taken)
    first.ack()
    second.cancel()
    taken.close()
    mesh.admin.shutdown("q", ingress=True, egress=True)
    before = mesh.whole("q"), mesh.admin.browse("q")
    mesh.admin.move_queue("q", broker="c")
    after = mesh.whole("q"), mesh.admin.browse("q")
    assert (after[0].pop("broker"), before[0].pop("broker")) == ("c", "a")
    assert after == before
    assert mesh.where() == {"q": "c", "other": "b"}
    assert mesh.written()["q"] == {"hosts": {"c": 2}, "type": "LocalQueue", "state": "there"}
    mesh.admin.shutdown("q")
    mesh.advance("10s")
    assert numbers(drain(mesh.consumer("a", queue="q"))) == [1, *range(2, 22)]


def test_consumers_follow_a_moved_queue_and_their_leases_end(mesh: Mesh) -> None:
    consumers = [mesh.consumer(name, 3, "q") for name in "bc"]
    send(mesh, "b", *range(8))
    held = [message for consumer in consumers for message in drain(consumer)]
    assert len(held) == 6
    mesh.admin.move_queue("q", broker="b")
    for connection in mesh.at.values():
        connection.attend()
    assert [consumer.broker for consumer in consumers] == [1, 1]
    with pytest.raises(LeaseLost):
        held[0].ack()
    got = [message for consumer in consumers for message in drain(consumer)]
    assert sorted(numbers(got)) == list(range(6))
    assert all(message.delivery_count == 2 for message in got)
    for message in got:
        message.ack()
    assert sorted(numbers([m for consumer in consumers for m in drain(consumer)])) == [6, 7]
    assert mesh.whole("q")["counters"]["acknowledged"] == 6


def test_L3_a_consumer_follows_the_first_report_of_a_move(mesh: Mesh) -> None:
    """A broker reports it in a nack; the directory reports the same later, which changes
    nothing."""
    mesh.admin.move_queue("q", "b")
    send(mesh, "b", 0, 1)
    consumer = mesh.consumer("b", 3, "q")
    mesh.engine.cut("a")  # the keeper does not learn of the move
    mesh.move("q", "c", by="b")
    assert mesh.written()["q"]["state"] == "moving"
    send(mesh, "b", 2)
    mesh.engine.mend("a")
    assert mesh.where() == {"q": "c"}
    got = drain(consumer)
    assert consumer.broker == 2
    assert (numbers(got), any(m.redelivered for m in got)) == ([0, 1, 2], False)


def test_B3_a_backlog_set_during_a_move_holds_on_the_new_broker(mesh: Mesh) -> None:
    consumer = mesh.consumer("a", 1, "q")
    send(mesh, "b", *range(4))
    (first,) = drain(consumer)
    mesh.admin.move_queue("q", broker="b")
    consumer.set_max_backlog(3)
    mesh.at["a"].attend()
    assert drain(consumer)[0].id == first.id
    (flow,) = mesh.whole("q")["consumers"]
    assert (flow["backlog"], flow["held"]) == (3, 3)


def test_barriers_and_priorities_survive_a_move() -> None:
    bars = local("bars", "a", barrier_expression="/bar = 1")
    mesh = Mesh(bars, local("ranks", "a", priority="/p"))
    for n in range(9):
        mesh.send("a", "bars", {"n": n, "bar": int(n % 4 == 3)})
        mesh.send("a", "ranks", {"n": n, "p": n % 3})
    order = mesh.bodies("ranks")
    for name in ("bars", "ranks"):
        mesh.admin.move_queue(name, "b")
    assert mesh.bodies("ranks") == order
    consumer, got = mesh.consumer("c", 50, "bars"), []
    while messages := drain(consumer):
        got += numbers(messages)
        for message in messages:
            message.ack()
    assert got == list(range(9))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("queue", "broker", "why"),
    [
        ("q", "x", "broker: 'x' – allowed are the home's brokers: a, b, c"),
        ("nope", "b", "queue: 'nope' – there is no such queue"),
        ("all", "b", "queue: 'all' – is a Queue; only a LocalQueue can move"),
        ("q", "c", "broker: 'c' is failed – allowed is a running broker"),
        ("full", "b", "queue 'full': has 9 bytes, broker 'b' has room for 3"),
    ],
)
def test_an_impossible_move_is_refused(queue: str, broker: str, why: str) -> None:
    mesh = Mesh(local("q", "a"), shared("all"), local("full", "a"))
    mesh.send("a", "full", b"123456789")
    if queue == "full":
        system = c.Configure(system={"max_spool_usage": "3B"})
        mesh.engine.instruct("default", c.encode_command(system), "b")
    mesh.engine.brokers[2].is_stopped = True
    before = mesh.written()
    with pytest.raises(LakequeueError, match=why):
        mesh.admin.move_queue(queue, broker)
    mesh.engine.brokers[2].is_stopped = False
    assert mesh.written() == before
    send(mesh, "b", 1)
    assert len(mesh.take("q")) == 1


def test_a_queue_stays_in_use_while_its_new_broker_is_away(mesh: Mesh) -> None:
    """Nobody can tell that it is down: the queue leaves once it answers."""
    send(mesh, "a", *range(3))
    away = mesh.engine.brokers[1]
    away.is_stopped = True
    answers = mesh.move("q", "b")
    consumer = mesh.consumer("a", 5, "q")
    assert numbers(drain(consumer)) == [0, 1, 2]
    with pytest.raises(LakequeueError, match="queue 'q': is moving now"):
        mesh.admin.delete("q")
    assert answers == []
    away.is_stopped = False
    mesh.advance("1s")
    mesh.at["a"].attend()
    assert answers[0]["error"] is None
    assert mesh.where() == {"q": "b"}
    assert numbers(drain(consumer)) == [0, 1, 2]


def test_an_ack_to_the_old_broker_follows_a_moved_queue(mesh: Mesh) -> None:
    send(mesh, "a", *range(3))
    consumer = mesh.consumer("c", 3, "q")
    messages = drain(consumer)
    ack = c.encode_command(c.Ack(queue="q", subscription=consumer.subscription, ids=messages[1].id))
    mesh.admin.move_queue("q", broker="b")
    for broker in "ac":
        mesh.engine.command("default.commands", b"", ack, broker)
    assert numbers(mesh.admin.browse("q")) == [0, 2]


# ---------------------------------------------------------------- deaths


def test_a_repeated_directory_entry_ends_no_lease(mesh: Mesh) -> None:
    """The keeper dies after a move and repeats its last messages: the queue is on a, it moves, it
    is on b."""
    consumer = mesh.consumer("b", 1, "q")
    inbox: Any = mesh.engine.open_inbox("default.directory")
    for name in "cab":
        mesh.admin.move_queue("q", name)
    send(mesh, "b", 0)
    (message,) = drain(consumer)
    for record in inbox:  # all of them, in their order
        for topic, other in mesh.engine._inboxes:
            if topic == record.topic and other() is not inbox:
                other().append(record)
    mesh.at["b"].attend()
    assert mesh.whole("q")["leased"] == 1
    message.ack()
    assert mesh.whole("q")["counters"]["redelivered"] == 0


def test_L5_a_move_counts_no_attempt_for_unread_messages() -> None:
    mesh = Mesh(local("q", "a", max_deliveries=2))
    send(mesh, "b", *range(5))
    consumer = mesh.consumer("b", 5, "q")
    seen = consumer.receive(timeout=0)
    for broker in ("b", "c", "a", "b"):
        mesh.admin.move_queue("q", broker=broker)
        mesh.advance("1s")
    with pytest.raises(LeaseLost):
        seen.ack()
    messages = drain(consumer)
    assert numbers(messages) == [0, 1, 2, 3, 4]
    assert [m.delivery_count for m in messages] == [2, 1, 1, 1, 1]
