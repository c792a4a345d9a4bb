"""The broker itself, pure: one step from state, inputs and time to outputs.

`step` runs a step over a `Store`; `Batch` is what comes in; `check` proves a state's invariants.
Configuration and definitions are read by `parse_configuration` and `parse_definition`.
"""

from .configuration import Configuration, parse_configuration
from .definition import QueueDefinition, parse_definition, to_wire
from .invariants import check
from .step import Batch, step
from .store import DictStore, Store

__all__ = [
    "Batch",
    "Configuration",
    "DictStore",
    "QueueDefinition",
    "Store",
    "check",
    "parse_configuration",
    "parse_definition",
    "step",
    "to_wire",
]
