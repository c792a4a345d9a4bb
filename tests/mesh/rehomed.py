"""Homes at rest whose brokers change (M4)."""

from __future__ import annotations

from typing import Any

from lakequeue.memory.rehoming import change_brokers
from lakequeue.mesh.rehome import Rehomed
from lakequeue.state import DictStore
from rules.mesh import Mesh, take
from rules.mortal import MortalBroker, MortalEngine


class RestingBroker(MortalBroker):
    """Its mark is made before its home changes, and is the snapshot from then on."""

    @property
    def store(self) -> DictStore:
        pages = MortalBroker.store.fget(self)  # type: ignore[attr-defined]
        self._snapshot, self._log = dict(pages.pages), []
        return pages

    @store.setter
    def store(self, store: DictStore) -> None:
        MortalBroker.store.fset(self, store)  # type: ignore[attr-defined]


class RestingEngine(MortalEngine):
    """An engine of such brokers."""

    BROKER = RestingBroker  # type: ignore[assignment]

    def take_home(self, brokers: Any, groups: Any) -> None:
        fate = self.brokers[0].fate  # type: ignore[attr-defined]
        super().take_home(brokers, groups)
        for broker, (_, _, pages) in zip(self.brokers, brokers, strict=True):
            broker._snapshot = dict(pages)  # type: ignore[attr-defined]
        self.fated(fate)

    def change(self, add: str = "", remove: str = "", to: str = "", **moves: str) -> Rehomed:
        """Change the brokers, or move queues. Also checks that the old home stays untouched."""
        moved = {("default", queue): broker for queue, broker in moves.items()}
        found = change_brokers(self, add, remove, to, moves=moved)
        self.check()
        return found


class Home(Mesh):
    """A home of such brokers, `a` and `b` by default."""

    ENGINE = RestingEngine
    engine: RestingEngine

    def __init__(self, *queues: dict[str, Any], brokers: Any = "ab", **more: Any) -> None:
        super().__init__(*queues, brokers=brokers, **more)

    def depth(self, queue: str = "q") -> int:
        return int(self.engine.connect().admin().describe(queue)["depth"])

    def drained(self, queue: str, broker: str, rounds: int = 1) -> list[Any]:
        """All messages of a queue, acknowledged, that a broker's client gets in so many seconds."""
        found = []
        with self.engine.connect(broker).consumer(queue, max_backlog=50) as consumer:
            for n in range(rounds):
                if n:
                    self.advance("1s")
                found += take(consumer)
        return found
