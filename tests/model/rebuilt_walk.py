"""Walks over brokers that are all made again as of earlier steps, each of another one (`kept`).
Nothing that was confirmed is lost, and nothing waits for ever; what was taken in by steps that are
lost is taken in again (R3)."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import msgspec
from lakequeue.state.header import QueueHeader
from rules.kept import KeptEngine

from .moving_walk import OPERATIONS, QUEUES, TAKES, MovingWalk

OPEN = ("offer", "tally", "offered", "lane", "lanes", "Y", "G", "B")  # pages of who waits for whom


class RebuiltWalk(MovingWalk):
    """Nobody consumes, so that all that was sent is there in the end."""

    ENGINE = KeptEngine
    OPERATIONS = tuple(name for name in OPERATIONS if name != "take")

    def __init__(self, seed: int, death: float = 0.0) -> None:
        self.lost = 0
        super().__init__(seed, death)
        for broker in self.engine.brokers:
            del broker.history[:-1]  # the tables reach back to here

    def go(self, steps: int) -> None:
        for n in range(steps):
            getattr(self, self.random.choice(self.OPERATIONS))()
            if n in (steps // 2, steps * 3 // 4):
                self.lose()
        self.finish()
        self.judge()

    def lose(self) -> None:
        back = {b.home.name: self.random.choice((0, 3, 20)) for b in self.engine.brokers}
        self.lost += self.engine.lose(back)

    def finish(self) -> None:
        self.engine.haste()
        for _ in range(6):
            for producer in self.producers.values():
                producer.retransmit(time.monotonic() + 1e6)
            self.engine.advance("5s")
        super().finish()

    def judge(self) -> None:
        where = {name: {n for n, _ in found} for name, found in self.found.items()}
        for n, (producer, to, future) in self.sent.items():
            there = {name for name in QUEUES if n in where[name]}
            wanted = {name for name in QUEUES if to in TAKES[name]}
            what = f"{n}, of {producer} to {to}"
            assert future is None or future.done(), f"{what}: has no answer"
            if future is not None and future.exception(0) is None:
                assert there == wanted, f"{what}: in {there}, not {wanted}"
        self.nothing_open(self.engine)

    @staticmethod
    def nothing_open(engine: KeptEngine) -> None:
        """Nobody waits for anybody."""
        waiting: dict[str, Any] = defaultdict(list)
        for broker in engine.brokers:
            for key, page in broker.store.pages.items():
                if key.split("/")[0] in OPEN:
                    waiting[broker.home.name].append(key)
                elif key.startswith("q/"):
                    header = msgspec.msgpack.decode(page, type=QueueHeader)
                    assert (header.moving, header.kept, header.leaving) == (0, 0, [])
                    assert not header.arriving
        assert not waiting, dict(waiting)
