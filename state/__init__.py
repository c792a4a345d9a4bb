"""One broker as pure, ordinary objects: a step changes them in place, a mark writes them down.

`Broker.load` reads a broker from a store, `step` takes one step, `Broker.mark` writes what changed,
and `check` verifies the invariants.
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
