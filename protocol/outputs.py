"""Outputs: what a step of the engine says. Data, not actions; sinks write them down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from .home_bridges import HomeAnswer, HomeSend
from .journal import Journal
from .mesh_envelope import MeshMessage


class Deliveries(msgspec.Struct):
    """Messages for one subscription, in order, in columns of one length.

    lease_ms: what is left of the lease as it is sent, 0 when it has no end: clients count from when
    they receive it, and never compare clocks; expires: epoch ms, 0 for never; numbers: what names
    a delivery, unique in the queue as long as the home lasts (L5); dead: what a dead message
    carries (X5), by position. flow: (base, number of the first message) for a client that sends
    transport acks; again: sent before under the same numbers (C2).
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
    """To one producer: everything up to ``up_to`` is settled, ``nacks`` are the refused ones.

    runs: ``[first_seq, count, first_id]`` of messages stored; an id of 0 says that the message was
    acknowledged without being stored (discarded, or stored longer ago than is remembered).
    nacks: ``(seq, reason, queue, detail)``; discarded: ``(seq, reason, queue)`` of messages that
    are acknowledged, but that a queue threw away (S4). broker: the number of who says it.
    repeated: ``[first_seq, last_seq]`` of what is answered once more (P1). start: of the producer,
    which alone is told; base: it counts from behind this sequence.
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
    """The answer to a command; ``error`` is a sentence, ``result`` JSON-able; ``more``: where the
    next part of a long result begins, None where this is all; epoch: of the home that answers,
    whose messages the result is about."""

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
    """A record that could not be understood, for ``<vpn>.rejected``."""

    vpn: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    error: str


class Deadline(msgspec.Struct):
    """When the broker wants its next tick, epoch ms; 0 for never."""

    at: int


class InVain(msgspec.Struct):
    """So many commands of a partition changed nothing: refused, or nothing was there to settle."""

    topic: str
    partition: int
    count: int


class Capture(msgspec.Struct):
    """A queue captures this topic, or this regular expression, from now on (Q2)."""

    topic: str


ALERTS = frozenset({"spool_usage", "spool_files", "delivered_unacked"})  # S9, B4


def is_alert(event: str) -> bool:
    """Whether an event says that an alert was set (``<what>_high``) or cleared."""
    what, _, end = event.rpartition("_")
    return what in ALERTS and end in ("high", "cleared")


@dataclass(slots=True)
class Alert:
    """An alert was set (``<what>_high``) or cleared (``<what>_cleared``) (S9, B4); for logs.

    time: epoch ms; details: scope, level, limit, percent, and what the event's table names.
    """

    event: str
    vpn: str
    queue: str
    time: int
    details: dict[str, Any]

    def text(self) -> str:
        """One sentence."""
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
    """What a broker says to another (`mesh`): to ``<to>.mesh``. sender, name: the broker's own;
    number: of this record between these two, from 1."""

    to: str
    sender: int
    name: str
    epoch: int
    number: int
    body: MeshMessage


@dataclass(slots=True)
class DirectoryEntry:
    """Where a queue is now: to the compacted ``<vpn>.directory``, under ``queue/<name>``. hosts: of
    its brokers, by name, the numbers; without any it is gone. epoch, edition: of the home,
    and the number of this word in it: what is said again after a death tells nobody anything."""

    vpn: str
    queue: str
    hosts: dict[str, int]
    type: str = ""
    state: str = ""
    epoch: int = 0
    edition: int = 0


@dataclass(slots=True)
class HomeRecord:
    """What an end of a bridge says to another home (`home_bridges`). partition: None where the
    topic has one."""

    topic: str
    partition: int | None
    key: bytes
    said: HomeSend | HomeAnswer


@dataclass(slots=True)
class BridgeEntry:
    """A bridge between homes is at this broker: to the compacted ``<vpn>.directory``, under
    ``bridge/<name>``, for the engine that copies. definition: None where it is gone."""

    vpn: str
    bridge: str
    broker: int
    epoch: int
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
