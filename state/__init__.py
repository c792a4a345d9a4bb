"""The broker itself, pure: one step from state, inputs and time to outputs.

`step` runs a step over a `Store`; `Batch` is what comes in; `Home` says whose state it is, `Limits`
what bounds the step; `check` proves a state's invariants.
"""

from .broker import FORMAT, Home
from .invariants import check
from .limits import Limits
from .step import Batch, step
from .storage import DictStore, Store

__all__ = ["FORMAT", "Batch", "DictStore", "Home", "Limits", "Store", "check", "step"]
