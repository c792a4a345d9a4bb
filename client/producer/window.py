"""Several messages in a record: when they travel alone, and when together (Nagle's algorithm).

Most of what a record costs, in Kafka, in Spark and here, it costs whatever is in it. So messages
that follow each other closely and differ in nothing but their payload travel together, up to
`RUN_MAX` in a record (a *run*). A message that is alone does not wait for others: it goes at once.
While a record of this producer is on its way to Kafka the next ones gather, and go when none is any
more, or when the run is full. So nothing waits for longer than Kafka takes for a record, and who
sends much sends full runs. `send`, `flush` and `close` do not wait.

What a producer has sent and has no answer to: the window (P1–P3, P5, P6).

Every persistent message has a sequence number; the engine answers by sequence. A message without
an answer after `pub_ack_time` is sent again under the same number, and stored once.

Who sends with a future hears there that a message was refused. In mode `persistent_groupack` `send`
gives none: what is refused then is kept, `flush` raises it, and `unacknowledged` lists it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ...protocol import NotConnected, Reason, Rejected
from ...protocol.messages import HEADER, RUN_MAX, encode_run
from ..session.session import Session
from .options import Template, header_of
from .receipts import Pending, settle

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


RETRANSMIT_MAX_S = 60.0
# Of a message, None where it has its answer already, whether nobody has its future; and the nack.
Moved = Callable[[Pending | None, bool, dict[str, Any]], None]


class Window:
    """A producer's messages in flight, under the producer's lock. window: how many refused messages
    are kept for `flush` at most; report: tells what had to be forgotten."""

    def __init__(
        self,
        lock: threading.RLock,
        sends: Batcher,
        pub_ack_s: float,
        window: int,
        report: Callable[[str], None],
    ) -> None:
        self._lock = lock
        self._sends = sends
        self._pub_ack_s = self._patience_s = pub_ack_s
        self._window = window
        self._report = report
        self._waiting: dict[int, Pending] = {}
        self._untold: set[int] = set()  # nobody has these messages' futures
        self._refused: dict[int, tuple[bytes, Rejected]] = {}
        self._raised: set[int] = set()  # of the refused: `flush` has told of them
        self._asked = time.monotonic()  # the last receipt, or the last retransmission
        self._answered = 0  # the highest sequence that was answered
        self.base = 0  # the producer counts from behind this sequence, as the engine has said

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sent: Pending) -> None:
        """This one is on its way."""
        self._waiting[sent.seq] = sent

    def remove(self, sent: Pending) -> None:
        """It was not sent after all."""
        self._waiting.pop(sent.seq, None)

    def keep_for_flush(self, sent: Pending) -> bool:
        """Nobody will look at this message's future: if it is refused, `flush` has to say so. False
        if it has its answer already."""
        with self._lock:
            waits = self._waiting.get(sent.seq) is sent
            if waits:
                self._untold.add(sent.seq)
            return waits

    def raise_refused(self) -> None:
        """Raise Rejected for what was refused and nobody was told of; once."""
        with self._lock:
            for seq in self._raised:
                self._refused.pop(seq, None)
            self._raised = set(self._refused)
            first = next(iter(self._refused.values()), None)
            count = len(self._refused)
        if first is not None:
            error = first[1]
            more = f"; {count - 1} more were refused" if count > 1 else ""
            raise Rejected(error.reason, error.queue, (error.detail + more).removeprefix("; "))

    def payloads(self) -> list[bytes]:
        """What is not known to be stored, in order of sending (P6)."""
        with self._lock:
            found = {seq: sent.record[0] for seq, sent in self._waiting.items()}
            found |= {seq: payload for seq, (payload, _) in self._refused.items()}
        return [payload for _, payload in sorted(found.items())]

    def give_up(self) -> None:
        """Nobody will answer any more: whoever waits for a future is told. What became of these
        messages is unknown, and `payloads` still lists them."""
        with self._lock:
            waiting = list(self._waiting.values())
        for sent in waiting:
            settle(sent, 0, NotConnected("closed before the engine answered"))

    def on_receipt(self, value: dict[str, Any], moved: Moved) -> None:
        """An answer of the engine: resolve futures. moved: hears, under the lock, of what was sent
        to a broker that no longer has the queue."""
        settled: list[tuple[Pending, int, Rejected | None]] = []
        with self._lock:
            self._asked, self._patience_s = time.monotonic(), self._pub_ack_s
            waiting = self._waiting
            self.base = base = value.get("base", 0)
            for dropped in value.get("discarded", ()):
                sent = waiting.get(dropped["seq"] - base)
                if sent is not None:
                    sent.discarded = dropped["reason"], dropped["queue"] or None
            for first, last in value.get("repeated", ()):
                for seq, sent in waiting.items():
                    sent.duplicate |= first <= seq + base <= last
            for known, count, start in value["runs"]:
                first = known - base
                self._answered = max(self._answered, first + count - 1)
                number = int(start)
                for seq in range(first, first + count) if waiting else ():
                    sent = waiting.pop(seq, None)
                    if sent is not None:
                        settled.append((sent, number + seq - first if number else 0, None))
            for nack in value["nacks"]:
                seq = nack["seq"] - base
                sent = waiting.pop(seq, None)
                if nack["reason"] == Reason.MOVED:
                    moved(sent, seq in self._untold, {**nack, "seq": seq})
                    self._untold.discard(seq)
                elif sent is not None:
                    error = Rejected(nack["reason"], nack["queue"] or None, nack["detail"])
                    self._keep_refused(sent, error)
                    settled.append((sent, 0, error))
            if self._untold:
                self._untold.difference_update(sent.seq for sent, _, _ in settled)
        for sent, number, refused in settled:
            sent.record = None  # an application may keep its futures
            sent.seq += base
            settle(sent, number, refused)

    def waits_for(self, queue: str) -> bool:
        """Whether a message for this queue is without an answer."""
        return any(sent.to == queue for sent in self._waiting.values())

    def _keep_refused(self, sent: Pending, error: Rejected) -> None:
        if sent.seq not in self._untold:
            return
        self._refused[sent.seq] = sent.record[0], error
        if len(self._refused) > self._window:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            self._report(f"message {oldest} was refused, and nobody has asked: {error}")

    def retransmit(self, now_s: float) -> None:
        """Send again what has waited longer than `pub_ack_time` (P2).

        The engine takes a producer's messages in order, so one that is unanswered while a later one
        is answered was lost, or its receipt was: all such are sent again. In silence only the
        oldest is, as a question, and each time after a longer wait: an engine that works its way
        through much is not held up by more of the same. Its answer tells of all that followed.
        """
        if not self._waiting or now_s - self._asked < self._patience_s:
            return
        with self._lock:
            late = [
                sent for seq, sent in self._waiting.items()
                if seq < self._answered and now_s - sent.at > self._pub_ack_s
            ]  # fmt: skip
            oldest = next(iter(self._waiting.values()), None)
            if not late and oldest is not None and now_s - oldest.at > self._pub_ack_s:
                late = [oldest]
                self._patience_s = min(self._patience_s * 2, RETRANSMIT_MAX_S)
            for sent in late:
                if sent.seq not in self._waiting:  # in memory an answer comes while one sends
                    continue
                sent.at = self._asked = now_s
                self._sends.alone(sent.seq, *sent.record)
