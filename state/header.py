"""What a step needs of a queue before it looks at any message: its header, one page.

Every field says what changes it. What grows with the depth of the queue is not here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..definitions import QueueDefinition
from .storage import NEVER, IdRangesTop


class Subscription(msgspec.Struct):
    """One consumer's flow bound to the queue. What stands above `max_backlog` never changes."""

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
    priority: int = 0  # who is asked first under `fast` (F1)
    ending: str = ""  # why it ends; it gets nothing more, what it holds is being returned
    # Of its flow (`transport_acks`): who does not want transport acks leaves these as they are.
    client: str = ""  # who has proven to be (`auth: required`)
    transport_acks: bool = False
    sent: int = 0  # number of the last message sent
    base: int = 1  # numbers below are confirmed, or were sent again under others
    unconfirmed: list[list[int]] = []  # per step [last number, sent at, first, last place]
    patience: int = 2_000  # ms that the oldest entry waits
    again: list[list[int]] = []  # [first, last place] of what is being sent again

    def again_at(self) -> int:
        """When what is not confirmed is sent again, epoch ms (C2)."""
        if self.again:
            return 0
        if not self.unconfirmed or not self.held:
            return NEVER
        return self.unconfirmed[0][1] + self.patience


class FilterState(msgspec.Struct):
    """What a filter has looked at (`filters`): every ready key below the cursor but the unseen;
    those of them that match stand in an index of its own."""

    number: int  # names its pages
    cursor: list[int]
    ready: list[list[int]] = []  # the top of its index
    next_ready: int = 0
    unseen: list[list[int]] = []  # the top of the index of what it has not looked at
    next_unseen: int = 0


class RoomWanted(msgspec.Struct, array_like=True):
    """What another broker wants of this queue, and what it got (H4)."""

    limit: int = 0  # so many messages may be given to it, from the beginning
    given: int = 0
    confirmed: int = 0  # of these; the others are on their way
    filters: list[str | None] = []  # of its consumers with room; None lets everything through


class Asked(msgspec.Struct, array_like=True):
    """What this queue has asked of another broker's, and what it got (H4)."""

    got: int = 0  # messages that came, from the beginning
    limit: int = 0  # so many were asked for, from the beginning
    filters: list[str | None] = []


class ForeignBarrier(msgspec.Struct, array_like=True):
    """The first barrier that waits at another broker (O3); its payload has a page."""

    number: int  # the barrier's id; 0: it is yet to be told
    generation: int  # of which it is the last
    priority: int
    time: int
    expires: int
    said: list[Any] | None = None  # what was said last of being drained
    full: bool = False  # there is no room for what is left here


class Holding(msgspec.Struct, array_like=True):
    """The first barrier here, of which other brokers know."""

    number: int
    drained: dict[int, list[Any]] = {}  # what they say: [got, given, receivers] by broker
    to: int = -1  # the broker that has it by now, where it was given away


class PassedOn(msgspec.Struct, array_like=True):
    """A barrier that went from one broker to another, until both have said so (`barrier_moves`)."""

    generation: int = -1  # behind it all is held back; -1: its new owner has told of it
    by: int = -1  # whose it was, where it is here and the other hosts are to be told; -1: it is not


class QueueHeader(msgspec.Struct):
    """What changes in almost every step, and what is needed in every step, of one queue."""

    number: int
    vpn_number: int
    definition: QueueDefinition  # by a definition (Q9)
    created: int
    pointed: int = 0  # when a definition changed its recovery point; 0: never (R2)
    deleted: bool = False  # its messages are being removed; nobody finds it by its name
    faulted: str = ""  # what failed in it; it is left alone until it is defined again
    next_seq: int = 0
    next_subscription: int = 1
    next_delivery: int = 1
    depth: int = 0  # these four: by transitions only
    leased: int = 0
    delayed: int = 0
    bytes: int = 0
    moving: int = 0  # these too: on their way to other brokers
    kept: int = 0  # messages that will enter if other brokers take them too, and their bytes (S5)
    kept_bytes: int = 0
    wanted: dict[int, RoomWanted] = {}  # by brokers that have room, the one that asked first first
    asked: dict[int, Asked] = {}  # of brokers
    held: dict[int, ForeignBarrier] = {}  # the first barrier of other brokers, by these
    holding: Holding | None = None  # its own first barrier, when others have been told of it
    unreleased: dict[int, int] = {}  # its last barrier that went out, by hosts yet to hear of it
    passed_on: dict[int, PassedOn] = {}  # barriers that change their owner, by number
    last_counts: dict[int, list[dict[int, int]]] = {}  # [got, given] of hosts that were removed
    leaving: list[int] = []  # the broker to which it moves, and the keeper's ticket (`moving`)
    arriving: bool = False  # it moves here, and is not here yet
    without: list[int] = []  # brokers that hosted it, and do no longer, as the directory says
    shares: list[list[int]] = []  # its hosts, at first and after each change (`partitions`)
    next_hosts: list[int] = []  # those that stay, while one of them is being removed
    left: dict[int, list[list[list[int]]]] = {}  # by place in `shares`: the claims of who went
    plain: bool = False  # it has taken records of plain Kafka producers
    refuses_plain: bool = False  # it refused the newest of these; an event has told of that (S5)
    unread: list[int] = []  # first and next page of records put aside, bytes of the last (`unread`)
    base: int = -1  # the broker where it was made, -1: this one (`bridges.trails`)
    resumes: bool = False  # an earlier base took some plain records (`bridges.resuming`)
    pushed: int = 0  # what entered before this place has been sent to its initial owner
    counters: dict[str, int] = {}
    rejected: dict[str, int] = {}  # nacked, by reason (S4)
    discarded: dict[str, int] = {}  # on entry, by reason (S4)
    invalid: int = 0  # messages of a `json` queue that are no JSON
    subscriptions: list[Subscription] = []
    served: int = 0  # number of the subscription served last (F2)
    ordered: bool = False  # some message has a priority or a generation
    ordered_from: int = 0  # none before this place has: there the order is by place
    generation: int = 0  # what enters is behind all barriers of lower ones (O3), here or elsewhere
    told: int = 0  # the generation of which the other hosts know
    barriers: list[list[int]] = []  # the top of the index of barriers that wait (O3)
    next_barrier_page: int = 0
    early: IdRangesTop = msgspec.field(default_factory=IdRangesTop)  # of early acks (L9)
    deferred: list[list[int]] = []  # early acks as older states have them: `Queue` takes them over
    filters: dict[str, FilterState] = {}  # by their text (F5)
    next_filter: int = 0
    again: bool = False  # delivery stopped at its budget
    directory: list[int] = []  # the top of the page directory
    ready: list[list[int]] = []  # the top of the ready index
    next_ready: int = 0
    aside: list[list[int]] = []  # the top of the index of what is not in the ready index
    next_aside: int = 0
    keyed: bool = False  # some message has a lane (O4)
    lanes: list[list[int]] = []  # the top of the index of lanes
    next_lane_page: int = 0
    usage_high: bool = False  # the alert of the spool's usage is set (S9)
    flows_high: list[str] = []  # subscriptions whose alert is set (B4)
    marks: list[list[int]] = []  # earlier levels, for their rates
    ingress: bool = True
    egress: bool = True
