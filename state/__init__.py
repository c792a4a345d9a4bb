"""The broker itself, pure: one step from state, inputs and time to outputs.

`step` runs a step over a `Store`; `Batch` is what comes in; `check` proves a state's invariants.
"""

from .invariants import check
from .step import Batch, step
from .storage import DictStore, Store

__all__ = [
    "Batch",
    "DictStore",
    "Store",
    "check",
    "step",
]
