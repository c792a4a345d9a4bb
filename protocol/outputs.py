"""The outputs of a step. They are data, not actions; `sinks/` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from .home_bridges import CopierState, HomeAnswer, HomeSend
from .journal import Journal
from .mesh_messages import MeshMessage


class Deliveries(msgspec.Struct):
    """Messages for one subscription, in order, as columns of equal length.

    lease_ms: the rest of the lease at the time of sending, 0 for no end (clients count from receipt
    and never compare clocks); expires: epoch ms, 0 for never; numbers: one per delivery, unique in
    the queue for the life of the home (L5); dead: the data of dead messages (X5), by index; flow:
    (base, number of the first message) for clients that send transport acks; again: a repetition
    with the same numbers (C2).
    """

    queue: str
    subscription: str
    topic: str
    partition: int
    framing: str
    lease_ms: int
    epoch: int = 0
    barrier: bool = False
    ids: list[int] = []
    numbers: list[int] = []
    counts: list[int] = []
    priorities: list[int] = []
    expires: list[int] = []
    times: list[int] = []
    payloads: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[bytes | None] = []
    dead: dict[int, dict[str, Any]] = {}
    flow: tuple[int, int] | None = None
    again: bool = False


class Receipts(msgspec.Struct):
    """Receipts for one producer: everything up to ``up_to`` is answered; ``nacks`` are refused.

    runs: ``[first_seq, count, first_id]`` of stored messages; an id of 0 means acknowledged without
    being stored (discarded, or stored too long ago to be remembered). nacks: ``(seq, reason, queue,
    detail)``. discarded: ``(seq, reason, queue)`` of acknowledged messages that a queue discarded
    (S4). broker: the number of the answering broker. repeated: ``[first_seq, last_seq]`` of
    repeated answers (P1). start: of the producer; base: the number before its first sequence.
    """

    vpn: str
    producer: str
    up_to: int
    partition: int = 0
    runs: list[list[int]] = []
    nacks: list[tuple[int, str, str, str]] = []
    discarded: list[tuple[int, str, str]] = []
    broker: int = 0
    repeated: list[list[int]] = []
    start: str = ""
    base: int = 0


@dataclass(slots=True)
class Reply:
    """The answer to a command. error: a sentence; result: JSON-able; more: where the next part of a
    long result begins, None in the last part; epoch: of the answering home, which the message ids
    in the result belong to."""

    topic: str
    partition: int
    request: str
    result: Any = None
    error: str | None = None
    kind: str | None = None
    problems: list[tuple[str, str, Any, str]] | None = None
    more: int | str | None = None
    epoch: int = 0


@dataclass(slots=True)
class RejectedRecord:
    """A malformed record, for ``<vpn>.rejected``."""

    vpn: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: str


class Deadline(msgspec.Struct):
    """The time at which the broker needs its next step, epoch ms; 0 for never."""

    at: int


class InVain(msgspec.Struct):
    """The number of a partition's commands that changed nothing: they were refused, or had no
    message to settle."""

    topic: str
    partition: int
    count: int


class Capture(msgspec.Struct):
    """A queue has begun to capture this topic or regular expression (Q2)."""

    topic: str


ALERTS = frozenset({"spool_usage", "spool_files", "delivered_unacked"})  # S9, B4


def is_alert(event: str) -> bool:
    """Whether an event is an alert that was set (``<what>_high``) or cleared."""
    what, _, end = event.rpartition("_")
    return what in ALERTS and end in ("high", "cleared")


@dataclass(slots=True)
class Alert:
    """An alert was set (``<what>_high``) or cleared (``<what>_cleared``) (S9, B4); for logs.

    time: epoch ms; details: scope, level, limit, percent, and the fields that the table of events
    lists.
    """

    event: str
    vpn: str
    queue: str
    time: int
    details: dict[str, Any]

    def text(self) -> str:
        """The alert as one sentence."""
        d = self.details
        where = f"queue {self.queue!r} of VPN {self.vpn!r}" if self.queue else d["scope"]
        if d["scope"] == "vpn":
            where = f"VPN {self.vpn!r}"
        if "consumer" in d:
            where = f"consumer {d['consumer']!r} of {where}"
        left = d.get("time_to_react_s")
        soon = "" if left is None else f", full in {left / 60:.2f} min at the current rate"
        return f"{self.event}: {where} at {d['percent']} % of {d['limit']}{soon}"


@dataclass(slots=True)
class MeshRecord:
    """A message to another broker (`mesh`), for ``<to>.mesh``. sender, name: the sending broker's;
    number: of this record between the two, from 1; confirms: as in `Envelope`."""

    to: str
    sender: int
    name: str
    epoch: int
    number: int
    body: MeshMessage
    confirms: int = 0


@dataclass(slots=True)
class DirectoryEntry:
    """A queue's entry in the compacted topic ``<vpn>.directory``, key ``queue/<name>``. hosts: the
    numbers of its brokers by name, empty if it was deleted; epoch: of the home; edition: the number
    of this change, so that readers ignore repetitions."""

    vpn: str
    queue: str
    hosts: dict[str, int]
    type: str = ""
    state: str = ""
    epoch: int = 0
    edition: int = 0


@dataclass(slots=True)
class HomeRecord:
    """A message to another home over a bridge (`home_bridges`). partition: None if the topic has
    only one."""

    topic: str
    partition: int | None
    key: bytes
    message: HomeSend | HomeAnswer | CopierState


@dataclass(slots=True)
class BridgeEntry:
    """A bridge between homes that begins or ends at this broker, for the compacted topic
    ``<vpn>.directory``, key ``bridge-end/<broker>/<name>``; the engine that copies for the bridge
    reads it. broker, number: this broker's; at: when the broker wrote this, see
    `home_bridges.BridgeEnds`; definition: None if there is no such bridge."""

    vpn: str
    bridge: str
    broker: str
    number: int
    epoch: int
    at: tuple[int, int]
    definition: dict[str, Any] | None


Output = (
    Deliveries
    | Receipts
    | Reply
    | RejectedRecord
    | Deadline
    | InVain
    | Capture
    | Alert
    | Journal
    | MeshRecord
    | DirectoryEntry
    | HomeRecord
    | BridgeEntry
)
