"""The table of transitions: everything that can happen to a message in a queue.

The look-up is the check: a pair that is not in the table cannot happen. An event has the same
effect in every state in which it can occur. Only `change` reads the table, and only `change` writes
a state.
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
    """The effect of an event. journal: the events written for each message; counts: the counters
    that go up; match: what happens to the message's match in the spool; rule: the rule's id."""

    to: int
    journal: tuple[str, ...]
    counts: tuple[str, ...]
    match: str
    rule: str


_E = Event


def _leaves(name: str, rule: str, match: str = RELEASED) -> Transition:
    return Transition(GONE, (name,), (name,), match, rule)


def _dies(name: str, rule: str) -> Transition:
    """The last attempt failed, so the message expires."""
    return Transition(GONE, (name, "expired"), (name, "expired"), DEAD, rule)


# The callers of `change.enter` journal "spooled": they know where the message came from.
TABLE: dict[tuple[int, Event], Transition] = {
    (GONE, _E.ENTER): Transition(READY, (), ("spooled",), KEPT, "S1"),
    (GONE, _E.ENTER_LATER): Transition(DELAYED, (), ("spooled",), KEPT, "L12"),
    (READY, _E.DELIVER): Transition(LEASED, ("delivered",), ("delivered",), KEPT, "L3"),
    (READY, _E.REDELIVER): Transition(
        LEASED, ("redelivered",), ("delivered", "redelivered"), KEPT, "L7"
    ),
    (READY, _E.BARRIER): _leaves("acknowledged", "O3"),
    (READY, _E.ACKNOWLEDGE): _leaves("acknowledged", "L8"),
    (LEASED, _E.ACKNOWLEDGE): _leaves("acknowledged", "L1"),
    (DELAYED, _E.ACKNOWLEDGE): _leaves("acknowledged", "L8"),
    (LEASED, _E.RENEW): Transition(LEASED, ("renewed",), (), KEPT, "L10"),
    (LEASED, _E.LEASE_END): Transition(READY, ("lease_ended",), ("lease_ended",), KEPT, "L4"),
    (LEASED, _E.LEASE_END_LAST): _dies("lease_ended", "L5"),
    (LEASED, _E.RETURN): Transition(READY, ("returned",), ("returned",), KEPT, "L1"),
    (LEASED, _E.RETURN_LAST): _dies("returned", "L5"),
    (LEASED, _E.HAND_BACK): Transition(READY, ("returned",), ("returned",), KEPT, "L5"),
    (LEASED, _E.CANCEL): Transition(READY, ("canceled",), ("canceled",), KEPT, "L6"),
    (LEASED, _E.CANCEL_LATER): Transition(DELAYED, ("canceled",), ("canceled",), KEPT, "L11"),
    (LEASED, _E.CANCEL_LAST): _dies("canceled", "L6"),
    (LEASED, _E.REJECT): _leaves("consumer_rejected", "C7", DEAD),
    (DELAYED, _E.DUE): Transition(READY, ("ready",), (), KEPT, "L11"),
    (READY, _E.EXPIRE): _leaves("expired", "X1", DEAD),
    (LEASED, _E.EXPIRE): _leaves("expired", "X3", DEAD),
    (DELAYED, _E.EXPIRE): _leaves("expired", "X1", DEAD),
    (READY, _E.OVERSIZE): _leaves("expired", "X5", DEAD),
    (LEASED, _E.OVERSIZE): _leaves("expired", "X5", DEAD),
    (DELAYED, _E.OVERSIZE): _leaves("expired", "X5", DEAD),
    (READY, _E.PURGE): _leaves("purged", "R6"),
    (LEASED, _E.PURGE): _leaves("purged", "R6"),
    (DELAYED, _E.PURGE): _leaves("purged", "R6"),
    (READY, _E.REPLACE): _leaves("replaced", "S10"),
    (LEASED, _E.REPLACE): _leaves("replaced", "S10"),
    (DELAYED, _E.REPLACE): _leaves("replaced", "S10"),
    (READY, _E.REDRIVE): _leaves("redriven", "X6"),
    (DELAYED, _E.REDRIVE): _leaves("redriven", "X6"),
    (READY, _E.MOVE): _leaves("moved", "R6"),
    (DELAYED, _E.MOVE): _leaves("moved", "R6"),
    (READY, _E.DELETE): _leaves("deleted", "S7"),
    (LEASED, _E.DELETE): _leaves("deleted", "S7"),
    (DELAYED, _E.DELETE): _leaves("deleted", "S7"),
    (READY, _E.LOSE): _leaves("lost", "S1"),
    (LEASED, _E.LOSE): _leaves("lost", "S1"),
    (READY, _E.GRANT): Transition(MOVING, ("granted",), (), KEPT, "H4"),
    (DELAYED, _E.GRANT): Transition(MOVING, ("granted",), (), KEPT, "M5"),  # its queue moves
    (MOVING, _E.TRANSFER): _leaves("transferred", "H4"),
    (MOVING, _E.ARRIVE): _leaves("acknowledged", "H1"),
    (MOVING, _E.REFUSE): Transition(READY, ("returned",), ("returned",), KEPT, "M3"),
    (MOVING, _E.REFUSE_LATER): Transition(DELAYED, ("returned",), ("returned",), KEPT, "H3"),
    (MOVING, _E.DELETE): _leaves("deleted", "S7"),
    (DELAYED, _E.LOSE): _leaves("lost", "S1"),
}

EFFECTS: dict[Event, Transition] = {}
SOURCES: dict[Event, frozenset[int]] = {}
for (_state, _event), _transition in TABLE.items():
    _first = EFFECTS.setdefault(_event, _transition)
    assert _first[:4] == _transition[:4], f"{_event}: {_first} and {_transition}"
    SOURCES[_event] = SOURCES.get(_event, frozenset()) | {_state}

ENDINGS = tuple(
    sorted({t.counts[-1] for t in EFFECTS.values() if t.to == GONE})
)  # counters of messages that left; together with the depth they add up to `spooled`
COUNTERS = (
    *dict.fromkeys(name for t in EFFECTS.values() for name in t.counts),
    "dead_lettered", "discarded", "ack_ignored", "retransmitted",
)  # fmt: skip
