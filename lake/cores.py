"""Both cores as the past sees them: pages, steps that are taken again, questions (R1, R3, R6).

The pages of a home say by their format which core wrote them, and so do the records of its steps.
What is asked of a core here is the same for both, so whoever goes back in time does not know which
one it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from .. import core as live
from ..core.commands import answers as live_answers
from ..core.commands import dispatch as live_dispatch
from ..core.queue.broker_facts import BrokerHeader as LiveHeader
from ..core.queue.queue import QueuePage
from ..core.storage import blocks as live_blocks
from ..mesh.met_brokers import neighbours
from ..protocol.errors import LakequeueError
from ..protocol.steplog import Range, StepRecord
from ..protocol.wire import WireRecord
from ..replica import driver as live_driver
from ..state import FORMAT, Batch, DictStore, Home, Limits
from ..state import broker as paged
from ..state.commands import answers, dispatch
from ..state.header import QueueHeader
from ..streaming import driver
from ..streaming.carried_over import carry_over, snapshot_of

Own = driver.Snapshot | live_driver.Snapshot  # what the loop of a broker knew
LIVE_LIMITS = live.Limits()
_CODE = "tables"  # which code took a step is told, and does not matter: its digests do
_encode = msgspec.msgpack.encode


class Ear:
    """The log and the outbox of steps that only whoever asks for them hears."""

    def __init__(self) -> None:
        self.records: list[WireRecord] = []

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        self.records = list(records)

    def acked(self) -> int | None:
        return None

    def append(self, value: bytes) -> None:
        raise LakequeueError(
            "the last step that the tables have failed, and they do not have yet what it left out: "
            "ask again in a minute"
        )

    def written(self, timeout_s: float) -> list[int]:
        raise AssertionError("the past is not written")


class LoggedInputs(Protocol):
    """What steps took."""

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """The same records once more."""


class Steps(Protocol):
    """A broker that takes steps again."""

    @property
    def step(self) -> int:
        """The last one that it took."""

    def again(self, records: list[StepRecord], inputs: LoggedInputs) -> None:
        """Take these steps. Raises Refused where one comes out differently."""

    def end(self) -> Own:
        """Write all pages; what goes with them."""


class Depth(NamedTuple):
    """A queue and how many messages it has."""

    vpn: str
    queue: str
    messages: int


class Core(Protocol):
    """One of the cores. store: the pages of a broker."""

    format: int

    def own(self, value: bytes | None) -> Own:
        """What goes with pages, as it was saved; None: with none."""

    def open(self, home: Home, store: DictStore, own: Own, ear: Ear, now: int) -> Steps:
        """The broker, to take steps again."""

    def digests(self, own: Own) -> tuple[int, int]:
        """What the last step wrote and said, as the next one's record names it."""

    def has(self, home: Home, store: DictStore, vpn: str, queue: str) -> bool:
        """Whether the broker has a queue."""

    def answer(
        self, home: Home, store: DictStore, now: int, vpn: str, command: Any
    ) -> tuple[Any, int | str | None]:
        """Carry out a question: the result, and where the next part begins."""

    def block_of(self, contents: list[bytes]) -> bytes:
        """The page of a block with these contents, none of which compaction moved there."""

    def next_counter(self, store: DictStore) -> int:
        """The counter of the next message id."""

    def move_ahead(
        self, store: DictStore, step: int, counter: int, deliveries: int, now: int
    ) -> list[Depth]:
        """Go on with this step and this id, and with deliveries so much later (R3); all queues."""


# ---------------------------------------------------------------- pages and columns


class _StepsAgain:
    """A driver of either core that takes steps again. inputs: what it asks for their records."""

    def __init__(self, driver: Any, inputs: Callable[[LoggedInputs], Any]) -> None:
        self._driver, self._inputs = driver, inputs

    @property
    def step(self) -> int:
        return int(self._driver.step)

    def again(self, records: list[StepRecord], inputs: LoggedInputs) -> None:
        self._driver.replay(_named(records), self._inputs(inputs))

    def end(self) -> Own:
        own: Own = self._driver.snapshot(1)
        return own


def _carry_out(tables: Any, broker: Any, vpn: str, command: Any) -> tuple[Any, int | str | None]:
    """Answer a question by a core's tables of commands."""
    if carry_out := tables.OF_BROKER.get(type(command)):
        result = carry_out(broker, vpn, command)
    else:
        queue = broker.find(vpn, command.queue)
        result = tables.OF_QUEUE[type(command)](broker, vpn, queue, command)
    if isinstance(result, answers.PartialAnswer | live_answers.PartialAnswer):
        return result.result, result.more
    return result, None


