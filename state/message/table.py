"""The life of a message in a queue, as one literal table. It is what runs, and what the docs show.

A message is *ready*, *leased*, *delayed*, *moving* to another broker, or gone; a row of a queue
that holds no message is *gone* too, so a message begins there. `TABLE` says for each state and
event what the state becomes, what the journal and the counters say, and what becomes of the
message's match in the spool. What is not in the table cannot happen: `change.apply` refuses it, and
it is the only writer of states.

Everything else follows from the two states of a transition, not from the event: who leaves *ready*
leaves the ready index, who enters it enters the index at its old place (L7), who leaves *leased* is
no longer held, who becomes *gone* frees its row and its bytes.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

GONE, READY, LEASED, DELAYED, MOVING = 0, 1, 2, 3, 4
NAMES = {GONE: "gone", READY: "ready", LEASED: "leased", DELAYED: "delayed", MOVING: "moving"}

KEPT, RELEASED, DEAD = "kept", "released", "dead"


class Event(enum.Enum):
    """What can happen to a message; the value is how it reads in the docs."""

    __hash__ = object.__hash__  # they are keys of tables on every way; enum's is Python's, slow

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
    HOLD = "held back by a bridge's far end"
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
    GRANT = "granted to another broker"
    TRANSFER = "the other broker has it"
    REFUSE = "the other broker refused it"
    REFUSE_LATER = "the other broker refused it, due later"


class Transition(NamedTuple):
    """What an event does. journal: what is written for each message; counts: what is counted;
    match: what becomes of the message's match in the spool; rule: who says so."""

    to: int
    journal: tuple[str, ...]
    counts: tuple[str, ...]
    match: str
    rule: str


