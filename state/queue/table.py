"""The table of transitions: everything that can happen to a message in a queue.

The look-up is the check: an event cannot happen in a state that the table does not name for it.
Only `change` reads the table, and only `change` writes a state.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from ..storage.row import DELAYED, GONE, LEASED, MOVING, READY

NAMES = {GONE: "gone", READY: "ready", LEASED: "leased", DELAYED: "delayed", MOVING: "moving"}

KEPT, RELEASED, DEAD = "kept", "released", "dead"


class Event(enum.Enum):
    """The events of a message's life. The value is its text in the docs."""

    __hash__ = object.__hash__  # events are keys on the path of every message; enum's hash is slow

    ENTER = "taken in"
    ENTER_LATER = "taken in, due later"
    DELIVER = "sent to a subscription"
    REDELIVER = "sent again"
    BARRIER = "barrier sent to all"
    ACKNOWLEDGE = "acknowledged"
    RENEW = "lease extended"
    LEASE_END = "lease ended"
    LEASE_END_LAST = "lease ended, delivered too often"
    RETURN = "consumer gone"
    RETURN_LAST = "consumer gone, delivered too often"
    HAND_BACK = "handed back untouched"
    CANCEL = "canceled"
    CANCEL_LATER = "canceled with a delay"
    CANCEL_LAST = "canceled or delivered too often"
    DUE = "due"
    REJECT = "rejected"
    EXPIRE = "time to live over"
    OVERSIZE = "cannot be sent"
    PURGE = "purged"
    REPLACE = "replaced by the next, quota 0"
    REDRIVE = "redriven from a dead message queue"
    MOVE = "moved to another queue"
    DELETE = "its queue is deleted"
    LOSE = "its payload is missing"
    GRANT = "sent to another broker"
    TRANSFER = "handed over to another broker"
    ARRIVE = "taken by the far end of a bridge"
    REFUSE = "refused by another broker"
    REFUSE_LATER = "refused by another broker, and tried again later"


class Transition(NamedTuple):
    """The effect of an event, the same in every state in which it can occur. before: these states;
    journal: the events written for each message; counts: the counters that go up; match: what
    happens to the message's match in the spool; rules: their ids."""

    before: frozenset[int]
    to: int
    journal: tuple[str, ...]
    counts: tuple[str, ...]
    match: str
    rules: str


_E = Event
_NEW, _READY, _LEASED = frozenset({GONE}), frozenset({READY}), frozenset({LEASED})
_DELAYED, _MOVING = frozenset({DELAYED}), frozenset({MOVING})
_HERE = _READY | _LEASED | _DELAYED


def _leaves(before: frozenset[int], name: str, rules: str, match: str = RELEASED) -> Transition:
    return Transition(before, GONE, (name,), (name,), match, rules)


def _dies(name: str, rule: str) -> Transition:
    """The last attempt failed, so the message expires."""
    return Transition(_LEASED, GONE, (name, "expired"), (name, "expired"), DEAD, rule)


def _returns(before: frozenset[int], to: int, name: str, rule: str) -> Transition:
    return Transition(before, to, (name,), (name,), KEPT, rule)


# The callers of `change.enter` journal "spooled": they know where the message came from.
TABLE: dict[Event, Transition] = {
    _E.ENTER: Transition(_NEW, READY, (), ("spooled",), KEPT, "S1"),
    _E.ENTER_LATER: Transition(_NEW, DELAYED, (), ("spooled",), KEPT, "L12"),
    _E.DELIVER: Transition(_READY, LEASED, ("delivered",), ("delivered",), KEPT, "L3"),
    _E.REDELIVER: Transition(
        _READY, LEASED, ("redelivered",), ("delivered", "redelivered"), KEPT, "L7"
    ),
    _E.BARRIER: _leaves(_READY, "acknowledged", "O3"),
    _E.ACKNOWLEDGE: _leaves(_HERE, "acknowledged", "L8, L1"),
    _E.RENEW: Transition(_LEASED, LEASED, ("renewed",), (), KEPT, "L10"),
    _E.LEASE_END: _returns(_LEASED, READY, "lease_ended", "L4"),
    _E.LEASE_END_LAST: _dies("lease_ended", "L5"),
    _E.RETURN: _returns(_LEASED, READY, "returned", "L1"),
    _E.RETURN_LAST: _dies("returned", "L5"),
    _E.HAND_BACK: _returns(_LEASED, READY, "returned", "L5"),
    _E.CANCEL: _returns(_LEASED, READY, "canceled", "L6"),
    _E.CANCEL_LATER: _returns(_LEASED, DELAYED, "canceled", "L11"),
    _E.CANCEL_LAST: _dies("canceled", "L6"),
    _E.REJECT: _leaves(_LEASED, "consumer_rejected", "C7", DEAD),
    _E.DUE: Transition(_DELAYED, READY, ("ready",), (), KEPT, "L11"),
    _E.EXPIRE: _leaves(_HERE, "expired", "X1, X3", DEAD),
    _E.OVERSIZE: _leaves(_HERE, "expired", "X5", DEAD),
    _E.PURGE: _leaves(_HERE, "purged", "R6"),
    _E.REPLACE: _leaves(_HERE, "replaced", "S10"),
    _E.REDRIVE: _leaves(_READY | _DELAYED, "redriven", "X6"),
    _E.MOVE: _leaves(_READY | _DELAYED, "moved", "R6"),
    _E.DELETE: _leaves(_HERE | _MOVING, "deleted", "S7"),
    _E.LOSE: _leaves(_HERE, "lost", "S1"),
    _E.GRANT: Transition(_READY | _DELAYED, MOVING, ("granted",), (), KEPT, "H4, M5"),
    _E.TRANSFER: _leaves(_MOVING, "transferred", "H4"),
    _E.ARRIVE: _leaves(_MOVING, "acknowledged", "H1"),
    _E.REFUSE: _returns(_MOVING, READY, "returned", "M3"),
    _E.REFUSE_LATER: _returns(_MOVING, DELAYED, "returned", "H3"),
}

ENDINGS = tuple(
    sorted({t.counts[-1] for t in TABLE.values() if t.to == GONE})
)  # counters of messages that left; together with the depth they add up to `spooled`
COUNTERS = (
    *dict.fromkeys(name for t in TABLE.values() for name in t.counts),
    "dead_lettered", "discarded", "ack_ignored", "retransmitted",
)  # fmt: skip
