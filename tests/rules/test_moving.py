"""A local queue moves to another broker with its messages while it is in use: nothing is lost,
order is kept, leases end as at a disconnect, and clients follow."""

import json
from typing import Any

import pytest
from lakequeue.protocol import LakequeueError, LeaseLost
from lakequeue.protocol import commands as c

from .harness import drain
from .test_directory import Mesh, local


def sent(producer: Any, queue: str, numbers: range) -> None:
    for number in numbers:
        producer.send(queue, json.dumps(number))


def numbers(messages: Any) -> list[int]:
    return [json.loads(m.payload) for m in messages]


@pytest.fixture
def mesh() -> Mesh:
    return Mesh(local("q", broker="a", max_per_subscription_backlog=100))


def test_a_queue_moves_with_its_messages_and_what_it_is(mesh: Mesh) -> None:
    mesh.admin.subscribe_topic("q", "a/>")
    mesh.admin.define(local("other", broker="b"))
    producer = mesh.at["c"].producer()
    sent(producer, "q", range(20))
    producer.send("q", b"20", headers={"k": "v"}, key="key", priority=7, ttl="1h")
    producer.send("q", b"21", delay="10s")
    taken = mesh.at["c"].consumer("q", max_backlog=2, ack_mode="individual")
    first, second = drain(taken)
    first.ack()
    second.cancel()
    taken.close()
    mesh.admin.shutdown("q", ingress=True, egress=True)
    before = mesh.admin.describe("q"), mesh.admin.browse("q")
    mesh.admin.move_queue("q", broker="c")
    after = mesh.admin.describe("q"), mesh.admin.browse("q")
    assert (after[0].pop("broker"), before[0].pop("broker")) == ("c", "a")
    assert after == before
    assert mesh.where() == {"q": "c", "other": "b"}
    assert mesh.entries()["q"] == {"hosts": {"c": 2}, "type": "LocalQueue", "state": "there"}
    mesh.admin.shutdown("q")
    mesh.engine.advance("10s")
    again = mesh.at["a"].consumer("q", max_backlog=100)
    assert numbers(drain(again)) == [1, *range(2, 22)]


def test_consumers_follow_and_what_they_held_returns(mesh: Mesh) -> None:
    consumers = [mesh.at[name].consumer("q", max_backlog=3, ack_mode="individual") for name in "bc"]
    producer = mesh.at["b"].producer()
    sent(producer, "q", range(8))
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
    assert sorted(numbers(m for consumer in consumers for m in drain(consumer))) == [6, 7]
    assert mesh.admin.describe("q")["counters"]["acknowledged"] == 6


def test_L3_a_consumer_follows_whoever_said_first_that_its_queue_went(mesh: Mesh) -> None:
    """A broker says it, in a nack; the directory says the same later, and that is no news then."""
    mesh.admin.move_queue("q", "b")
    producer = mesh.at["b"].producer()
    sent(producer, "q", range(2))
    consumer = mesh.at["b"].consumer("q", max_backlog=3, ack_mode="individual")
    mesh.engine.cut("a")  # the keeper does not hear that it went
    mesh.at["b"].ask(c.MoveQueue(queue="q", broker="c"), lambda answer: None)
    assert mesh.entries()["q"]["state"] == "moving"
    sent(producer, "q", range(2, 3))
    mesh.engine.mend("a")
    assert mesh.where() == {"q": "c"}
    got = drain(consumer)
    assert consumer.broker == 2
    assert [(json.loads(m.payload), m.redelivered) for m in got] == [
        (0, False), (1, False), (2, False),
    ]  # fmt: skip


def test_B3_a_backlog_that_is_set_while_a_queue_is_gone_holds_where_it_went(mesh: Mesh) -> None:
    consumer = mesh.at["a"].consumer("q", max_backlog=1, ack_mode="individual")
    sent(mesh.at["b"].producer(), "q", range(4))
    (first,) = drain(consumer)
    mesh.admin.move_queue("q", broker="b")
    consumer.set_max_backlog(3)
    mesh.at["a"].attend()
    assert drain(consumer)[0].id == first.id
    (flow,) = mesh.admin.describe("q")["consumers"]
    assert (flow["backlog"], flow["held"]) == (3, 3)


def test_barriers_and_priorities_keep_their_places() -> None:
    mesh = Mesh(
        local("bars", broker="a", barrier_expression="/bar = 1", max_per_subscription_backlog=50),
        local("ranks", broker="a", priority="/p", max_per_subscription_backlog=50),
    )
    producer = mesh.at["a"].producer()
    for n in range(9):
        producer.send("bars", json.dumps({"n": n, "bar": int(n % 4 == 3)}))
        producer.send("ranks", json.dumps({"n": n, "p": n % 3}))
    order = [m.payload for m in mesh.admin.browse("ranks")]
    for name in ("bars", "ranks"):
        mesh.admin.move_queue(name, "b")
    assert [m.payload for m in mesh.admin.browse("ranks")] == order
    consumer = mesh.at["c"].consumer("bars", max_backlog=50, ack_mode="individual")
    got = []
    while messages := drain(consumer):
        got += [json.loads(m.payload)["n"] for m in messages]
        for message in messages:
            message.ack()
    assert got == list(range(9))


