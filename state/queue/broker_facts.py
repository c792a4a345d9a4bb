"""A broker's facts besides its queues, as a mark writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ...definitions import DEFAULT_BROKER, SystemLimits, VpnLimits
from ..storage.spool import SpoolState

FORMAT = 8

RecordPosition = tuple[str, int, int]  # topic, partition, offset
# A record that failed together with others. A step that skips this "record" takes messages one by
# one, which shows the one that fails.
ONE_OF_SEVERAL: RecordPosition = ("", 0, 0)
Name = tuple[str, str]  # VPN, and a name in it


@dataclass(frozen=True, slots=True)
class Home:
    """The home and the broker that a state belongs to. name, number: the broker's; the number is
    the top 16 bits of its message ids; epoch: distinguishes this home's ids and commands from those
    of other homes on the same Kafka (0 in memory); secret: seals clients' keys."""

    name: str = DEFAULT_BROKER
    number: int = 0
    epoch: int = 0
    secret: bytes = field(default=b"", repr=False)


class KnownSession(msgspec.Struct):
    """One connection. until: when it counts as lost, unless a heartbeat comes; bound: its
    subscriptions, by queue number and id."""

    until: int
    bound: list[tuple[int, str]] = []


class HeldReceipt(msgspec.Struct, array_like=True):
    """A receipt that waits until the Delta tables have its messages (`durable`)."""

    vpn: str
    producer: str
    up_to: int
    partition: int
    runs: list[list[int]]
    discarded: list[tuple[int, str, str]]
    broker: int
    repeated: list[list[int]]
    start: str
    base: int
    needs: dict[str, int]


class BrokerHeader(msgspec.Struct):
    """The broker's own facts. format: the version of the layout."""

    format: int
    name: str
    number: int
    epoch: int = 0
    step: int = 0
    time: int = 0
    next_queue: int = 1
    queues: list[int] = []  # numbers of the queues that have a page
    vpns: dict[str, int] = {}  # name → number
    vpn_limits: dict[str, VpnLimits] = {}
    refused: dict[str, dict[str, int]] = {}  # per VPN and reason: refusals that concern no queue
    begun: list[str] = []  # origins whose commands of this epoch have begun, see `intake`
    system: SystemLimits = msgspec.field(default_factory=SystemLimits)
    spool: SpoolState = msgspec.field(default_factory=SpoolState)
    waiting: dict[int, bool] = {}  # queues held back by `max_delivered_unacked`, in order
    unserved: bool = False  # a budget ended before all of them were served
    more_to_do: bool = False  # the next step is due at once
    merging: list[int] = []  # queues whose cold part is being merged
    # Queues with unfinished commands, the next one first; the value: is that one a bulk command?
    pending: dict[int, bool] = {}
    turn: int = 0  # the queue that delivery served last
    alerts: list[str] = []  # set alerts of the broker and of VPNs (S9)
    marks: dict[str, list[list[int]]] = {}  # their earlier levels, to compute growth rates
    events: int = 0  # notable events so far
    auth: bool = False  # commands must be signed
    clients: dict[str, tuple[bytes, bool]] = {}  # "vpn/client" → sealed key, is it an admin's?
    heard: dict[str, dict[str, tuple[int, int, int]]] = {}  # "vpn/client" → session: `permissions`
    rebuilt: int = 0  # when it was rebuilt: earlier messages may be confirmed already (R3)
    # Receipts that wait for the Delta tables. tables: are they written? None: the engine has not
    # said.
    tables: bool | None = None
    in_tables: dict[str, int] = {}  # "topic/partition" → the tables have the records before this
    held: list[HeldReceipt] = []  # the oldest first
    # Topics that queues name and Kafka has, sorted. None: the engine has not said.
    captured: list[str] | None = None
    joins_homes: bool = True  # bridges to other homes are served, see `Begin`
    speaks_for: list[int] = []  # numbers of removed brokers whose partitions this one reads (M4)
