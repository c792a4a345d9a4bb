"""A broker during one step: what all the ideas in this room work on.

A broker holds message VPNs, their queues, sessions, producers and one spool. Everything is loaded
when it is first touched and written back once at the end of the step.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from ..definitions import SystemLimits, VpnLimits
from ..protocol.journal import Journal, Segment
from ..protocol.outputs import Output
from .calendar import Calendar
from .queue import Queue, QueueHeader
from .spool import Spool, SpoolHeader
from .store import Notes, Store

FORMAT = 3
EVENTS_MAX = 1000
BUCKETS = 64


class BrokerHeader(msgspec.Struct):
    """What every step needs. format: version of the state's layout."""

    format: int
    name: str
    number: int
    epoch: int = 0  # of the home; 0 on memory
    step: int = 0
    time: int = 0
    next_queue: int = 1
    vpns: dict[str, int] = {}  # name → number
    vpn_limits: dict[str, VpnLimits] = {}
    regex_vpns: list[str] = []  # VPNs with at least one regular expression
    topics: dict[str, list[int]] = {}  # per VPN: topic subscriptions by kind
    system: SystemLimits = msgspec.field(default_factory=SystemLimits)
    spool: SpoolHeader = msgspec.field(default_factory=SpoolHeader)
    earliest: dict[int, int] = {}
    unacked: int = 0  # leased over all queues (B4)
    waiting: dict[int, bool] = {}  # queues held back by `max_delivered_unacked`, in that order
    alerts: list[str] = []  # set now, of the broker and of VPNs (S9)
    marks: dict[str, list[list[int]]] = {}  # earlier levels of these, for their rates


_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(BrokerHeader)


def bucket(name: str) -> int:
    """The bucket of a name in paged maps."""
    return crc32(name.encode()) % BUCKETS


class Broker:
    """One broker, one step."""

    def __init__(self, store: Store, header: BrokerHeader, now: int) -> None:
        self.store = store
        self.header = header
        self.now = now
        self.notes = Notes(store)
        self.spool = Spool(store, self.notes, header.spool, header.number)
        self.calendar = Calendar(self.notes, header.earliest)
        self.outputs: list[Output] = []
        self.journal = Journal(header.name, header.step, now)
        self._queues: dict[int, Queue | None] = {}
        self.unacked_total = header.unacked  # as of the last `count_unacked`, kept by dispatch
        self.reconfigured = False
        self._vpn_names = {number: name for name, number in header.vpns.items()}

    @classmethod
    def load(cls, store: Store, name: str, number: int, now: int) -> Broker:
        """The broker at the start of its next step; time never runs backwards."""
        data = store.get("broker")
        header = _decoder.decode(data) if data else BrokerHeader(FORMAT, name, number)
        header.step += 1
        header.time = max(header.time, now)
        return cls(store, header, header.time)

    # ------------------------------------------------------------ queues

    def vpn_number(self, vpn: str) -> int:
        """The VPN's number, given at first use."""
        number = self.header.vpns.get(vpn)
        if number is None:
            number = self.header.vpns[vpn] = len(self.header.vpns) + 1
            self._vpn_names[number] = vpn
        return number

    def vpn_name(self, number: int) -> str:
        """The VPN's name."""
        return self._vpn_names[number]

    def vpn_of(self, queue: Queue) -> str:
        """The VPN of a queue."""
        return self._vpn_names[queue.header.vpn_number]

    def queue_number(self, vpn: str, name: str) -> int | None:
        """The number of a queue by its name."""
        note = self.notes.read(f"n/{vpn}/{bucket(name)}")
        return note.get(name) if note else None

    def queue(self, number: int) -> Queue | None:
        """A queue by its number."""
        if number not in self._queues:
            self._queues[number] = Queue.load(self.store, number)
        queue = self._queues[number]
        return None if queue is None or queue.deleted else queue

    def find(self, vpn: str, name: str) -> Queue | None:
        """A queue by its name."""
        number = self.queue_number(vpn, name)
        return None if number is None else self.queue(number)

    def add_queue(self, header: QueueHeader) -> Queue:
        """A queue that did not exist."""
        queue = Queue(self.store, header)
        self._queues[header.number] = queue
        return queue

    def queue_names(self, vpn: str) -> list[str]:
        """The names of all queues of a VPN, sorted; reads every bucket."""
        names: list[str] = []
        for number in range(BUCKETS):
            names += self.notes.read(f"n/{vpn}/{number}") or ()
        return sorted(names)

    def touched(self) -> list[Queue]:
        """The queues that this step loaded."""
        return [
            q for _, q in sorted(self._queues.items()) if q is not None and not q.deleted
        ]

    def loaded(self) -> list[Queue]:
        """As `touched`, and those that this step deleted."""
        return [q for _, q in sorted(self._queues.items()) if q is not None]

    def count_unacked(self) -> int:
        """Messages that are leased now, over all queues (B4)."""
        changed = sum(
            (0 if q.deleted else q.header.leased) - q.leased_before
            for q in self._queues.values() if q is not None
        )  # fmt: skip
        self.unacked_total = self.header.unacked + changed
        return self.unacked_total

    # ------------------------------------------------------------ saying

    def say(self, output: Output) -> None:
        """Add an output."""
        self.outputs.append(output)

    def record(self, event: str, queue: Queue, ids: list[int], **more: Any) -> None:
        """Add to the journal what happened to messages of a queue."""
        if ids:
            self.journal.segments.append(
                Segment(event, self.vpn_of(queue), queue.definition.name, ids, **more)
            )

    def note(self, event: str, vpn: str, queue: str = "", **details: Any) -> None:
        """A notable event: into the journal and the ring that `admin.events()` shows."""
        text = ", ".join(f"{k}={v}" for k, v in details.items())
        self.journal.segments.append(Segment(event, vpn, queue, reason=text))
        ring = self.notes.read("e") or []
        ring = [*ring, [event, vpn, queue, self.now, details]][-EVENTS_MAX:]
        self.notes.write("e", ring)

    # ------------------------------------------------------------ end

    def flush(self) -> None:
        """Write everything that changed."""
        self.header.unacked = self.count_unacked()
        for queue in self.touched():
            self.calendar.set(f"q{queue.number}", queue.deadline())
            queue.flush()
        self.spool.flush()
        self.notes.flush()
        self.store.put("broker", _encode(self.header))
