"""Queues move while all that brokers say to each other, and all that clients write and hear, takes
its time, and brokers die: what is published is stored once, and what enters at one broker stays in
its order (S1, M1–M3, M5, P1)."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from lakequeue.client.producer.broker_channel import PAUSE_S
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c
from rules.mortal import Fate
from rules.slow import SlowEngine
from rules.spread import BROKERS, local

QUEUES = ("one", "two", "keyed")
TOPICS = {"one": ("one", "t/1", "t/2"), "two": ("two", "t/2"), "keyed": ("keyed", "t/1")}
TO = ("one", "two", "keyed", "t/1", "t/2")


class SlowMoves:
    """One walk, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        queues: list[dict[str, Any]] = [
            local("one", "a", "t/1", "t/2"), local("two", "b", "t/2"),
            {"name": "keyed", "message_type": "json", "partition_key": "/k",
             "subscriptions": ["t/1"]},
        ]  # fmt: skip
        self.engine = SlowEngine(parse_configuration({"brokers": list(BROKERS), "queues": queues}))
        self.fate = Fate(seed, death=0.05)
        self.random = self.fate.random
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.producers = {name: at.producer() for name, at in self.at.items()}
        self.sent: list[tuple[str, Any]] = []  # to what, and its receipt
        self.engine.fated(self.fate)
        self.engine.slow()

    def send(self) -> None:
        to, n = self.random.choice(TO), len(self.sent)
        producer = self.producers[self.random.choice(BROKERS)]
        body = json.dumps({"n": n, "k": n % 3}).encode()
        self.sent.append((to, producer.send_async(to, body)))

    def move(self) -> None:
        queue, to = self.random.choice(QUEUES), self.random.choice(BROKERS)
        command = c.encode_command(c.MoveQueue(queue=queue, broker=to))
        self.engine.command("default.commands", b"", command, self.random.choice(BROKERS))

    def hear(self) -> None:
        for _ in range(4):
            self.engine.some(self.fate)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice([self.send] * 3 + [self.move] + [self.hear] * 4)()

    def end(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        for _ in range(20):
            for connection in self.at.values():
                connection.attend()
            self.engine.advance("1s")
            if all(one.done() for _, one in self.sent):
                break
            time.sleep(PAUSE_S)
        self.engine.advance("2s")
        self.engine.check()

    def judge(self) -> None:
        ids = [(to, one.result(0).message_id) for to, one in self.sent]
        for queue in QUEUES:
            found = [m.id for m in self.at["a"].admin().browse(queue, limit=1_000)]
            assert Counter(found) == Counter(i for to, i in ids if to in TOPICS[queue]), queue
            for number in range(len(BROKERS)):
                entered = [int(i) for i in found if int(i) >> 48 == number]
                assert entered == sorted(entered), f"{queue}: what entered at {BROKERS[number]}"


@pytest.mark.parametrize("seed", range(5))
def test_S1_M5_queues_move_however_slowly_it_is_heard(seed: int) -> None:
    walk = SlowMoves(seed)
    walk.go(80)
    walk.end()
    walk.judge()


def test_the_walk_does_what_it_is_for() -> None:
    walk = SlowMoves(0)
    walk.go(80)
    walk.end()
    events = Counter(row["event"] for row in walk.engine.journal())
    assert walk.fate.deaths
    assert events["went"] > 1
    assert events["transferred"]
