"""A broker of an engine in the process that works with others (`mesh`), on live objects."""

from __future__ import annotations

from ..core import Batch as LiveBatch
from ..core import DictStore, Home
from ..mesh.mesh import Mesh
from ..protocol import topics, wire
from ..protocol.messages import Records
from ..protocol.outputs import Output
from ..replica.replica import Replica
from ..state import Batch
from .live_broker import LiveBroker


class MeshBroker(LiveBroker):
    """A broker; what others say to it is heard in its next step."""

    def _begin(self, store: DictStore) -> None:
        home = Home(self.home.name, self.home.number, self.home.epoch, self.home.secret)
        self._marked = DictStore(store.pages)
        self._replica = Replica(home, store, self._limits, Mesh.load)
        self._since: list[tuple[LiveBatch, int]] = []
        self._said: list[wire.WireRecord] = []
        self._heard = 0

    @property
    def mesh_topic(self) -> str:
        """Where other brokers speak to it."""
        return topics.topic(self.home.name, topics.MESH)

    def tell(self, record: wire.WireRecord) -> None:
        """Another broker says something; it is heard in the next step."""
        self._said.append(record)

    def is_busy(self, now: int) -> bool:
        """Whether it has something to do at this time."""
        return not self.is_stopped and (bool(self._said) or super().is_busy(now))

    def step(self, batch: Batch, now: int) -> list[Output]:
        """Run a step, with all that other brokers said before it."""
        batch.mesh = self._heard_records(now)
        return self.take(batch, now)

    def _heard_records(self, now: int) -> Records:
        said, self._said = self._said, []
        n, first = len(said), self._heard
        self._heard += n
        return Records(
            [r.topic for r in said], [r.partition or 0 for r in said],
            list(range(first, first + n)), [now] * n, [r.key for r in said],
            [r.value for r in said], [None] * n, [None] * n,
        )  # fmt: skip
