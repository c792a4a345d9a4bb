"""The broker itself, pure: one step from state, inputs and time to outputs.

`step` runs a step over a `Store`; `Batch` is what comes in; `Home` says whose state it is, `Limits`
what bounds the step; `check` proves a state's invariants.
"""

from ..core import Batch, DictStore, Home, Store
from .broker import FORMAT
from .invariants import check
from .limits import Limits
from .step import step

__all__ = ["FORMAT", "Batch", "DictStore", "Home", "Limits", "Store", "check", "step"]
