"""The engine in the process: the same `state` step, no Kafka, no Spark, a clock that one moves.

Records are encoded as for Kafka, so that codecs are used as they are in the job. Applications test
against this; every rule is tested here first.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

from ..client.transport import Headers, Record
from ..client.values import duration_ms
from ..definitions import DEFAULT_BROKER, Configuration
from ..definitions.as_commands import configure_commands
from ..protocol import commands, topics, wire
from ..protocol.journal import Journal
from ..protocol.messages import HEADER, Records
from ..protocol.outputs import Alert, Deadline
from ..state import Batch, DictStore, Home, Limits, check, step

log = logging.getLogger("lakequeue.memory")

TICKS_MAX = 100_000


class AttendedClient(Protocol):
    """Whose duties are done as time passes: due acks, reading of an inbox, callbacks."""

    @property
    def is_open(self) -> bool:
        """Whether it still has duties."""
        ...

    def due(self) -> int | None:
        """When it has one next, by the engine's clock; None: it has none."""
        ...

    def attend(self) -> None:
        """Do what is due."""
        ...


class MemoryEngine:
    """One engine; steps run in the caller's thread, one at a time."""

    def __init__(
        self, configuration: Configuration | None = None, limits: Limits | None = None
    ) -> None:
        self.store = DictStore()
        self.limits = limits or Limits()
        self.now = round(time.time() * 1000)
        self.checking = False
        self._lock = threading.RLock()
        self._deadline = 0
        self._offsets: dict[str, int] = {}
        self._inboxes: list[tuple[str, deque[Record]]] = []
        self._journal: list[dict[str, Any]] = []
        self._tags = 0
        self._sessions: dict[tuple[str, str], None] = {}
        self._clients: list[weakref.ref[AttendedClient]] = []
        self._beat_ms = 0
        self._broker = DEFAULT_BROKER
        if configuration is not None:
            self.configure(configuration)

    # ------------------------------------------------------------ definitions

    def configure(self, configuration: Configuration) -> None:
        """Define what a configuration says."""
        self._broker = configuration.brokers[0]
        self._beat_ms = configuration.system.heartbeat_timeout_ms
        for command in configure_commands(configuration):
            self.command(topics.topic(command[0], topics.COMMANDS), b"", command[1])

    def new_tag(self) -> str:
        """A number for a new connection."""
        self._tags += 1
        return str(self._tags)

    # ------------------------------------------------------------ input

    def publish(
        self, topic: str, value: bytes, key: bytes | None, headers: Headers,
        timestamp: int | None = None,
    ) -> None:  # fmt: skip
        """One record on a topic, taken in by a step of its own."""
        meta = next((v for k, v in headers if k == HEADER), None)
        own = wire.headers_json([(k, v) for k, v in headers if k != HEADER])
        self._run(publishes=self._records(topic, value, key, meta, own, timestamp))

    def command(self, topic: str, key: bytes, value: bytes) -> None:
        """One command, carried out by a step of its own."""
        self._run(commands_=self._records(topic, value, key, None, None, None))

    def _records(
        self, topic: str, value: bytes, key: bytes | None, meta: bytes | None,
        headers: str | None, timestamp: int | None,
    ) -> Records:  # fmt: skip
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        when = self.now if timestamp is None else timestamp
        return Records([topic], [0], [offset], [when], [key], [value], [meta], [headers])

    # ------------------------------------------------------------ steps

    def _run(self, publishes: Records | None = None, commands_: Records | None = None) -> None:
        with self._lock:
            self._step(Batch(commands=commands_ or Records(), publishes=publishes or Records()))
            ticks = 0
            while 0 < self._deadline <= self.now and ticks < TICKS_MAX:
                self._step(Batch())
                ticks += 1

    def _step(self, batch: Batch, checked: bool = True) -> None:
        outputs = step(self.store, batch, self.now, Home(self._broker), self.limits)
        for output in outputs:
            if isinstance(output, Deadline):
                self._deadline = output.at
            elif isinstance(output, Journal):
                self._journal += output.rows()
            elif isinstance(output, Alert):
                log.warning("%s", output.text())
        for i, record in enumerate(wire.encode(outputs)):
            for topic, inbox in self._inboxes:
                if topic == record.topic:
                    headers = wire.headers_list(record.headers)
                    inbox.append(
                        Record(topic, 0, i, self.now, record.key, record.value, headers)
                    )
        if self.checking and checked:
            check(self.store, self.now, self.limits)

    def advance(self, duration: str | float) -> None:
        """Move the clock, stopping at every deadline on the way, of the engine and of clients."""
        target = self.now + duration_ms(duration, "advance")
        while (stop := self._next_stop()) <= target:
            with self._lock:
                self.now = max(self.now, stop)
                self._heartbeats()
            for client in self._attending():
                client.attend()  # without the lock: it takes the client's own
            with self._lock:
                if 0 < self._deadline <= self.now:
                    self._step(Batch())
        with self._lock:
            self.now = target
            self._run()
        for client in self._attending():
            client.attend()

    def _next_stop(self) -> int:
        stops = [self._deadline] if self._deadline else []
        for client in self._attending():
            due = client.due()
            if due is not None and due > self.now:
                stops.append(due)
        return min(stops, default=1 << 62)

    def attend(self, client: AttendedClient) -> None:
        """Have a client's duties done as time passes, until it is closed or forgotten."""
        self._clients.append(weakref.ref(client))

    def _attending(self) -> list[AttendedClient]:
        clients = [(r, r()) for r in self._clients]
        self._clients = [r for r, client in clients if client is not None and client.is_open]
        return [client for _, client in clients if client is not None and client.is_open]

    def _heartbeats(self) -> None:
        """Living sessions send theirs, just before they would be missed."""
        records = Records()
        for vpn, session in self._sessions:
            value = commands.encode_command(commands.Heartbeat(session=session))
            one = self._records(topics.topic(vpn, topics.COMMANDS), value, None, None, None, None)
            for name in Records.__slots__:
                getattr(records, name).extend(getattr(one, name))
        if records:
            # heartbeats of the living are not late: they come in before time is looked at
            self._step(Batch(commands=records), checked=False)

    def live(self, vpn: str, session: str) -> None:
        """A session that sends heartbeats by itself."""
        self._sessions[vpn, session] = None

    def silence(self, vpn: str, session: str) -> None:
        """The session sends no heartbeat any more."""
        self._sessions.pop((vpn, session), None)

    # ------------------------------------------------------------ looking inside, for tests

    def restart(self) -> None:
        """Write the state to bytes and load it again: a restart of the process."""
        with self._lock:
            self.store = DictStore.load(self.store.dump())

    def dump(self) -> bytes:
        """The state as bytes."""
        return self.store.dump()

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        check(self.store, self.now, self.limits)

    def journal(self) -> list[dict[str, Any]]:
        """Every event so far."""
        return list(self._journal)

    def open_inbox(self, topic: str) -> deque[Record]:
        """Records written to a topic from now on."""
        inbox: deque[Record] = deque()
        self._inboxes.append((topic, inbox))
        return inbox

    def close_inbox(self, inbox: deque[Record]) -> None:
        """No records any more."""
        self._inboxes = [(t, i) for t, i in self._inboxes if i is not inbox]