_E = Event
# "spooled" is journaled by who knows where the message came from (`admission`, `dead`, `redrive`).
TABLE: dict[tuple[int, Event], Transition] = {
    (GONE, _E.ENTER): Transition(READY, (), ("spooled",), KEPT, "S1"),
    (GONE, _E.ENTER_LATER): Transition(DELAYED, (), ("spooled",), KEPT, "L12"),
    (READY, _E.DELIVER): Transition(LEASED, ("delivered",), ("delivered",), KEPT, "L3"),
    (READY, _E.REDELIVER): Transition(
        LEASED, ("redelivered",), ("delivered", "redelivered"), KEPT, "L7"
    ),
    (READY, _E.BARRIER): Transition(GONE, ("acknowledged",), ("acknowledged",), RELEASED, "O3"),
    (READY, _E.ACKNOWLEDGE): Transition(GONE, ("acknowledged",), ("acknowledged",), RELEASED, "L8"),
    (LEASED, _E.ACKNOWLEDGE): Transition(
        GONE, ("acknowledged",), ("acknowledged",), RELEASED, "L1"
    ),
    (DELAYED, _E.ACKNOWLEDGE): Transition(
        GONE, ("acknowledged",), ("acknowledged",), RELEASED, "L8"
    ),
    (LEASED, _E.RENEW): Transition(LEASED, ("renewed",), (), KEPT, "L10"),
    (LEASED, _E.LEASE_END): Transition(READY, ("lease_ended",), ("lease_ended",), KEPT, "L4"),
    (LEASED, _E.LEASE_END_LAST): Transition(
        GONE, ("lease_ended", "expired"), ("lease_ended", "expired"), DEAD, "L5"
    ),
    (LEASED, _E.RETURN): Transition(READY, ("returned",), ("returned",), KEPT, "L1"),
    (LEASED, _E.RETURN_LAST): Transition(
        GONE, ("returned", "expired"), ("returned", "expired"), DEAD, "L5"
    ),
    (LEASED, _E.HAND_BACK): Transition(READY, ("returned",), ("returned",), KEPT, "L5"),
    (LEASED, _E.HOLD): Transition(DELAYED, ("returned",), ("returned",), KEPT, "H2"),
    (LEASED, _E.CANCEL): Transition(READY, ("canceled",), ("canceled",), KEPT, "L6"),
    (LEASED, _E.CANCEL_LATER): Transition(DELAYED, ("canceled",), ("canceled",), KEPT, "L11"),
    (LEASED, _E.CANCEL_LAST): Transition(
        GONE, ("canceled", "expired"), ("canceled", "expired"), DEAD, "L6"
    ),
    (LEASED, _E.REJECT): Transition(
        GONE, ("consumer_rejected",), ("consumer_rejected",), DEAD, "C7"
    ),
    (DELAYED, _E.DUE): Transition(READY, ("ready",), (), KEPT, "L11"),
    (READY, _E.EXPIRE): Transition(GONE, ("expired",), ("expired",), DEAD, "X1"),
    (LEASED, _E.EXPIRE): Transition(GONE, ("expired",), ("expired",), DEAD, "X3"),
    (DELAYED, _E.EXPIRE): Transition(GONE, ("expired",), ("expired",), DEAD, "X1"),
    (READY, _E.OVERSIZE): Transition(GONE, ("expired",), ("expired",), DEAD, "X5"),
    (LEASED, _E.OVERSIZE): Transition(GONE, ("expired",), ("expired",), DEAD, "X5"),
    (DELAYED, _E.OVERSIZE): Transition(GONE, ("expired",), ("expired",), DEAD, "X5"),
    (READY, _E.PURGE): Transition(GONE, ("purged",), ("purged",), RELEASED, "R6"),
    (LEASED, _E.PURGE): Transition(GONE, ("purged",), ("purged",), RELEASED, "R6"),
    (DELAYED, _E.PURGE): Transition(GONE, ("purged",), ("purged",), RELEASED, "R6"),
    (READY, _E.REPLACE): Transition(GONE, ("replaced",), ("replaced",), RELEASED, "S10"),
    (LEASED, _E.REPLACE): Transition(GONE, ("replaced",), ("replaced",), RELEASED, "S10"),
    (DELAYED, _E.REPLACE): Transition(GONE, ("replaced",), ("replaced",), RELEASED, "S10"),
    (READY, _E.REDRIVE): Transition(GONE, ("redriven",), ("redriven",), RELEASED, "X6"),
    (DELAYED, _E.REDRIVE): Transition(GONE, ("redriven",), ("redriven",), RELEASED, "X6"),
    (MOVING, _E.REDRIVE): Transition(GONE, ("redriven",), ("redriven",), RELEASED, "X6"),
    (READY, _E.MOVE): Transition(GONE, ("moved",), ("moved",), RELEASED, "R6"),
    (DELAYED, _E.MOVE): Transition(GONE, ("moved",), ("moved",), RELEASED, "R6"),
    (READY, _E.DELETE): Transition(GONE, ("deleted",), ("deleted",), RELEASED, "S7"),
    (LEASED, _E.DELETE): Transition(GONE, ("deleted",), ("deleted",), RELEASED, "S7"),
    (DELAYED, _E.DELETE): Transition(GONE, ("deleted",), ("deleted",), RELEASED, "S7"),
    (READY, _E.GRANT): Transition(MOVING, ("granted",), (), KEPT, "H4"),
    (DELAYED, _E.GRANT): Transition(MOVING, ("granted",), (), KEPT, "H4"),
    (MOVING, _E.TRANSFER): Transition(GONE, ("transferred",), ("transferred",), RELEASED, "H4"),
    (MOVING, _E.REFUSE): Transition(READY, ("returned",), ("returned",), KEPT, "H4"),
    (MOVING, _E.REFUSE_LATER): Transition(DELAYED, ("returned",), ("returned",), KEPT, "H4"),
    (MOVING, _E.PURGE): Transition(GONE, ("purged",), ("purged",), RELEASED, "X5"),
    (MOVING, _E.DELETE): Transition(GONE, ("deleted",), ("deleted",), RELEASED, "S7"),
    (READY, _E.LOSE): Transition(GONE, ("lost",), ("lost",), RELEASED, "S1"),
    (LEASED, _E.LOSE): Transition(GONE, ("lost",), ("lost",), RELEASED, "S1"),
    (DELAYED, _E.LOSE): Transition(GONE, ("lost",), ("lost",), RELEASED, "S1"),
}

# An event does the same whatever the state before, else it would be two events.
EFFECTS: dict[Event, Transition] = {}
SOURCES: dict[Event, frozenset[int]] = {}
for (_state, _event), _transition in TABLE.items():
    _known = EFFECTS.setdefault(_event, _transition)
    assert _known[:4] == _transition[:4], f"{_event}: {_known} and {_transition}"
    SOURCES[_event] = SOURCES.get(_event, frozenset()) | {_state}

ENDINGS = tuple(
    sorted({t.counts[-1] for t in EFFECTS.values() if t.to == GONE})
)  # counters that say how a message left: with the depth they add up to `spooled`
COUNTERS = (
    *dict.fromkeys(name for t in EFFECTS.values() for name in t.counts),
    "dead_lettered", "discarded", "ack_ignored", "retransmitted",
)  # fmt: skip
