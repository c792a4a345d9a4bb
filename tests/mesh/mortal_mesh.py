"""Brokers on live objects that work together, and die as the job's do (`rules.mortal`)."""

from __future__ import annotations

import copy
from typing import Any

from lakequeue.core import DictStore
from lakequeue.memory.live_broker import LiveBroker
from lakequeue.memory.mesh_broker import MeshBroker
from lakequeue.protocol import wire
from lakequeue.protocol.outputs import Capture, Output
from lakequeue.state import Batch
from rules.mortal import NOT_REPEATED, Fate, MortalEngine, Reachable


class MortalLiveBroker(Reachable, LiveBroker):
    """A broker with a snapshot and a log. A mark is made where a snapshot is taken, and only there:
    what it writes decides what later steps do."""

    fate: Fate | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._snapshot: dict[str, bytes] = {}
        self._log: list[tuple[Batch, int, list[Output]]] = []
        self._last: list[list[Output]] = []
        self.captured: set[str] = set()
        self._unheard: list[wire.WireRecord] = []

    def take(self, batch: Batch, now: int) -> list[Output]:
        fate = self.fate
        said: list[Output] = []
        if fate is not None and fate.strikes():  # in the middle of the step
            said += self.recover()
        taken = copy.deepcopy(batch)
        outputs = super().take(batch, now)
        said += outputs
        self.captured.update(o.topic for o in outputs if isinstance(o, Capture))
        self._log.append((taken, now, outputs))
        self._last = [*self._last, outputs][-2:]
        if fate is not None and fate.strikes():  # when it was logged
            said += self.recover()
        if fate is not None and fate.random.random() < fate.snapshot:
            self._mark()
            self._snapshot, self._log = dict(self._marked.pages), []
        return said

    def recover(self) -> list[Output]:
        """Be what the log says; gives what is said again."""
        unheard = self._said, self._heard
        self.store = DictStore(dict(self._snapshot))
        for batch, now, said in self._log:
            again = super().take(copy.deepcopy(batch), now)
            assert list(wire.encode(again)) == list(wire.encode(said))
        self._said, self._heard = unheard
        return [o for said in self._last for o in said if not isinstance(o, NOT_REPEATED)]


class MortalMeshBroker(MortalLiveBroker, MeshBroker):
    """One that has neighbours."""


class MortalMeshEngine(MortalEngine):
    """An engine of such brokers."""

    BROKER = MortalMeshBroker  # type: ignore[assignment]
