"""A message in a queue: its states, the one table of their transitions, and the one place where
they change. `enter` gives a message its row, `apply` is the only way its state changes after."""

from .change import IllegalTransition, apply
from .entry import enter
from .table import DELAYED, GONE, LEASED, MOVING, NAMES, READY, TABLE, Event, Transition

__all__ = [
    "DELAYED",
    "GONE",
    "LEASED",
    "MOVING",
    "NAMES",
    "READY",
    "TABLE",
    "Event",
    "IllegalTransition",
    "Transition",
    "apply",
    "enter",
]
