"""Engines in memory whose brokers die, as the job's do.

A broker's decisions are its log of inputs; the snapshot of its state is older. After a death the
broker restarts from the snapshot and replays the logged steps with the same inputs and times. It
repeats the outputs of the last two steps, byte for byte, because it cannot know whether they were
written. A step that was not logged did not happen: its inputs come again.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from lakequeue.memory import MemoryConnection, MemoryEngine
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import wire
from lakequeue.protocol.outputs import Alert, Deadline, Journal, Output
from lakequeue.state import Batch, DictStore

NOT_REPEATED = (Alert, Deadline, Journal)  # readers of the journal recognise rows by their step


class Fate:
    """Decides from one seed when a broker dies. deaths: their number so far."""

    def __init__(self, seed: int, death: float = 0.1, snapshot: float = 0.2) -> None:
        self.random = random.Random(seed)
        self.death, self.snapshot = death, snapshot
        self.deaths = 0

    def strikes(self) -> bool:
        if self.random.random() >= self.death:
            return False
        self.deaths += 1
        return True


class Reachable:
    """A broker's input; other brokers may be cut off from it."""

    is_cut = False
    _unheard: list[wire.WireRecord]

    def tell(self, record: wire.WireRecord) -> None:
        """See `MemoryBroker.tell`; while the broker is cut off, messages wait."""
        if self.is_cut:
            self._unheard.append(record)
        else:
            super().tell(record)  # type: ignore[misc]

    def mend(self) -> None:
        """Reconnect; the waiting messages arrive now."""
        self.is_cut = False
        for record in self._unheard:
            super().tell(record)  # type: ignore[misc]
        self._unheard = []


class MortalBroker(Reachable, MemoryBroker):
    """A broker with a snapshot and a log. fate: None: it never dies. A mark is made only where a
    snapshot is taken, because a mark's writes influence later steps."""

    fate: Fate | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._snapshot: dict[str, bytes] = {}
        self._log: list[tuple[Batch, int, list[Output]]] = []
        self._last: list[list[Output]] = []
        self._unheard: list[wire.WireRecord] = []

    def take(self, batch: Batch, now: int) -> list[Output]:
        fate = self.fate
        said: list[Output] = []
        if fate is not None and fate.strikes():  # in the middle of the step
            said += self.recover()
        taken = copy.deepcopy(batch)
        outputs = super().take(batch, now)
        said += outputs
        self._log.append((taken, now, outputs))
        self._last = [*self._last, outputs][-2:]
        if fate is not None and fate.strikes():  # after it was logged
            said += self.recover()
        if fate is not None and fate.random.random() < fate.snapshot:
            self._mark()
            self._snapshot, self._log = dict(self._marked.pages), []
        return said

    def recover(self) -> list[Output]:
        """Restart from snapshot and log. Returns the repeated outputs."""
        unheard = self._received, self._heard
        self.store = DictStore(dict(self._snapshot))
        for batch, now, said in self._log:
            again = super().take(copy.deepcopy(batch), now)
            assert list(wire.encode(again)) == list(wire.encode(said))
        self._received, self._heard = unheard
        return [o for said in self._last for o in said if not isinstance(o, NOT_REPEATED)]


class MortalEngine(MemoryEngine):
    """An engine of such brokers."""

    BROKER = MortalBroker

    def fated(self, fate: Fate | None) -> None:
        """From now on brokers die by this fate."""
        for broker in self.brokers:
            broker.fate = fate  # type: ignore[attr-defined]

    def cut(self, name: str) -> None:
        """A broker receives nothing from others until `mend`."""
        self.broker(name).is_cut = True  # type: ignore[attr-defined]

    def mend(self, name: str) -> None:
        """It receives again, also the messages sent meanwhile."""
        self.broker(name).mend()  # type: ignore[attr-defined]
        self.advance("0s")

    def connect(self, broker: str | None = None, name: str = "client") -> MemoryConnection:
        return MemoryConnection(self, "default", name, broker)
