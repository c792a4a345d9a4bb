"""Distributed queues: who owns a message, and how it moves (Q5, H4)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from .harness import drain
from .mesh import BROKERS, Mesh, ids

# ---------------------------------------------------------------- asking and granting


def test_H4_a_consumer_anywhere_gets_everything() -> None:
    mesh = Mesh()
    sent = [mesh.send(broker, {"n": n}) for n in range(4) for broker in BROKERS]
    assert mesh.depths() == [4, 4, 4]
    got = drain(mesh.consumer("b"))
    assert sorted(ids(got)) == sorted(sent)
    assert mesh.depths() == [0, 12, 0]
    for message in got:
        message.ack()
    assert mesh.depths() == [0, 0, 0]


def test_H4_a_message_keeps_its_id_and_all_that_is_known_of_it() -> None:
    mesh = Mesh()
    sent = mesh.send("a", {"n": 1}, ttl="1h", priority=7, key=b"k", headers={"h": b"v"})
    (got,) = drain(mesh.consumer("b"))
    assert got.id == sent
    assert (got.priority, got.headers["h"], got.key) == (7, "v", b"k")
    assert got.payload == b'{"n": 1}'
    assert got.expires_at is not None
    assert (got.delivery_count, got.redelivered) == (1, False)


def test_H4_O2_a_message_keeps_its_priority() -> None:
    mesh = Mesh(priority="/p")
    consumer = mesh.consumer("b")
    low, high = (mesh.send("a", {"p": p}) for p in (1, 9))
    assert ids(drain(consumer)) == [low, high]
    consumer.close()
    assert ids(drain(mesh.consumer("b"))) == [high, low]


def test_H4_only_if_no_local_subscriber_can_take_it() -> None:
    mesh = Mesh()
    near, far = mesh.consumer("a", 2), mesh.consumer("b", 100)
    sent = [mesh.send("a", {"n": n}) for n in range(5)]
    assert ids(drain(near)) == sent[:2]
    assert ids(drain(far)) == sent[2:]


def test_F5_filters_of_who_asks() -> None:
    mesh = Mesh()
    for n in range(6):
        mesh.send("a", {"n": n})
    consumer = mesh.consumer("b", filter="/n > 3")
    assert [json.loads(m.payload)["n"] for m in drain(consumer)] == [4, 5]
    assert mesh.depths() == [4, 2, 0]
    both = mesh.consumer("c", filter="/n = 0")
    assert [json.loads(m.payload)["n"] for m in drain(both)] == [0]


def test_Q5_a_local_queue_never_leaves() -> None:
    mesh = Mesh(type="LocalQueue")
    mesh.send("c")
    consumer = mesh.consumer("b")
    assert len(drain(consumer)) == 1
    whole = mesh.whole()
    assert (whole["broker"], whole["depth"], consumer.broker) == ("a", 1, 0)


# ---------------------------------------------------------------- life after a move


def test_L5_L6_counts_go_with_the_message() -> None:
    mesh = Mesh(max_cancels=2)
    sent = mesh.send("a")
    for broker, count in (("b", 1), ("c", 2)):
        consumer = mesh.consumer(broker)
        (message,) = drain(consumer)
        assert (message.id, message.delivery_count) == (sent, count)
        message.cancel(delay="1s")
        consumer.close()
        mesh.advance("2s")
    assert mesh.depths() == [0, 0, 0]
    assert mesh.seen("c")["expired"] == 1


def test_X4_time_to_live_counts_on() -> None:
    mesh = Mesh()
    mesh.send("a", ttl="8s")
    mesh.advance("2s")
    consumer = mesh.consumer("b")
    (message,) = drain(consumer)
    left = (message.expires_at - mesh.at["b"].now()).total_seconds()
    assert left == 6
    mesh.advance("6s")
    assert mesh.depths() == [0, 0, 0]
    assert [mesh.seen(b)["expired"] for b in BROKERS] == [0, 1, 0]


def test_X5_dead_messages_go_to_the_owners_dead_message_queue() -> None:
    queues = [
        {"name": "orders", "message_type": "json", "dead_message_queue": "dead"},
        {"name": "dead", "message_type": "json", "max_per_subscription_backlog": 10},
    ]
    mesh = Mesh(queues=queues)
    sent = mesh.send("a")
    orders = mesh.consumer("b")
    orders.receive(timeout=0).reject(reason="no")
    orders.close()
    assert [mesh.seen(b, "dead")["depth"] for b in BROKERS] == [0, 1, 0]
    reader = mesh.consumer("c", queue="dead")
    (dead,) = drain(reader)
    assert dead.id == sent
    assert dead.headers["lq-dead-reason"] == "rejected"
    dead.cancel()
    reader.close()
    assert mesh.at["c"].admin().redrive("dead").moved == 1
    assert mesh.depths() == [0, 0, 1]
    (again,) = drain(mesh.consumer("a"))
    assert again.id == sent


def test_the_journal_tells_the_whole_way() -> None:
    mesh = Mesh()
    sent = mesh.send("a")
    (message,) = drain(mesh.consumer("b"))
    message.ack()
    rows = [r for r in mesh.engine.journal() if r["message_id"] == sent]
    told = [(r["broker"], r["event"]) for r in rows]
    assert told == [
        ("a", "spooled"), ("a", "granted"), ("b", "spooled"), ("b", "delivered"),
        ("a", "transferred"), ("b", "acknowledged"),
    ]  # fmt: skip


def test_Q5_describe_adds_up_and_says_what_each_holds() -> None:
    mesh = Mesh()
    for broker in ("a", "a", "a", "b"):
        mesh.send(broker)
    consumer = mesh.consumer("c", 2)
    drain(consumer)[0].ack()
    whole = mesh.whole()
    held = {name: (part["depth"], part["leased"]) for name, part in whole["brokers"].items()}
    assert (whole["depth"], whole["leased"]) == (3, 2)
    assert sum(depth for depth, _ in held.values()) == 3
    assert held["c"] == (2, 2)
    assert [(c["broker"], c["held"]) for c in whole["consumers"]] == [("c", 2)]
    counted = [whole["counters"][name] for name in ("spooled", "acknowledged", "transferred")]
    assert counted == [4, 1, 3]


def test_Q2_a_record_of_a_captured_topic_is_taken_in_by_one_host() -> None:
    queues = [
        {"name": "shared", "message_type": "json", "underlying_topic": "radar"},
        {
            "name": "local", "message_type": "json", "underlying_topic": "radar",
            "type": "LocalQueue",
        },
    ]  # fmt: skip
    mesh = Mesh(queues=queues)
    for partition in range(7):
        mesh.at["a"].publish_raw("radar", b"{}", partition=partition)
    assert mesh.depths("shared") == [3, 2, 2]
    assert mesh.whole("local")["depth"] == 7


# ---------------------------------------------------------------- GroupLocalQueue


def grouped(**keys: Any) -> Mesh:
    return Mesh(type="GroupLocalQueue", initial_owner="b", **keys)


def test_H4_all_messages_of_a_group_local_queue_start_with_the_initial_owner() -> None:
    mesh = grouped()
    sent = [mesh.send(broker, {"n": n}) for n in range(2) for broker in BROKERS]
    assert mesh.depths() == [0, 6, 0]
    assert sorted(ids(drain(mesh.consumer("b")))) == sorted(sent)


def test_H4_the_initial_owner_serves_its_own_consumers_first() -> None:
    mesh = grouped()
    near, far = mesh.consumer("b", 1), mesh.consumer("a", 10)
    sent = [mesh.send("a", {"n": n}) for n in range(3)]
    assert ids(drain(near)) == sent[:1]
    assert ids(drain(far)) == sent[1:]
    assert mesh.depths() == [2, 1, 0]


def test_H4_L12_what_is_scheduled_starts_with_the_initial_owner_too() -> None:
    mesh = grouped()
    mesh.send("a", deliver_at=mesh.at["a"].now() + timedelta(seconds=5))
    assert mesh.depths() == [0, 1, 0]
    assert mesh.seen("b")["delayed"] == 1
    consumer = mesh.consumer("a")
    assert drain(consumer) == []
    mesh.advance("5s")
    assert len(drain(consumer)) == 1
