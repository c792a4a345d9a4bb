"""The name by which tests knew a broker of several; it goes with the last of those."""

from __future__ import annotations

from .live_broker import LiveBroker as MeshBroker

__all__ = ["MeshBroker"]
