"""Several messages in a record: when they travel alone, and when together (Nagle's algorithm).

Most of what a record costs, in Kafka, in Spark and here, it costs whatever is in it. So messages
that follow each other closely and differ in nothing but their payload travel together, up to
`RUN_MAX` in a record (a *run*). A message that is alone does not wait for others: it goes at once.
While a record of this producer is on its way to Kafka the next ones gather, and go when none is any
more, or when the run is full. So nothing waits for longer than Kafka takes for a record, and who
sends much sends full runs. `send`, `flush` and `close` do not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..protocol.messages import HEADER, RUN_MAX, encode_run
from .headers import Template, header_of
from .session import Session

RUN_BYTES = 32_000


class InFlight:
    """How many records are on their way. It knows no session: Kafka's library may keep it.

    notify: called when none is any more and something waits for that.
    """

    __slots__ = ("_lock", "_notify", "count", "waiting")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._notify = notify
        self.count = 0
        self.waiting = False

    def begin(self) -> None:
        """A record is given to Kafka's library."""
        with self._lock:
            self.count += 1

    def end(self) -> None:
        """Kafka has it, or never will."""
        with self._lock:
            self.count -= 1
        # Whoever gathers sets `waiting` first and looks at `count` then: one of us sees the other.
        if not self.count and self.waiting:
            self._notify()


class Batcher:
    """Sends a producer's messages. Call all of it but `InFlight.end` under the producer's lock."""

    def __init__(self, session: Session, partition: int) -> None:
        self._session = session
        self._partition = partition
        self._on_way = InFlight(session.runner.gathering)
        self._run: list[bytes] = []
        self._first = self._bytes = 0
        self._template: Template = (b"", b"")

    def alone(
        self,
        seq: int,
        payload: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None,
        template: Template,
    ) -> None:
        """Send one message as a record of its own."""
        pairs = [(HEADER, header_of(template, seq)), *(headers or ())]
        self._publish(payload, key, pairs)

    def add(self, seq: int, payload: bytes, template: Template) -> None:
        """Send a message at once if nothing is on its way; else put it into the run, which goes
        before it where it is of another kind or has no room, and with it when it is full."""
        run = self._run
        if run and (template != self._template or self._bytes > RUN_BYTES - len(payload)):
            self.send()
            run = self._run
        if not run:
            self._first, self._template, self._bytes = seq, template, 0
        run.append(payload)
        self._bytes += len(payload)
        self._on_way.waiting = True
        if len(run) >= RUN_MAX or not self._on_way.count:
            self.send()

    def send(self) -> None:
        """Send the run as it is."""
        run, self._run = self._run, []
        self._on_way.waiting = False
        if not run:
            return
        if len(run) == 1:
            self.alone(self._first, run[0], None, None, self._template)
        else:
            header = header_of(self._template, self._first, len(run))
            self._publish(encode_run(run), None, [(HEADER, header)])

    def _publish(self, value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        self._on_way.begin()
        try:
            self._session.publish(value, key, headers, self._partition, self._on_way.end)
        except BaseException:
            self._on_way.end()
            raise
