"""A queue's facts besides its messages, and its page, with which a mark writes them.

Only facts: what can be derived is in `queue`, which computes it again after a load.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Any

import msgspec

from ...definitions import QueueDefinition
from ...protocol.ids import within
from ..storage.ranges import Ranges, insert
from ..storage.row import NEVER, Row
from ..storage.segments import RunsState
from .ready import ViewState

Digest = bytes  # `QueueHeader.bytes` hides the name


class Subscription(msgspec.Struct):
    """One consumer's flow, bound to the queue. The fields above `max_backlog` never change."""

    id: str
    number: int  # within the queue; the order of subscribing
    name: str
    session: str
    topic: str
    partition: int
    framing: str
    removes_on_send: bool
    filter: str | None
    max_backlog: int | None  # its own; changed by set_backlog (B3)
    held: int = 0  # leased to it now
    priority: int = 0  # under `fast` the highest is served first (F1)
    ending: str = ""  # why it ends: it gets no more messages, and its leases are being returned
    client: str = ""  # that signed the command (`auth: required`)
    # Its flow (`transport_acks`); unused without transport acks.
    transport_acks: bool = False
    sent: int = 0  # number of the last message sent
    base: int = 1  # numbers below are confirmed, or were sent again under new numbers
    unconfirmed: list[list[int]] = []  # per step [last number, sent at, first, last place]
    patience: int = 2_000  # ms that the oldest entry waits
    again: list[list[int]] = []  # [first, last place] of what is being sent again
    # The number of the broker that it belongs to. Consumers here are served before it.
    broker: int | None = None

    def again_at(self) -> int:
        """When to send unconfirmed messages again, epoch ms (C2)."""
        if self.again:
            return 0
        if not self.unconfirmed or not self.held:
            return NEVER
        return self.unconfirmed[0][1] + self.patience


class Task(msgspec.Struct):
    """An unfinished command between two steps (`multi_step_commands`). cursor: where it goes on;
    done: what it has done so far; result: its final answer; why: the reason, for a command that
    the engine itself gives; waits: for another broker, whose answer resumes it."""

    vpn: str
    command: bytes
    cursor: str = ""
    done: dict[str, Any] = {}
    result: Any = None
    why: str = ""
    waits: bool = False

    def add(self, name: str, n: int) -> int:
        """Add to a count of what the command has done; returns the sum."""
        total: int = self.done.get(name, 0) + n
        self.done[name] = total
        return total


class QueueHeader(msgspec.Struct):
    """The facts. A comment on a field says what changes it."""

    number: int
    vpn_number: int
    definition: QueueDefinition  # by a definition (Q9)
    created: int
    pointed: int = 0  # when a definition changed its recovery point; 0: never (R2)
    given: Digest = b""  # the digest of the definition as it was given last (Q9)
    deleted: bool = False  # its messages are being removed; its name is free
    faulted: str = ""  # what failed in it; nothing happens in it until it is defined again
    next_seq: int = 0
    next_subscription: int = 1
    next_delivery: int = 1
    next_filter: int = 1
    depth: int = 0  # these four: by transitions only
    leased: int = 0
    delayed: int = 0
    bytes: int = 0
    counters: dict[str, int] = {}
    rejected: dict[str, int] = {}  # nacked, by reason (S4)
    discarded: dict[str, int] = {}  # on entry, by reason (S4)
    invalid: int = 0  # messages that are not JSON, in a `json` queue
    refuses_plain: bool = False  # it refused the last plain record; an event was written (S5)
    subscriptions: list[Subscription] = []
    topics: list[str] = []  # its topic subscriptions, sorted (Q2)
    served: int = 0  # number of the subscription served last (F2)
    generation: int = 0  # of new messages; they come after the barriers of all lower ones (O3)
    generations: dict[int, int] = {}  # how many messages each has, while there are several
    barriers: dict[int, int] = {}  # generation → id of the barrier that ends it, oldest first
    taken: Ranges = []  # the newest ids that entered, as ascending ranges (L9)
    tasks: list[Task] = []  # commands waiting for their turn, the next one first
    again: bool = False  # `Queue.wanted` as of the last step: the next one must go on with it
    due_at: int = NEVER  # when the broker looks at it, unless something happens before
    usage_high: bool = False  # its spool usage alert is set (S9)
    flows_high: list[str] = []  # subscriptions with an alert (B4)
    marks: list[list[int]] = []  # earlier levels, to compute growth rates
    ingress: bool = True
    egress: bool = True
    # "topic/partition" → the queue does not take plain records before this offset: another broker
    # has read them for it (M4).
    floors: dict[str, int] = {}
    stands_for: str = ""  # in a stand-in: the queue at another broker (M2)
    arriving: bool = False  # it is moving here from another broker; its name is not found yet
    reads_plain: bool = False  # it has taken a record of a plain topic (M5)


class QueuePage(msgspec.Struct):
    """A queue's page: everything but its cold rows."""

    header: QueueHeader
    cold: RunsState
    later: RunsState
    early: list[list[int]]
    rows: list[Row]
    views: list[ViewState] = []
    parked: list[tuple[int, str, int]] = []  # lane, key (more than 64 bits), segment


class QueueFacts(msgspec.Struct):
    """The part of the page that is read when a broker is loaded."""

    header: QueueHeader


# ---------------------------------------------------------------- entered ids


ENTERED_MAX = 1_000  # ranges of ids that are remembered
_first, _last = itemgetter(0), itemgetter(1)


def note_entered(taken: Ranges, first: int, last: int) -> None:
    """Remember that the ids from first to last have entered."""
    if taken and taken[-1][1] == first - 1:
        taken[-1][1] = last
        return
    for number in range(first, last + 1):
        insert(taken, number)
    del taken[:-ENTERED_MAX]


def has_entered(taken: Ranges, number: int) -> bool:
    """Whether an id has ever been in the queue; True for ids too old to be remembered. An ack for
    such an id is late, any other may be early (L9)."""
    forgotten = len(taken) >= ENTERED_MAX and number < taken[0][0]
    return forgotten or within(number, taken)


def entered_between(taken: Ranges, low: int, high: int, least: int) -> Ranges:
    """The ids between low and high for which `has_entered` is true, as ranges. Below ``least`` only
    those that are remembered."""
    found = taken[bisect_left(taken, low, key=_last) : bisect_right(taken, high, key=_first)]
    forgotten = len(taken) >= ENTERED_MAX and taken[0][0] > least
    return [[least, taken[0][0] - 1], *found] if forgotten else found
