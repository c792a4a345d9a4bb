"""A broker of the past: its pages, and replayed steps (R1, R3)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..mesh.mesh import Mesh
from ..protocol.errors import LakequeueError
from ..protocol.steplog import StepRecord
from ..protocol.wire import WireRecord
from ..replica.driver import Again, Clocks, Driver, Snapshot
from ..state import FORMAT, Broker, DictStore, Home, Limits
from ..state.queue.broker_facts import BrokerHeader
from ..state.queue.header import QueuePage

LIMITS = Limits()
_CODE = "tables"  # instead of a version, since only the digests matter
_encode = msgspec.msgpack.encode
_header = msgspec.msgpack.Decoder(BrokerHeader).decode
_queue = msgspec.msgpack.Decoder(QueuePage).decode
own_of = msgspec.msgpack.Decoder(Snapshot).decode
"""Decodes the loop's own snapshot, which belongs to the pages."""


class StepCapture:
    """Replaces the log and the outbox, and keeps the outputs of the last replayed step."""

    def __init__(self) -> None:
        self.records: list[WireRecord] = []

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """Keep the outputs."""
        self.records = list(records)

    def acked(self) -> int | None:
        """None: a reconstruction writes no outputs to Kafka."""
        return None

    def append(self, value: bytes) -> None:
        """Raise LakequeueError: only a step that failed is logged again, and its second record is
        not in the tables yet."""
        raise LakequeueError(
            "the last step in the tables failed, and its second attempt is not in the tables yet: "
            "try again in a minute"
        )

    def written(self, timeout_s: float) -> list[int]:
        """Never called: a replay writes no record."""
        raise AssertionError("the past is not written")


class QueueDepth(NamedTuple):
    """A queue and the number of its messages."""

    vpn: str
    queue: str
    messages: int
    is_stand_in: bool


# ---------------------------------------------------------------- steps


class PastDriver(Driver):
    """A broker that replays steps from the tables."""

    def __init__(
        self, home: Home, store: DictStore, own: Snapshot, capture: StepCapture, now: int
    ) -> None:
        clocks = Clocks(lambda: now, time.monotonic, time.thread_time)
        super().__init__(home, _CODE, store, own, capture, capture, clocks, LIMITS, Mesh.load)

    def again(self, records: list[StepRecord], inputs: Again) -> None:
        """Replay these steps. Raises Differs if one gives other outputs. ``acked=0``: compare the
        outputs of all steps, also those that Kafka had."""
        named = [(0, msgspec.structs.replace(record, code=_CODE, acked=0)) for record in records]
        self.replay(named, inputs)


# ---------------------------------------------------------------- pages


def home_of(name: str, broker_page: bytes, secret: bytes) -> Home:
    """The broker to which the pages belong. Raises LakequeueError for another state format."""
    known = msgspec.msgpack.decode(broker_page)
    if known["format"] != FORMAT:
        raise LakequeueError(
            f"the tables have a state of format {known['format']}, and this version reads "
            f"{FORMAT}: use the version that wrote it, or a moment after the first snapshot of "
            "this version"
        )
    return Home(name, known["number"], known["epoch"], secret)


def next_counter(store: DictStore) -> int:
    """The counter of the next message id."""
    return _header(store.pages["broker"]).spool.next_counter


def move_ahead(
    store: DictStore, step: int, counter: int, deliveries: int, now: int
) -> list[QueueDepth]:
    """Advance the next step, the next message id, and the delivery numbers of all queues (R3)."""
    header = _header(store.pages["broker"])
    header.step, header.rebuilt, header.spool.next_counter = step, now, counter
    store.put("broker", _encode(header))
    found = []
    for key in sorted(key for key in store.pages if key.startswith("q/")):
        page = _queue(store.pages[key])
        one = page.header
        one.next_delivery += deliveries
        store.put(key, _encode(page))
        if not one.deleted:
            about = one.definition.vpn, one.definition.name, one.depth, bool(one.stands_for)
            found.append(QueueDepth(*about))
    return found


def load(home: Home, store: DictStore) -> Broker:
    """The broker of these pages, for inspections."""
    broker = Broker.load(store, home, LIMITS)
    broker.mesh = Mesh.load(broker)
    return broker
