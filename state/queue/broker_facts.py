"""What a broker knows besides its queues' rows: facts, as a mark writes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ...definitions import DEFAULT_BROKER, SystemLimits, VpnLimits
from ..storage.spool import SpoolState

FORMAT = 8

RecordPosition = tuple[str, int, int]  # topic, partition, offset
# Stands for a record that failed together with others. One that leaves out this one takes the
# others one by one, and then it shows which one it is.
ONE_OF_SEVERAL: RecordPosition = ("", 0, 0)
Name = tuple[str, str]  # VPN, and what is named in it


@dataclass(frozen=True, slots=True)
class Home:
    """Whose state this is. name, number: the broker's; number: the top 16 bits of its message ids;
    epoch: what tells this home's ids and commands from those of another on the same Kafka (0 where
    there is no other: in memory); secret: of the home, seals clients' keys."""

    name: str = DEFAULT_BROKER
    number: int = 0
    epoch: int = 0
    secret: bytes = field(default=b"", repr=False)


class KnownSession(msgspec.Struct):
    """One connection. until: when it is lost, unless a heartbeat comes; bound: its subscriptions,
    by queue number and id."""

    until: int
    bound: list[tuple[int, str]] = []


class HeldReceipt(msgspec.Struct, array_like=True):
    """A receipt that waits until the Delta tables have what it speaks of (`durable`)."""

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
    """The broker's own facts. format: version of the layout."""

    format: int
    name: str
    number: int
    epoch: int = 0
    step: int = 0
    time: int = 0
    next_queue: int = 1
    queues: list[int] = []  # numbers of those that have a page
    vpns: dict[str, int] = {}  # name → number
    vpn_limits: dict[str, VpnLimits] = {}
    refused: dict[str, dict[str, int]] = {}  # per VPN, by reason: on behalf of no queue
    begun: list[str] = []  # doors whose commands of this epoch have begun, see `intake`
    system: SystemLimits = msgspec.field(default_factory=SystemLimits)
    spool: SpoolState = msgspec.field(default_factory=SpoolState)
    waiting: dict[int, bool] = {}  # queues held back by `max_delivered_unacked`, in that order
    unserved: bool = False  # a budget ended before all of these were served
    more_to_do: bool = False  # the next step is due at once
    merging: list[int] = []  # queues whose cold part is being merged
    pending: dict[int, bool] = {}  # queues with commands that go on, the next first: in bulk?
    turn: int = 0  # the queue that delivery served last
    alerts: list[str] = []  # set now, of the broker and of VPNs (S9)
    marks: dict[str, list[list[int]]] = {}  # earlier levels of these, for their rates
    events: int = 0  # notable events so far
    auth: bool = False  # commands must be signed
    clients: dict[str, tuple[bytes, bool]] = {}  # "vpn/client" → sealed key, is it an admin's?
    heard: dict[str, dict[str, tuple[int, int, int]]] = {}  # "vpn/client" → session: `identity`
    rebuilt: int = 0  # when it was made again: what was published before may be confirmed (R3)
    # Receipts that wait for the Delta tables. tables: are they written? None: nobody has said so.
    tables: bool | None = None
    in_tables: dict[str, int] = {}  # "topic/partition" → the offset up to which they have it
    held: list[HeldReceipt] = []  # the first one first
    speaks_for: list[int] = []  # numbers of removed brokers whose partitions this one reads (M4)