# ---------------------------------------------------------------- what is refused


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
def test_a_move_that_cannot_be_is_refused_with_a_sentence(
    mesh: Mesh, queue: str, broker: str, why: str
) -> None:
    admin = mesh.admin
    admin.define({"name": "all", "message_type": "json"})
    admin.define(local("full", broker="a"))
    mesh.at["a"].producer().send("full", b"123456789")
    if queue == "full":
        configure(mesh, "b", 3)
    mesh.engine.brokers[2].is_stopped = True
    before = mesh.entries()
    with pytest.raises(LakequeueError, match=why):
        admin.move_queue(queue, broker)
    mesh.engine.brokers[2].is_stopped = False
    assert mesh.entries() == before
    consumer = mesh.at["b"].consumer("q")
    mesh.at["b"].producer().send("q", b"1")
    assert consumer.receive() is not None


def configure(mesh: Mesh, broker: str, max_spool_usage: int) -> None:
    system = {"max_spool_usage": f"{max_spool_usage}B"}
    command = c.encode_command(c.Configure(system=system))
    mesh.engine.instruct("default", command, broker)


def test_while_the_other_broker_is_away_a_queue_stays_in_use(mesh: Mesh) -> None:
    """It is not seen to be down: the queue leaves when it answers."""
    sent(mesh.at["a"].producer(), "q", range(3))
    away = mesh.engine.brokers[1]
    away.is_stopped = True
    answers: list[Any] = []
    mesh.at["a"].ask(c.MoveQueue(queue="q", broker="b"), answers.append)
    consumer = mesh.at["a"].consumer("q", max_backlog=5, ack_mode="individual")
    assert numbers(drain(consumer)) == [0, 1, 2]
    with pytest.raises(LakequeueError, match="queue 'q': is moving now"):
        mesh.admin.delete("q")
    assert answers == []
    away.is_stopped = False
    mesh.engine.advance("1s")
    mesh.at["a"].attend()
    assert answers[0]["error"] is None
    assert mesh.where() == {"q": "b"}
    assert numbers(drain(consumer)) == [0, 1, 2]


def test_an_ack_that_was_sent_to_where_a_queue_was_goes_after_it(mesh: Mesh) -> None:
    sent(mesh.at["a"].producer(), "q", range(3))
    consumer = mesh.at["c"].consumer("q", max_backlog=3, ack_mode="individual")
    messages = drain(consumer)
    ack = c.Ack(queue="q", subscription=consumer.subscription, ids=messages[1].id)
    mesh.admin.move_queue("q", broker="b")
    mesh.engine.command("default.commands", b"", c.encode_command(ack), "a")
    mesh.engine.command("default.commands", b"", c.encode_command(ack), "c")
    assert [json.loads(m.payload) for m in mesh.admin.browse("q")] == [0, 2]


# ---------------------------------------------------------------- deaths


def test_what_the_directory_says_again_ends_no_lease(mesh: Mesh) -> None:
    """The keeper dies after a move, and says its last words again: that the queue is on a, that it
    moves, that it is on b."""
    consumer = mesh.at["b"].consumer("q", max_backlog=1, ack_mode="individual")
    producer = mesh.at["b"].producer()
    inbox = mesh.engine.open_inbox("default.directory")
    for name in "cab":
        mesh.admin.move_queue("q", name)
    sent(producer, "q", range(1))
    (message,) = drain(consumer)
    for record in inbox:  # all of them, in their order
        for topic, other in mesh.engine._inboxes:
            if topic == record.topic and other is not inbox:
                other.append(record)
    mesh.at["b"].attend()
    assert mesh.admin.describe("q")["leased"] == 1
    message.ack()
    assert mesh.admin.describe("q")["counters"]["redelivered"] == 0


def test_L5_a_move_is_no_attempt_of_what_nobody_has_seen(mesh: Mesh) -> None:
    mesh.admin.define(local("q", broker="a", max_per_subscription_backlog=100, max_deliveries=2))
    producer = mesh.at["b"].producer()
    sent(producer, "q", range(5))
    consumer = mesh.at["b"].consumer("q", max_backlog=5, ack_mode="individual")
    seen = consumer.receive(timeout=0)
    for broker in ("b", "c", "a", "b"):
        mesh.admin.move_queue("q", broker=broker)
        mesh.engine.advance("1s")
    with pytest.raises(LeaseLost):
        seen.ack()
    messages = drain(consumer)
    assert numbers(messages) == [0, 1, 2, 3, 4]
    assert [m.delivery_count for m in messages] == [2, 1, 1, 1, 1]
