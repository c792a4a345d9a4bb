"""A broker of an engine in the process that works with others (`mesh`), on live objects."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Broker
from ..core.queue.beyond import Beyond
from ..mesh.met_brokers import neighbours
from .live_broker import LiveBroker


class MeshBroker(LiveBroker):
    """A broker that has neighbours."""

    def _neighbours(self) -> Callable[[Broker], Beyond]:
        """See `LiveBroker`."""
        return neighbours
