"""Bridges, and plain Kafka records, go on reaching a queue that has moved to another broker:
nothing is lost, nothing comes twice, and what one source sends keeps its order (H1–H3, Q2, Q5)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.memory.broker_removal import remove_broker

from .mortal import Fate
from .spread import Spread, local

BRIDGE = {"name": "a-b", "from": "a", "to": "b", "subscriptions": ["t/>"]}


def bridged(*queues: dict[str, Any], **more: Any) -> Spread:
    """Bridged from a to b; there is `q`, which takes t/1."""
    return Spread(local("q", "b", "t/1"), *queues, bridges=[BRIDGE], **more)


def send(spread: Spread, to: str, body: bytes) -> None:
    """Published at a, and stored; where a queue is on its way it is asked again a little later."""
    future = spread.start("a", to, body)
    while not future.done():
        spread.engine.advance("100ms")
    assert future.result(0).message_id


def plain(spread: Spread, topic: str, body: bytes) -> None:
    """A plain Kafka producer writes to a topic that a queue captures."""
    spread.engine.publish(topic, body, None, [])


def numbers(spread: Spread, queue: str = "q") -> list[int]:
    return [int(body) for body in spread.bodies(queue)]


def test_h1_a_queue_that_leaves_the_far_end_gets_what_the_bridge_brings() -> None:
    spread = bridged()
    for n in range(3):
        send(spread, "t/1", b"%d" % n)
    for n, broker in enumerate("cacbcb"):
        spread.admin.move_queue("q", broker)
        send(spread, "t/1", b"%d" % (2 * n + 3))
        spread.engine.advance("1s")
        send(spread, "t/1", b"%d" % (2 * n + 4))
    spread.engine.advance("10s")
    assert numbers(spread) == list(range(15))
    assert spread.admin.describe_bridge("a-b")["state"] == "open"


def test_h1_what_waits_for_the_bridge_follows_the_queue() -> None:
    """Published while the queue was at the far end, brought when it is elsewhere."""
    spread = bridged(local("other", "c", "t/1"))
    spread.admin.shutdown("#bridge/a-b", egress=True)
    for n in range(5):
        send(spread, "t/1", b"%d" % n)
    spread.admin.move_queue("q", "c")
    spread.admin.move_queue("other", "b")
    for n in range(5, 9):
        send(spread, "t/1", b"%d" % n)
    spread.admin.shutdown("#bridge/a-b", egress=False)
    spread.engine.advance("5s")
    assert numbers(spread) == numbers(spread, "other") == list(range(9))


def test_h1_a_queue_that_comes_to_either_end_gets_nothing_twice() -> None:
    spread = bridged(local("other", "c", "t/1"))
    for n, (queue, broker) in enumerate(
        [("other", "b"), ("other", "a"), ("q", "a"), ("other", "c"), ("q", "c"), ("q", "b")]
    ):
        spread.admin.move_queue(queue, broker)
        send(spread, "t/1", b"%d" % n)
        spread.engine.advance("5s")
    assert numbers(spread) == numbers(spread, "other") == list(range(6))


def test_h3_a_full_queue_that_has_moved_holds_back_only_its_own() -> None:
    spread = bridged(local("second", "b", "t/2"))
    spread.admin.define(local("q", "b", "t/1", max_spool_messages=1))
    spread.admin.move_queue("q", "c")
    for n in range(4):
        send(spread, "t/1", b"%d" % n)
        send(spread, "t/2", b"%d" % n)
    spread.engine.advance("5s")
    assert numbers(spread, "second") == list(range(4))
    got = []
    with spread.at["a"].consumer("q", ack_mode="individual") as consumer:
        for _ in range(20):
            spread.engine.advance("5s")
            while (message := consumer.receive(timeout=0)) is not None:
                got.append(int(message.payload))
                message.ack()
    assert got == list(range(4))


def test_h1_topics_that_change_while_the_queue_is_away() -> None:
    spread = bridged()
    spread.admin.move_queue("q", "c")
    spread.admin.subscribe_topic("q", "t/2")
    send(spread, "t/2", b"2")
    spread.admin.define(local("q", "b", "t/3"))
    send(spread, "t/3", b"3")
    spread.engine.advance("5s")
    assert numbers(spread) == [2, 3]
    spread.admin.delete("q")
    spread.admin.define(local("q", "c", "t/3"))
    send(spread, "t/3", b"4")
    spread.engine.advance("5s")
    assert numbers(spread) == [4]


def test_q2_plain_records_follow_a_queue_that_moves() -> None:
    spread = Spread(local("q", "b"))
    for n, broker in enumerate("cabcb"):
        plain(spread, "q", b"%d" % (2 * n))
        spread.admin.move_queue("q", broker)
        plain(spread, "q", b"%d" % (2 * n + 1))
        spread.engine.advance("3s")
    assert numbers(spread) == list(range(10))


def test_q2_plain_records_are_read_on_where_the_queue_is_when_its_base_is_gone() -> None:
    spread = Spread(local("q", "b"))
    plain(spread, "q", b"1")
    spread.admin.move_queue("q", "c")
    plain(spread, "q", b"2")
    remove_broker(spread.engine, "b")
    plain(spread, "q", b"3")
    spread.admin.move_queue("q", "a")
    plain(spread, "q", b"4")
    spread.engine.advance("3s")
    assert spread.bodies("q") == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("seed", range(4))
def test_h1_whoever_dies_and_whatever_moves_each_source_keeps_its_order(seed: int) -> None:
    fate = Fate(seed, death=0.1)
    queues = [local("other", "c", "t/>"), local("plain", "a", "t/2")]
    spread = bridged(*queues, fate=fate)
    sent: dict[str, list[bytes]] = {"t/1": [], "t/2": [], "plain": []}
    for n in range(60):
        choice = fate.random.choice(["t/1", "t/2", "plain", "move", "wait"])
        if choice == "move":
            queue = fate.random.choice(["q", "other", "plain"])
            spread.admin.move_queue(queue, fate.random.choice("abc"))
        elif choice == "wait":
            spread.engine.advance("700ms")
        else:
            sent[choice].append(body := b"%d" % n)
            if choice == "plain":
                plain(spread, "plain", body)
            else:
                send(spread, choice, body)
    spread.engine.fated(None)
    spread.engine.advance("30s")
    assert fate.deaths > 20
    found = {name: spread.bodies(name) for name in ("q", "other", "plain")}
    assert found["q"] == sent["t/1"]
    for topic in ("t/1", "t/2"):
        assert [b for b in found["other"] if b in sent[topic]] == sent[topic]
    assert len(found["other"]) == len(sent["t/1"]) + len(sent["t/2"])
    for source in ("t/2", "plain"):
        assert [b for b in found["plain"] if b in sent[source]] == sent[source]
    assert len(found["plain"]) == len(sent["t/2"]) + len(sent["plain"])


@pytest.mark.parametrize("seed", range(2))
def test_h1_the_queue_whose_messages_a_bridge_takes_moves(seed: int) -> None:
    """Its producers follow it, to brokers from which no bridge leads; the far queue has all."""
    fate = Fate(seed, death=0.1)
    bridge = BRIDGE | {"subscriptions": ["source"]}
    queues = [local("source", "a"), local("copy", "b", "source")]
    spread = Spread(*queues, bridges=[bridge], fate=fate)
    sent = []
    for n in range(30):
        if n % 4 == 3:
            spread.admin.move_queue("source", "bcacab"[n // 4 % 6])
        for connection in spread.at.values():
            connection.attend()
        send(spread, "source", body := b"%d" % n)
        sent.append(body)
        spread.engine.advance("1s")
    spread.engine.fated(None)
    spread.engine.advance("10s")
    assert spread.bodies("source") == sent
    assert spread.bodies("copy") == sent
