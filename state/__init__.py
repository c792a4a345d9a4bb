"""One broker, pure and live: ordinary objects that a step changes in place, packed at a mark.

`Broker.load` reads it from a store, `step` takes a step, `Broker.mark` writes what changed, `check`
proves what must hold.
"""

from .invariants import check
from .limits import Limits
from .queue.broker import Broker
from .queue.broker_facts import FORMAT, Home
from .step import Batch, StepFailed, step
from .storage.store import DictStore, Store

__all__ = [
    "FORMAT", "Batch", "Broker", "DictStore", "Home", "Limits", "StepFailed", "Store", "check",
    "step",
]  # fmt: skip
