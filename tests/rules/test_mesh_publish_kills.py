"""S5, P1 over brokers that die at random, do not hear each other for a while, whose queues are full
or move: each publish is in all queues that take it, once and under one id, or in none; and what a
producer sends to a queue stays in order there."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any

import pytest
from lakequeue.client.following import PAUSE_S
from lakequeue.protocol import Rejected
from lakequeue.protocol import commands as c
from model.limits import TINY

from .mortal import Fate
from .spread import BROKERS, Spread, local

QUEUES = {  # broker, topics, and what limits it
    "wide": ("a", ("t/>",), {}),
    "one": ("b", ("t/1",), {"filter": "/n % 3 > 0"}),
    "few": ("c", ("t/1", "t/2"), {"max_spool_messages": 9}),
    "moving": ("b", ("t/2", "t/3"), {}),
    "three": ("c", ("t/3",), {}),
}
TAKES = {
    "wide": lambda topic, n: True,
    "one": lambda topic, n: topic == "t/1" and n % 3 > 0,
    "few": lambda topic, n: topic in ("t/1", "t/2"),
    "moving": lambda topic, n: topic in ("t/2", "t/3"),
    "three": lambda topic, n: topic == "t/3",
}


class RandomTraffic:
    """What applications and fate do."""

    def __init__(self, seed: int) -> None:
        self.fate = Fate(seed, death=0.3)
        self.random = self.fate.random
        queues = [local(name, b, *topics, **keys) for name, (b, topics, keys) in QUEUES.items()]
        self.spread = Spread(*queues, fate=self.fate, limits=TINY if seed % 2 else None)
        self.sent: dict[int, tuple[str, str, Any]] = {}  # by n: producer, topic, future
        self.found: dict[str, list[tuple[int, str]]] = defaultdict(list)  # n, id by queue
        self.n = 0
        self.away: str | None = None

    def one(self) -> None:
        getattr(self, self.random.choice(["send"] * 8 + ["cut", "take", "move", "time"]))()

    def send(self) -> None:
        self.n += 1
        broker = self.random.choice(BROKERS)
        topic = f"t/{self.random.randint(1, 4)}"
        body = b'{"n":%d}' % self.n
        future = None
        if self.random.random() < 0.3:
            block = 8 * BROKERS.index(broker)
            self.spread.plain(topic, body, partition=block)
            broker = f"plain {block}"
        else:
            future = self.spread.start(broker, topic, body)
        self.sent[self.n] = broker, topic, future

    def cut(self) -> None:
        if self.away is not None:
            self.spread.engine.mend(self.away)
        self.away = self.random.choice([None, *BROKERS])
        if self.away is not None:
            self.spread.engine.cut(self.away)

    def take(self) -> None:
        """Some queue is emptied."""
        name = self.random.choice(list(QUEUES))
        broker = self.where(name)
        if self.away is not None or broker is None:
            return
        consumer = self.spread.at[broker].consumer(name, max_backlog=50, ack_mode="individual")
        while (message := consumer.receive(timeout=0)) is not None:
            self.found[name].append((int(message.payload[5:-1]), message.id))
            message.ack()
        consumer.close()

    def where(self, name: str) -> str | None:
        """The broker of a queue, if it is not on its way."""
        key = f"queue/{name}".encode()
        record = json.loads(self.spread.engine.directory("default.directory")[key])
        return next(iter(record["hosts"])) if record["state"] == "there" else None

    def move(self) -> None:
        command = c.MoveQueue(queue="moving", broker=self.random.choice(BROKERS))
        self.spread.engine.command("default.commands", b"", c.encode_command(command))

    def time(self) -> None:
        self.spread.engine.advance("150ms")

    def finish(self) -> None:
        """All hear each other again, and nobody dies any more."""
        self.spread.engine.fated(None)
        if self.away is not None:
            self.spread.engine.mend(self.away)
            self.away = None
        for _ in range(3):
            time.sleep(PAUSE_S)  # clients whose queue was on its way ask again
            self.spread.engine.advance("30s")
        for name in QUEUES:
            browsed = self.spread.admin.browse(name, limit=1_000)
            self.found[name] += [(int(m.payload[5:-1]), m.id) for m in browsed]

    def judge(self) -> None:
        ids = defaultdict(set)
        places = {name: [n for n, _ in found] for name, found in self.found.items()}
        for found in self.found.values():
            for n, number in found:
                ids[n].add(number)
        for n, (_, topic, future) in self.sent.items():
            wanted = {name for name in QUEUES if TAKES[name](topic, n)}
            inside = {name for name in QUEUES if n in places[name]}
            if future is None:
                assert inside in (set(), wanted), f"{n}: in {inside} of {wanted}"
            elif future.exception(0) is None:
                assert inside == wanted, f"{n}: in {inside}, not {wanted}"
                assert ids[n] == {future.result(0).message_id}
            else:
                assert isinstance(future.exception(0), Rejected)
                assert inside == set(), f"{n}: refused, and in {inside}"
            assert len(ids[n]) <= 1, f"{n} has several ids: {ids[n]}"
        for name, found in places.items():
            assert len(found) == len(set(found)), f"{name}: twice"
            in_order: dict[Any, list[int]] = defaultdict(list)
            for n in found:
                producer, topic, future = self.sent[n]
                # What a moving queue takes is sent again, or passed on, behind other topics.
                if topic in ("t/1", "t/4"):
                    in_order[producer].append(n)
                elif future is not None:
                    in_order[producer, topic].append(n)
            for key, numbers in in_order.items():
                assert numbers == sorted(numbers), f"{name}: {key}: {numbers}"


@pytest.mark.parametrize("seed", range(6))
def test_S5_all_or_none_whoever_dies_when(seed: int) -> None:
    traffic = RandomTraffic(seed)
    for _ in range(60):
        traffic.one()
    traffic.finish()
    traffic.judge()
    assert traffic.fate.deaths > 60  # some 1,000 in all seeds together
    assert sum(map(len, traffic.found.values())) > 30
