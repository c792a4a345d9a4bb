"""Walks over three brokers that die at any moment: nothing acknowledged is lost, nothing comes
twice without saying so (M1–M3, M6, H4, P1, L1, S1, S5).

What is sent goes to destinations that one, two or all brokers take; consumers come and go, take,
cancel and reject. Then faults end, consumers take what is left, and every message must be accounted
for, in each queue that took it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import LakequeueError, LeaseLost
from lakequeue.state import Limits
from rules.mortal import Fate, MortalEngine

BROKERS = ("a", "b", "c")
QUEUES: list[dict[str, Any]] = [
    {"name": "everywhere"},
    {"name": "near", "type": "LocalQueue", "broker": "a", "dead_message_queue": "dead"},
    {"name": "far", "type": "LocalQueue", "broker": "c", "max_spool_messages": 4},
    {"name": "owned", "type": "GroupLocalQueue", "initial_owner": "b"},
    {"name": "keyed", "partition_key": "/k", "broker": None},
    {"name": "dead", "type": "LocalQueue", "broker": "b"},
    {"name": "odd", "type": "LocalQueue", "broker": "b", "filter": "/n % 2 = 1"},
]
TOPICS = {"all": ["everywhere", "near", "far", "keyed"], "two": ["near", "owned", "odd"]}
MOVING = ("near", "far", "keyed", "dead", "odd")
TINY = Limits(delivery_rows=3, command_rows=3, due_rows=3, block_bytes=200)


def definitions() -> list[dict[str, Any]]:
    """The queues, each with the topics that it takes."""
    found = []
    for queue in QUEUES:
        topics = [topic for topic, names in TOPICS.items() if queue["name"] in names]
        one = {"message_type": "json", "max_per_subscription_backlog": 20, **queue}
        found.append({k: v for k, v in one.items() if v is not None} | {"subscriptions": topics})
    return found


class Walk:
    """One walk, drawn from a seed."""

    ENGINE: type[MortalEngine] = MortalEngine
    LIMITS = (Limits(), TINY)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits = self.LIMITS[seed % len(self.LIMITS)]
        config = {"brokers": list(BROKERS), "queues": definitions()}
        self.engine = self.ENGINE(parse_configuration(config), limits)
        self.engine.checking = seed % 4 == 0  # behind each step: that is most of what a walk costs
        self.fate = Fate(seed, death=0.04)
        self.engine.fated(self.fate)
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.producers = {name: self.at[name].producer() for name in BROKERS}
        self.n = 0
        self.sent: dict[str, list[tuple[str, dict[str, Any]]]] = {}  # id → destination, body
        self.consumers: list[tuple[str, Any]] = []
        self.gone: dict[str, Counter[str]] = {q["name"]: Counter() for q in QUEUES}
        self.order: dict[Any, list[int]] = {}

    def do_send(self) -> None:
        names = [q["name"] for q in QUEUES if q["name"] != "dead"]
        to = self.random.choice([*names, *TOPICS])
        self.n += 1
        body = {"n": self.n, "k": self.n % 3}
        producer = self.producers[self.random.choice(list(self.at))]
        try:
            receipt = producer.send(to, json.dumps(body).encode())
        except LakequeueError:
            return
        self.sent.setdefault(receipt.message_id, []).append((to, body))

    def do_consume(self) -> None:
        name = self.random.choice([q["name"] for q in QUEUES])
        broker = self.random.choice(list(self.at))
        try:
            consumer = self.at[broker].consumer(
                name, max_backlog=self.random.choice([1, 3, 10]), ack_mode="individual"
            )
        except LakequeueError:
            return  # a local queue is elsewhere
        self.consumers.append((name, consumer))

    def do_close(self) -> None:
        if self.consumers:
            _, consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            consumer.close()

    def do_take(self, settle: str | None = None) -> None:
        if not self.consumers:
            return
        name, consumer = self.random.choice(self.consumers)
        message = consumer.receive(timeout=0)
        if message is None:
            return
        what = settle or self.random.choice(["ack", "ack", "ack", "cancel", "reject"])
        try:
            getattr(message, what)()
        except LeaseLost:
            return  # its queue has gone meanwhile
        if what == "ack" or (what == "reject" and name != "near"):
            self.gone[name][message.id] += 1

    def do_move(self) -> None:
        """A queue goes to another broker, and clients follow."""
        name, broker = self.random.choice(MOVING), self.random.choice(list(self.at))
        admin = self.at[self.random.choice(list(self.at))].admin()
        with suppress(LakequeueError):  # one is cut off, or it moves already
            admin.move_queue(name, broker)
        for connection in self.at.values():
            connection.attend()

    def do_wait(self) -> None:
        self.engine.advance(self.random.choice(["100ms", "1s", "3s"]))

    def do_cut(self) -> None:
        name = self.random.choice([broker.home.name for broker in self.engine.brokers])
        self.engine.cut(name)
        for doing in self.random.choices([self.do_send, self.do_move], [3, 1], k=3):
            doing()
        self.engine.mend(name)
        for connection in self.at.values():
            connection.attend()

    def go(self, steps: int) -> None:
        doings = self.doings()
        for _ in range(steps):
            self.random.choice(doings)()

    def doings(self) -> list[Any]:
        doings = [self.do_send] * 5 + [self.do_take] * 5 + [self.do_consume, self.do_close]
        return [*doings, self.do_wait, self.do_cut, self.do_move]

    def drain(self) -> None:
        """Faults are over; everything that is left is taken."""
        self.engine.fated(None)
        for _, consumer in self.consumers:
            consumer.close()
        self.consumers = []
        for queue in QUEUES:
            for broker in self.at:
                try:
                    consumer = self.at[broker].consumer(
                        queue["name"], max_backlog=20, ack_mode="individual"
                    )
                except LakequeueError:
                    continue
                self.consumers.append((queue["name"], consumer))
        for _ in range(60):
            for name, consumer in self.consumers:
                while (message := consumer.receive(timeout=0)) is not None:
                    message.ack()
                    self.gone[name][message.id] += 1
            self.engine.advance("1s")

    def judge(self) -> None:
        self.engine.check()
        admin = self.at["a"].admin()
        for queue in QUEUES:
            seen = admin.describe(queue["name"])
            assert seen["depth"] == 0, f"{queue['name']}: {seen['depth']} are left"
        for broker in self.engine.brokers:
            waiting = [
                (q.definition.name, q.header.depth)
                for q in broker._replica.broker.names.values() if q.header.depth
            ]  # fmt: skip
            assert not waiting, f"{broker.home.name}: {waiting}"
        for queue in QUEUES:
            name = queue["name"]
            wanted = Counter(
                number for number, sendings in self.sent.items() for to, body in sendings
                if name in TOPICS.get(to, [to]) and (name != "odd" or body["n"] % 2)
            )  # fmt: skip
            got = self.gone[name]
            if name == "dead":
                got = Counter()
            if name == "near":  # what was rejected there is dead elsewhere
                got = got + self.gone["dead"]
            assert got == wanted, f"{name}: lost {wanted - got}, too often {got - wanted}"


def walked(seed: int, steps: int = 120) -> None:
    walk = Walk(seed)
    walk.go(steps)
    walk.drain()
    walk.judge()


@pytest.mark.parametrize("seed", range(16))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    walked(seed)


def test_the_walk_does_what_it_is_for() -> None:
    """Brokers die, lanes are blocked and flow again, ownership moves, messages die and cross."""
    seen: Counter[str] = Counter()
    for seed in range(2):
        walk = Walk(seed)
        walk.go(120)
        walk.drain()
        seen["deaths"] += walk.fate.deaths
        seen.update(row["event"] for row in walk.engine.journal())
    for what in (
        "deaths",
        "lane_blocked",
        "lane_flows",
        "granted",
        "transferred",
        "rejected",
        "went",
        "arrived",
    ):
        assert seen[what], what
    assert walk.gone["dead"] or seen["dead_lettered"]