class PagedCore:
    """`state/`, which loads and writes pages in each step."""

    format = FORMAT
    _own = msgspec.msgpack.Decoder(driver.Snapshot)
    _header = msgspec.msgpack.Decoder(paged.BrokerHeader)
    _queue = msgspec.msgpack.Decoder(QueueHeader)

    def own(self, value: bytes | None) -> Own:
        return driver.Snapshot() if value is None else self._own.decode(value)

    def open(self, home: Home, store: DictStore, own: Own, ear: Ear, now: int) -> Steps:
        assert isinstance(own, driver.Snapshot)
        paged_driver = driver.Driver(home, _CODE, store, own, ear, ear, lambda: now)
        return _StepsAgain(paged_driver, lambda inputs: inputs)

    def digests(self, own: Own) -> tuple[int, int]:
        assert isinstance(own, driver.Snapshot)
        return own.pages, own.outputs

    def has(self, home: Home, store: DictStore, vpn: str, queue: str) -> bool:
        return _load(home, store, 0).find(vpn, queue) is not None

    def answer(
        self, home: Home, store: DictStore, now: int, vpn: str, command: Any
    ) -> tuple[Any, int | str | None]:
        return _carry_out(dispatch, _load(home, store, now), vpn, command)

    def block_of(self, contents: list[bytes]) -> bytes:
        return b"".join(contents)

    def next_counter(self, store: DictStore) -> int:
        return self._header.decode(store.pages["broker"]).spool.next_counter

    def move_ahead(
        self, store: DictStore, step: int, counter: int, deliveries: int, now: int
    ) -> list[Depth]:
        """See `Core`."""
        header = self._header.decode(store.pages["broker"])
        header.entries_said += step - header.step
        header.step, header.rebuilt, header.spool.next_counter = step, now, counter
        store.put("broker", _encode(header))
        found = []
        for key, page in _queues(store):
            queue = self._queue.decode(page)
            queue.next_delivery += deliveries
            store.put(key, _encode(queue))
            if not queue.deleted:
                found.append(Depth(queue.definition.vpn, queue.definition.name, queue.depth))
        return found


def _load(home: Home, store: DictStore, now: int) -> paged.Broker:
    return paged.Broker.load(store, home, now, Limits(), first=False)


# ---------------------------------------------------------------- live objects


class _LiveInputs:
    def __init__(self, inputs: LoggedInputs) -> None:
        self._inputs = inputs

    def take(self, ranges: tuple[Range, ...]) -> live.Batch:
        found = self._inputs.take(ranges)
        return live.Batch(found.commands, found.publishes, found.mesh)


class LiveCore:
    """`core/`, which writes pages at marks."""

    format = live.FORMAT
    _own = msgspec.msgpack.Decoder(live_driver.Snapshot)
    _header = msgspec.msgpack.Decoder(LiveHeader)
    _queue = msgspec.msgpack.Decoder(QueuePage)

    def own(self, value: bytes | None) -> Own:
        return live_driver.Snapshot() if value is None else self._own.decode(value)

    def open(self, home: Home, store: DictStore, own: Own, ear: Ear, now: int) -> Steps:
        assert isinstance(own, live_driver.Snapshot)
        clocks = live_driver.Clocks(lambda: now, time.monotonic, time.thread_time)
        of_home = _live_home(home)
        return _StepsAgain(
            live_driver.Driver(
                of_home, _CODE, store, own, ear, ear, clocks, LIVE_LIMITS, neighbours
            ),
            _LiveInputs,
        )

    def digests(self, own: Own) -> tuple[int, int]:
        return 0, own.outputs

    def has(self, home: Home, store: DictStore, vpn: str, queue: str) -> bool:
        return self._load(home, store).find(vpn, queue) is not None

    def answer(
        self, home: Home, store: DictStore, now: int, vpn: str, command: Any
    ) -> tuple[Any, int | str | None]:
        broker = self._load(home, store)
        broker.begin(now)
        assert broker.beyond is not None
        if (own := broker.beyond.commands.get(type(command))) is not None:
            return own(vpn, command), None
        return _carry_out(live_dispatch, broker, vpn, command)

    @staticmethod
    def _load(home: Home, store: DictStore) -> live.Broker:
        broker = live.Broker.load(store, _live_home(home), LIVE_LIMITS)
        broker.beyond = neighbours(broker)
        return broker

    def block_of(self, contents: list[bytes]) -> bytes:
        return live_blocks.written(contents, {})

    def next_counter(self, store: DictStore) -> int:
        return self._header.decode(store.pages["broker"]).spool.next_counter

    def move_ahead(
        self, store: DictStore, step: int, counter: int, deliveries: int, now: int
    ) -> list[Depth]:
        """See `Core`."""
        header = self._header.decode(store.pages["broker"])
        header.step, header.rebuilt, header.spool.next_counter = step, now, counter
        store.put("broker", _encode(header))
        found = []
        for key, page in _queues(store):
            queue = self._queue.decode(page)
            queue.header.next_delivery += deliveries
            store.put(key, _encode(queue))
            definition, one = queue.header.definition, queue.header
            if not one.deleted:
                found.append(Depth(definition.vpn, definition.name, one.depth))
        return found


def _live_home(home: Home) -> live.Home:
    return live.Home(home.name, home.number, home.epoch, home.secret)


# ---------------------------------------------------------------- which of them

PAGED: Core = PagedCore()
LIVE: Core = LiveCore()


def core_of(number: int) -> Core:
    """The core of a format of pages, as they and records of steps name it; 0: the first record of a
    home that has no pages yet, of the earlier core. Raises LakequeueError."""
    for core in (PAGED, LIVE):
        if number == core.format:
            return core
    if not number:
        return PAGED
    raise LakequeueError(
        f"the tables hold a state of format {number}, and this version reads {PAGED.format} and "
        f"{LIVE.format}: use the version that wrote it"
    )


def taken_over(home: Home, store: DictStore, own: Own) -> tuple[DictStore, Own]:
    """Pages of the earlier core, and what goes with them, as the live core went on with them."""
    assert isinstance(own, driver.Snapshot)
    found = carry_over(store, list(store.pages), home, LIVE_LIMITS, Limits())
    return DictStore(found.pages), snapshot_of(own)


def _queues(store: DictStore) -> list[tuple[str, bytes]]:
    return [(key, page) for key, page in sorted(store.pages.items()) if key.startswith("q/")]


def _named(records: list[StepRecord]) -> list[tuple[int, StepRecord]]:
    """As the log has them, of the code that takes them again."""
    return [(0, msgspec.structs.replace(record, code=_CODE)) for record in records]
