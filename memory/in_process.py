"""The engine inside this process: the same `state` step, without Kafka and Spark, with a clock to
move.

Records are encoded as for Kafka, so the same codecs are used. Applications test against this
engine, and every rule is tested here first.

An engine has one broker, or several under one clock (a mesh). Each has its own state and its own
share of commands and publishes, as on Kafka. Messages between brokers are delivered at once:
brokers step in the order of their numbers until none has anything left to do at this time. So the
home is at rest between two calls, and its brokers can change (M4).
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

import msgspec

from ..client.session.transport import Headers, Record
from ..client.values import duration_ms
from ..conf.client_keys import clients_command
from ..definitions import DEFAULT_BROKER, DEFAULT_VPN, Configuration
from ..definitions.configuration import configure_commands
from ..mesh.home_change import HomeChange
from ..mesh.rehome import Rehomed, Resting, rehome
from ..protocol import ConfigError, commands, topics, wire
from ..protocol.duties import do_every
from ..protocol.journal import Journal
from ..protocol.messages import HEADER, Records
from ..protocol.outputs import Alert, Output
from ..state import Batch, DictStore, Home, Limits
from .joined_homes import JoinedHomes
from .memory_broker import MemoryBroker

log = logging.getLogger("lakequeue.memory")

TICKS_MAX = 100_000


class AttendedClient(Protocol):
    """A client whose duties are done as time passes: due acks, reading an inbox, callbacks, and
    heartbeats of its sessions. See `Inline`."""

    sessions: dict[str, None]

    @property
    def vpn(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    def due(self) -> int | None: ...
    def attend(self) -> object: ...


class MemoryEngine:
    """One engine; steps run in the caller's thread, one at a time. BROKER: the class of its
    brokers, which tests of dying brokers replace."""

    BROKER = MemoryBroker

    def __init__(
        self, configuration: Configuration | None = None, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.now = round(time.time() * 1000)
        self.checking = False
        self.secret = secrets.token_bytes(32)
        self.brokers = [self._broker(DEFAULT_BROKER, 0)]  # by number
        self.removed: dict[int, str] = {}  # removed brokers; the first answers for them
        self._lock = threading.RLock()
        self.groups: dict[str, str] = {}
        self._offsets: dict[tuple[str, int], int] = {}
        self._inboxes: list[tuple[str, weakref.ref[deque[Record]]]] = []
        self._ends: dict[str, int] = {}  # next offset of each topic the engine writes
        self._journal: list[dict[str, Any]] = []
        self._directories: dict[str, dict[bytes, bytes]] = {}  # the newest record of each key
        self._tags = itertools.count(1)
        self._clients: list[weakref.ref[AttendedClient]] = []
        self.homes = JoinedHomes(self, lambda name: None)  # other engines in this process
        self._asks = False  # whether commands must be signed
        if configuration is not None:
            self.configure(configuration)

    # ------------------------------------------------------------ definitions

    def configure(self, configuration: Configuration) -> None:
        self._add_brokers(configuration)
        names = tuple(broker.home.name for broker in self.brokers)
        complete = msgspec.structs.replace(configuration, brokers=names, groups=self.groups)
        asks, self._asks = self._asks, configuration.auth
        if asks or configuration.auth:
            command = clients_command(configuration, self.secret)
            for broker in self.brokers:  # all of them, before one sends to another
                self.instruct(DEFAULT_VPN, command, broker.home.name)
        numbers = {broker.home.name: broker.home.number for broker in self.brokers}
        for broker in self.brokers:
            for vpn, command in configure_commands(complete, broker.home.name, numbers):
                self.instruct(vpn, command, broker.home.name)

    def instruct(self, vpn: str, command: bytes, broker: str | None = None) -> None:
        """Give a broker (by name; default the first) a command only the engine may give."""
        taker = self.broker(broker)
        topic = topics.topic(taker.home.name, topics.INSTRUCTIONS)
        with self._lock:
            records = self._records(topic, command, vpn.encode(), None, None, None, 0)
            self._step(taker, Batch(commands=records))
            self._run_to_rest()

    def _add_brokers(self, configuration: Configuration) -> None:
        """Add the brokers that a configuration names; existing ones stay."""
        names, groups = configuration.brokers, self.groups | configuration.groups
        if all(broker.is_new for broker in self.brokers):
            self.brokers = [self._broker(name, number) for number, name in enumerate(names)]
        elif names != (DEFAULT_BROKER,):
            brokers = {broker.home.name: broker.home.number for broker in self.brokers}
            known = {*brokers, *self.removed.values()}
            new = [name for name in names if name not in known]
            if new:
                numbers = {n: self.numbers + i for i, n in enumerate(new)}
                self.rehome(HomeChange(brokers | numbers, groups))
        self.groups = groups

    def _broker(self, name: str, number: int) -> MemoryBroker:
        return self.BROKER(Home(name, number, secret=self.secret), self.limits)

    def rehome(self, change: HomeChange) -> Rehomed:
        """Replace the home's brokers in one assignment; until then the home is unchanged. Raises
        LakequeueError."""
        brokers, groups = change.brokers, change.groups
        with self._lock:
            resting = [
                Resting(broker.home.name, broker.home.number, dict(broker.store.pages))
                for broker in self.brokers
            ]
            epoch = self.brokers[0].home.epoch
            found = rehome(resting, change, epoch, self.secret, self.limits)
            self.take_home([(one.name, one.number, one.pages) for one in found.brokers], groups)
            journals = [(one.name, one.journal) for one in found.brokers]
            for name, journal in (*found.last.items(), *journals):
                self._journal += Journal(name, 0, self.now, journal).rows()
            begin, peers = commands.Begin(epoch=epoch), commands.Peers(brokers, groups)
            for name in brokers:
                for command in (begin, peers):
                    self.instruct(DEFAULT_VPN, commands.encode_command(command), name)
        return found

    def take_home(
        self, brokers: list[tuple[str, int, dict[str, bytes]]], groups: dict[str, str]
    ) -> None:
        """The home has these brokers, with these pages, from now on."""
        taken = []
        for name, number, pages in brokers:
            broker = self._broker(name, number)
            broker.store = DictStore(pages)
            taken.append(broker)
        staying = {number for _, number, _ in brokers}
        gone = [b.home for b in self.brokers if b.home.number not in staying]
        self.brokers, self.groups = taken, groups
        self.removed |= {home.number: home.name for home in gone}

    def broker(self, name: str | None = None) -> MemoryBroker:
        """A broker by its name; by default the first. Raises ConfigError."""
        for broker in self.brokers:
            if name in (None, broker.home.name):
                return broker
        known = ", ".join(broker.home.name for broker in self.brokers)
        raise ConfigError(f"broker: {name!r} – allowed are the engine's brokers: {known}")

    @property
    def numbers(self) -> int:
        """The number of brokers that ever existed; each broker number is used once."""
        return len(self.brokers) + len(self.removed)

    def at(self, number: int) -> MemoryBroker:
        """The broker with this number; for a removed one, the broker that answers in its place."""
        return next((b for b in self.brokers if b.home.number == number), self.brokers[0])

    @property
    def store(self) -> DictStore:
        """The state of the first broker."""
        return self.brokers[0].store

    def new_tag(self) -> str:
        """A number for a new connection."""
        return str(next(self._tags))

    # ------------------------------------------------------------ input

    def publish(
        self, topic: str, value: bytes, key: bytes | None, headers: Headers,
        timestamp: int | None = None, partition: int = 0,
    ) -> None:  # fmt: skip
        """Take in one record in a step of its own: on a VPN's publish topic by the broker that
        reads the partition, on other topics by every broker, because any may capture it."""
        meta = next((v for k, v in headers if k == HEADER), None)
        own = wire.headers_json([(k, v) for k, v in headers if k != HEADER])
        with self._lock:
            records = self._records(topic, value, key, meta, own, timestamp, partition)
            takers = self.brokers
            if topics.kind(topic) == topics.PUBLISH:
                takers = [self.at(partition // topics.PUBLISH_PARTITIONS)]
            for taker in takers:
                self._step(taker, Batch(publishes=records))
            self._run_to_rest()
        self.homes.carry()

    def command(
        self, topic: str, key: bytes, value: bytes, broker: str | int | None = None
    ) -> None:
        """Carry out one command in a step of the broker with this name or number."""
        taker = self.at(broker) if isinstance(broker, int) else self.broker(broker)
        number = broker if isinstance(broker, int) else taker.home.number
        partition = topics.commands_partition(number)
        with self._lock:
            records = self._records(topic, value, key, None, None, None, partition)
            self._step(taker, Batch(commands=records))
            self._run_to_rest()
        self.homes.carry()

    def hear(self, broker: int, record: wire.WireRecord) -> None:
        """Give a record from another home to the broker with this number."""
        with self._lock:
            self.at(broker).tell(record)
            self._run_to_rest()

    def _records(
        self, topic: str, value: bytes, key: bytes | None, meta: bytes | None,
        headers: str | None, timestamp: int | None, partition: int,
    ) -> Records:  # fmt: skip
        offset = self._offsets.get((topic, partition), 0)
        self._offsets[topic, partition] = offset + 1
        when = self.now if timestamp is None else timestamp
        return Records([topic], [partition], [offset], [when], [key], [value], [meta], [headers])

    # ------------------------------------------------------------ steps

    def _run_to_rest(self) -> None:
        """Step until no broker has anything left to do at this time."""
        ticks = 0
        while self._tick() and ticks < TICKS_MAX:
            ticks += 1

    def _tick(self) -> bool:
        """One step of each broker that has something to do; returns False if none had."""
        busy = [broker for broker in self.brokers if broker.is_busy(self.now)]
        for broker in busy:
            self._step(broker, Batch())
        return bool(busy)

    def _step(self, broker: MemoryBroker, batch: Batch, checked: bool = True) -> None:
        self._carry(broker.step(batch, self.now))
        if self.checking and checked:
            broker.check()

    def _carry(self, outputs: list[Output]) -> None:
        """Deliver a step's output to its readers."""
        for output in outputs:
            if isinstance(output, Journal):
                self._journal += output.rows()
            elif isinstance(output, Alert):
                log.warning("%s", output.text())
        inboxes = [(topic, inbox) for topic, ref in self._inboxes if (inbox := ref()) is not None]
        if not any(topic.endswith(f".{topics.JOURNAL}") for topic, _ in inboxes):
            # no client reads it, and encoding it would be most of a step's cost
            outputs = [output for output in outputs if not isinstance(output, Journal)]
        speaking = {broker.mesh_topic: broker for broker in self.brokers}
        for record in wire.encode(outputs):
            offset = self._ends.get(record.topic, 0)
            self._ends[record.topic] = offset + 1
            if record.topic.endswith(f".{topics.DIRECTORY}") and record.key is not None:
                newest = self._directories.setdefault(record.topic, {})
                newest.pop(record.key, None)
                if record.value is not None:
                    newest[record.key] = record.value
                self.homes.take(record)
            elif record.topic.endswith(f".{topics.BRIDGE_OUT}"):
                self.homes.take(record)
            if record.topic in speaking:
                speaking[record.topic].tell(record)
            for topic, inbox in inboxes:
                if topic == record.topic:
                    headers = wire.headers_list(record.headers)
                    inbox.append(
                        Record(topic, 0, offset, self.now, record.key, record.value, headers)
                    )

    def advance(self, duration: str | float) -> None:
        """Move the clock, stopping at every deadline of the engine and of clients on the way."""
        target = self.now + duration_ms(duration, "advance")
        self._let_attend()  # do what is due before time moves
        while (stop := self._next_stop()) <= target:
            with self._lock:
                self.now = max(self.now, stop)
                self._heartbeats()
            self._let_attend()
            with self._lock:
                self._tick()
            self.homes.carry()
        with self._lock:
            self.now = target
            for broker in self.brokers:
                self._step(broker, Batch())
            self._run_to_rest()
        self.homes.carry()
        self._let_attend()

    def _let_attend(self) -> None:
        """Let clients do their duties, without the lock, because each takes its own."""
        do_every(client.attend for client in self._attending())

    def _next_stop(self) -> int:
        stops = [broker.deadline for broker in self.brokers if broker.deadline]
        if any(broker.is_busy(self.now) for broker in self.brokers):
            stops.append(self.now)
        for client in self._attending():
            due = client.due()
            if due is not None and due > self.now:
                stops.append(due)
        return min(stops, default=1 << 62)

    def attend(self, client: AttendedClient) -> None:
        """Have a client's duties done as time passes, until it is closed or dropped."""
        with self._lock:
            self._clients.append(weakref.ref(client))

    def _attending(self) -> list[AttendedClient]:
        with self._lock:
            clients = [(r, r()) for r in self._clients]
            self._clients = [r for r, client in clients if client is not None and client.is_open]
        return [client for _, client in clients if client is not None and client.is_open]

    def _heartbeats(self) -> None:
        """Send the heartbeats of living sessions just before they would be missed. The engine sends
        them itself, because it has no client keys."""
        alive = [(client.vpn, one) for client in self._attending() for one in list(client.sessions)]
        for broker in self.brokers:
            records = Records()
            topic = topics.topic(broker.home.name, topics.INSTRUCTIONS)
            for vpn, session in alive:  # brokers that do not know the session ignore it
                value = commands.encode_command(commands.Heartbeat(session=session))
                one = self._records(topic, value, vpn.encode(), None, None, None, 0)
                for name in Records.__struct_fields__:
                    getattr(records, name).extend(getattr(one, name))
            if records:
                # heartbeats of living sessions arrive before deadlines are checked
                self._step(broker, Batch(commands=records), checked=False)

    # ------------------------------------------------------------ looking inside, for tests

    def restart(self) -> None:
        """Encode the state and load it again, as after a restart of the process."""
        with self._lock:
            for broker in self.brokers:
                broker.store = DictStore.load(broker.store.dump())

    def dump(self) -> bytes:
        """The state as bytes."""
        return b"".join(broker.store.dump() for broker in self.brokers)

    def check(self) -> None:
        """Raise AssertionError if an invariant is violated."""
        for broker in self.brokers:
            broker.check()

    def journal(self) -> list[dict[str, Any]]:
        """Every event so far."""
        return list(self._journal)

    def directory(self, topic: str) -> dict[bytes, bytes]:
        """The directory's records of queues and brokers."""
        brokers = {
            f"broker/{broker.home.name}".encode(): json.dumps(
                {
                    "number": broker.home.number, "epoch": broker.home.epoch,
                    "group": self.groups.get(broker.home.name, ""),
                    "state": "failed" if broker.is_stopped else "running",
                }
            ).encode()
            for broker in self.brokers
        }  # fmt: skip
        return {**brokers, **self._directories.get(topic, {})}

    def tell_directory(self, topic: str, key: bytes, value: bytes) -> None:
        """Write the newest record of a key in a compacted topic."""
        self._directories.setdefault(topic, {})[key] = value

    def open_inbox(self, topic: str) -> deque[Record]:
        """Collect records written to a topic from now on, as long as somebody has the inbox."""
        inbox: deque[Record] = deque()
        with self._lock:
            there = [(name, ref) for name, ref in self._inboxes if ref() is not None]
            self._inboxes = [*there, (topic, weakref.ref(inbox))]
        return inbox
