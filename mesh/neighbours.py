"""Whom a broker knows: the other brokers of its home, when it has met them, and its bridges.

A home with one broker loads nothing of what several need. A broker meets others when the engine
names them (`Peers`), or when one of them speaks; it knows them from then on. So it follows from
what came in, and whoever takes the steps again meets them in the same one.
"""

from __future__ import annotations

from ..state.queue.broker import Broker
from ..state.queue.mesh_interface import MeshInterface
from .bridges.bridged_broker import BridgedBroker
from .facts import PAGE
from .mesh import Mesh


def neighbours(broker: Broker) -> MeshInterface:
    """As they were packed."""
    has_met = broker.store.get(PAGE) is not None
    return BridgedBroker.load(broker, Mesh.load(broker) if has_met else None, Mesh.load)
