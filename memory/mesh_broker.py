"""A broker of an engine in the process that works with others (`mesh`), on live objects."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Broker, DictStore
from ..core.queue.beyond import Beyond
from ..mesh.mesh import Mesh
from ..protocol import wire
from ..protocol.outputs import Output
from ..state import Batch
from .live_broker import LiveBroker
from .memory_broker import as_heard


class MeshBroker(LiveBroker):
    """A broker; what others say to it is heard in its next step."""

    def _begin(self, store: DictStore) -> None:
        super()._begin(store)
        self._said: list[wire.WireRecord] = []
        self._heard = 0

    def _neighbours(self) -> Callable[[Broker], Beyond]:
        """See `LiveBroker`."""
        return Mesh.load

    def tell(self, record: wire.WireRecord) -> None:
        """Another broker says something; it is heard in the next step."""
        self._said.append(record)

    def is_busy(self, now: int) -> bool:
        """Whether it has something to do at this time."""
        return not self.is_stopped and (bool(self._said) or super().is_busy(now))

    def step(self, batch: Batch, now: int) -> list[Output]:
        """Run a step, with all that other brokers said before it."""
        said, self._said = self._said, []
        batch.mesh = as_heard(said, self._heard, now)
        self._heard += len(said)
        return self.take(batch, now)
