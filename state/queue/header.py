"""What a queue is besides its messages: facts only, packed with its page at a mark.

What can be derived stands in `queue`, and is made again when the queue is read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...definitions import QueueDefinition
from ..storage.row import NEVER

Digest = bytes  # `QueueHeader.bytes` hides the name


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
    client: str = ""  # who has proven to be (`auth: required`)
    # Of its flow (`transport_acks`): one that wants no transport acks leaves these as they are.
    transport_acks: bool = False
    sent: int = 0  # number of the last message sent
    base: int = 1  # numbers below are confirmed, or were sent again under others
    unconfirmed: list[list[int]] = []  # per step [last number, sent at, first, last place]
    patience: int = 2_000  # ms that the oldest entry waits
    again: list[list[int]] = []  # [first, last place] of what is being sent again
    broker: int | None = (
        None  # the number of the broker whose it is; it is served behind all others
    )

    def again_at(self) -> int:
        """When what is not confirmed is sent again, epoch ms (C2)."""
        if self.again:
            return 0
        if not self.unconfirmed or not self.held:
            return NEVER
        return self.unconfirmed[0][1] + self.patience


class Task(msgspec.Struct):
    """A command on its way, as it stands between two steps (`multi_step_commands`). cursor: where
    it goes on; done: what it has done so far; result: its answer in the end; why: what the engine
    itself says in a command of its own."""

    vpn: str
    command: bytes
    cursor: str = ""
    done: dict[str, Any] = {}
    result: Any = None
    why: str = ""


class QueueHeader(msgspec.Struct):
    """Every field says what changes it."""

    number: int
    vpn_number: int
    definition: QueueDefinition  # by a definition (Q9)
    created: int
    pointed: int = 0  # when a definition changed its recovery point; 0: never (R2)
    given: Digest = b""  # the digest of the definition as it was given last (Q9)
    deleted: bool = False  # its messages are being removed; nobody finds it by its name
    faulted: str = ""  # what failed in it; it is left alone until it is defined again
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
    invalid: int = 0  # messages of a `json` queue that are no JSON
    refuses_plain: bool = False  # the newest of plain Kafka producers; an event has told that (S5)
    subscriptions: list[Subscription] = []
    topics: list[str] = []  # that it has subscribed to, sorted (Q2)
    served: int = 0  # number of the subscription served last (F2)
    generation: int = 0  # what enters is behind all barriers of lower ones (O3)
    generations: dict[int, int] = {}  # how many messages each has, while there are several
    barriers: dict[int, int] = {}  # generation → id of the barrier that ends it, oldest first
    taken: list[list[int]] = []  # ids that have entered, as ranges: the newest ones (L9)
    tasks: list[Task] = []  # commands that wait for their turn, the next one first
    again: bool = False  # a message may go out: a budget ended before that was known
    due_at: int = NEVER  # when the broker looks at it, unless something happens before
    usage_high: bool = False  # the alert of the spool's usage is set (S9)
    flows_high: list[str] = []  # subscriptions whose alert is set (B4)
    marks: list[list[int]] = []  # earlier levels, for their rates
    ingress: bool = True
    egress: bool = True
    # "topic/partition" → plain records before this offset are no longer to be taken: another broker
    # has read them for the queue (M4).
    floors: dict[str, int] = {}
    stands_for: str = ""  # the queue of another broker for which messages wait here (M2)
    arriving: bool = False  # it is on its way here from another broker; nobody finds it yet
    reads_plain: bool = False  # a record of a plain topic has come for it (M5)
