"""Barriers of several brokers while everything takes its time and brokers die (O3, H4): what has
gone before one, and what comes behind it, is the same wherever it is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration

from .harness import drain
from .mesh import BROKERS
from .mortal import Fate
from .slow import SlowEngine

QUEUE = {
    "name": "orders", "message_type": "json", "max_per_subscription_backlog": 9,
    "barrier_expression": "/b = 1",
}  # fmt: skip
OPERATIONS = ["send"] * 4 + ["some"] * 12 + ["take"] * 3 + ["calm"]


class SlowBarriers:
    """A producer and a consumer at each broker. seen: by broker, what its consumer got, by number:
    negative where it is a barrier; calms: how often all had heard everything before it was sent."""

    def __init__(self, seed: int, death: float) -> None:
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        config = parse_configuration({"brokers": list(BROKERS), "queues": [QUEUE]})
        self.engine = SlowEngine(config)
        self.engine.checking = True
        at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.producers = {name: one.producer(pub_ack_time="1h") for name, one in at.items()}
        self.consumers = {
            name: one.consumer("orders", max_backlog=2, ack_mode="individual")
            for name, one in at.items()
        }
        self.held: list[Any] = []
        self.seen: dict[str, list[int]] = {name: [] for name in BROKERS}
        self.ids: dict[str, int] = {}
        self.n = 0
        self.calm_times = 0
        self.calms: dict[int, int] = {}
        self.engine.fated(self.fate)
        self.engine.slow()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.random.choice(OPERATIONS))()
        self.engine.fated(None)
        self.engine.haste()
        while self.take():
            pass
        self.judge()

    def send(self) -> None:
        self.n += 1
        self.calms[self.n] = self.calm_times
        body = {"n": self.n, "b": int(self.random.random() < 0.25)}
        to = self.producers[self.random.choice(BROKERS)]
        to.send_async("orders", json.dumps(body).encode())

    def some(self) -> None:
        self.engine.some(self.fate)

    def calm(self) -> None:
        """Everything is read and heard: what is sent from now on is later, wherever that is."""
        self.engine.haste()
        self.engine.slow()
        self.calm_times += 1

    def take(self) -> bool:
        """Consumers take what has come, and acknowledge some of what they hold; whether there was
        any."""
        count = len(self.ids)
        for name, consumer in self.consumers.items():
            for message in drain(consumer):
                number = json.loads(message.payload)["n"]
                self.ids[message.id] = number
                self.seen[name].append(-number if message.is_barrier else number)
                self.held += [] if message.is_barrier else [message]
        busy = len(self.ids) > count or bool(self.held)
        for message in list(self.held):
            if self.random.random() < 0.5:
                self.held.remove(message)
                message.ack()
        return busy

    # ------------------------------------------------------------ what is allowed

    def judge(self) -> None:
        entered, went, first = self.times()
        barriers = {name: [-n for n in seen if n < 0] for name, seen in self.seen.items()}
        order = barriers["a"]
        assert barriers == dict.fromkeys(BROKERS, order), barriers
        assert len(set(order)) == len(order)
        messages = [n for seen in self.seen.values() for n in seen if n > 0]
        assert sorted(messages + order) == list(range(1, self.n + 1))
        after: dict[int, int] = {}  # behind how many barriers each message came
        for seen in self.seen.values():
            passed = 0
            for n in seen:
                passed += n < 0
                after[abs(n)] = passed if n > 0 else passed - 1
        calms = [self.calms[n] for n in order]
        assert calms == sorted(calms), "a barrier passed an earlier one"
        for at, barrier in enumerate(order):
            for n in messages:
                what = f"{n}, barrier {barrier}"
                if self.calms[n] != self.calms[barrier]:
                    later = self.calms[n] > self.calms[barrier]
                    assert (after[n] > at) == later, f"{what}: {'passed' if later else 'missed'}"
                if after[n] <= at:
                    assert went[n] < went[barrier], f"{what}: went before this had left"
                else:
                    assert first[n] > went[barrier], f"{what}: was passed"
        for n, (broker, place) in entered.items():  # of one broker: the order of entering
            for barrier in order:
                where, line = entered[barrier]
                if where == broker and n != barrier:
                    behind = after[n] > order.index(barrier) or (
                        n in order and after[n] >= after[barrier]
                    )
                    assert behind == (place > line), f"{n}, barrier {barrier}: {broker}"

    def times(self) -> tuple[dict[int, tuple[str, int]], dict[int, int], dict[int, int]]:
        """Of each message: where and when it entered, when it left, when it was first sent."""
        entered: dict[int, tuple[str, int]] = {}
        went: dict[int, int] = {}
        first: dict[int, int] = {}
        for at, row in enumerate(self.engine.journal()):
            n = self.ids.get(row["message_id"] or "", 0)
            if row["event"] == "spooled":
                entered.setdefault(n, (row["broker"], at))
            elif row["event"] == "acknowledged":
                went[n] = at
            elif row["event"] in ("delivered", "barrier_delivered"):
                first.setdefault(n, at)
        return entered, went, first


@pytest.mark.parametrize(("seed", "death"), [(0, 0.0), (1, 0.0), (2, 0.2), (3, 0.2)])
def test_O3_H4_barriers_keep_their_order_however_slowly_they_are_heard(
    seed: int, death: float
) -> None:
    walk = SlowBarriers(seed, death)
    walk.go(150)
    assert walk.n > 15
    assert sum(n < 0 for n in walk.seen["a"]) > 2
    assert walk.fate.deaths > 5 or not death
