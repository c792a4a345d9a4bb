"""Walks over homes whose brokers come and go, and die at any moment (M4, P1, L1, L4, S1, O1).

The walk is that of `test_walk`; between its doings the home is at rest for a moment, and has other
brokers then. Nothing acknowledged is lost, nothing is stored twice, every message keeps its id.
"""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import LakequeueError
from lakequeue.state import Limits
from rehomed import RestingEngine
from test_walk import TINY, Walk

# Much of a queue is cold, and many contents are in blocks.
COLD: Any = Limits(delivery_rows=5, live_rows=4, segment_rows=3, block_bytes=300, due_rows=3)


class RehomingWalk(Walk):
    """A walk on which brokers are added and removed. changes: how often each happened."""

    ENGINE: Any = RestingEngine
    LIMITS = (Limits(), TINY, COLD)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.engine.advance("0s")
        self.changes = {"added": 0, "removed": 0}
        self.refused: list[str] = []
        self.names = iter(f"n{n}" for n in range(1_000))

    def home(self) -> list[str]:
        return [broker.home.name for broker in self.engine.brokers]

    def do_change(self) -> None:
        before = self.home()
        add = self.random.random() < 0.5
        name = next(self.names) if add else self.random.choice(before)
        to = self.random.choice(["", *(one for one in before if one != name)])
        try:
            if add:
                self.engine.change(add=name)
                self.at[name] = self.engine.connect(name, f"app-{name}")
                self.producers[name] = self.at[name].producer()
            else:
                self.engine.change(remove=name, to=to)
        except LakequeueError as error:
            self.refused.append(str(error))
            assert self.home() == before
            return
        self.changes["added" if add else "removed"] += 1
        self.engine.check()
        mesh = [broker._replica.broker.mesh._others for broker in self.engine.brokers]
        known = {one.facts.edition for one in mesh}
        assert len(known) == 1, "all know the same directory, or who hears of a change writes none"
        for connection in self.at.values():  # clients hear where queues are now
            connection.attend()

    def doings(self) -> list[Any]:
        return [*super().doings(), self.do_change]


def walked(seed: int, steps: int = 120) -> RehomingWalk:
    walk = RehomingWalk(seed)
    walk.go(steps)
    walk.drain()
    walk.judge()
    expected = ("initial_owner", "only one")
    assert all(any(one in why for one in expected) for why in walk.refused), walk.refused
    return walk


@pytest.mark.parametrize("seed", range(12))
def test_M4_nothing_is_lost_or_doubled_whoever_comes_and_goes(seed: int) -> None:
    walked(seed)


def test_the_walk_does_what_it_is_for() -> None:
    """Any broker goes, the first too."""
    walks = [walked(seed) for seed in range(4)]
    assert all(sum(walk.changes[what] for walk in walks) for what in ("added", "removed"))
    assert any(walk.refused for walk in walks)
    assert any("a" not in walk.home() for walk in walks)
