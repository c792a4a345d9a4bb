"""A producer's messages on their way: batching (Nagle's algorithm), and the window of unanswered
ones.

`Batcher`. Most of a record's cost, in Kafka, in Spark and here, does not depend on its content. So
messages that follow each other closely and differ only in payload travel together, up to `RUN_MAX`
in a record (a *run*). A message alone is sent at once. While a record is on its way to Kafka, the
next messages gather; they are sent when it has arrived or the run is full. So no message waits
longer than Kafka takes for a record. `send`, `flush` and `close` do not wait.

`Window`. Every persistent message has a sequence number, and the engine answers by number. A
message without an answer after `pub_ack_time` is sent again under the same number, and stored once
(P1–P3, P5, P6). A broker counts a producer's messages, so there is a window per broker, and a
message is sent again to the broker that it was first sent to. A refusal is reported by the
message's future. In mode `persistent_groupack`, where `send` returns no future, refused messages
are kept: `flush` raises, and `unacknowledged` lists them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from typing import Any

from ...protocol import NotConnected, Rejected
from ...protocol.messages import HEADER, RUN_MAX, encode_run
from ..session.session import Session
from .options import Template, header_of
from .receipts import Pending, tell

RUN_BYTES = 32_000


class InFlight:
    """The records on their way, each by an object of its own: after Ctrl-C a count would be wrong.
    It does not know the session, because Kafka's library may keep it.

    notify: called when none is on its way any more and something waits for that.
    """

    __slots__ = ("_notify", "records", "waiting")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.records: set[object] = set()
        self.waiting = False

    def end(self, record: object) -> None:
        """Kafka has it, or never will."""
        self.records.discard(record)
        # `add` sets `waiting` before it reads `records`, so one of the two sees the other.
        if not self.records and self.waiting:
            self._notify()


class Batcher:
    """Sends a producer's messages. Everything except `InFlight.end` is called under the producer's
    lock."""

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
        """Send a message at once if nothing is on its way; otherwise add it to the run. A run is
        sent first if the message is of another kind or does not fit, and with it when it is full.
        """
        run = self._run
        if run and (template != self._template or self._bytes > RUN_BYTES - len(payload)):
            self.send()
            run = self._run
        if not run:
            self._first, self._template, self._bytes = seq, template, 0
        run.append(payload)
        self._bytes += len(payload)
        self._on_way.waiting = True
        if len(run) >= RUN_MAX or not self._on_way.records:
            self.send()

    def send(self) -> None:
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
        on_way, record = self._on_way, object()
        try:
            on_way.records.add(record)
            self._session.publish(value, key, headers, self._partition, partial(on_way.end, record))
        except BaseException:  # also Ctrl-C: later messages would wait for it for ever
            on_way.end(record)
            raise


RETRANSMIT_MAX_S = 60.0
QUESTION_BYTES = 1_000_000  # of payloads that are sent again before any later one is answered


class Window:
    """A producer's unanswered messages at one broker, under the producer's lock.

    sends: sends them. sequence: the next message's number. size: the most refused messages kept for
    `flush`.
    """

    def __init__(
        self, session: Session, sends: Batcher, lock: AbstractContextManager[Any], sequence: int,
        pub_ack_s: float, size: int,
    ) -> None:  # fmt: skip
        self.sends = sends
        self.sequence = sequence
        self._lock = lock
        self._pub_ack_s = self._patience_s = pub_ack_s
        self._size = size
        self._report = session.report
        self._waiting: dict[int, Pending] = {}
        self._refused: dict[int, tuple[bytes, Rejected]] = {}
        self._raised: set[int] = set()  # refused ones that `flush` has raised
        self._asked = time.monotonic()  # of the last receipt or retransmission
        self._answered = 0  # the highest answered sequence number
        self._question = 0  # the last message of an unanswered question, see `retransmit`
        self._question_size = 1
        self.base = 0  # the engine's last sequence of an earlier run; this run counts on from it

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self, sent: Pending, persistent: bool = True) -> None:
        """Number a message that is about to be sent. persistent: the engine will answer it."""
        if persistent:
            sent.seq, sent.at = self.sequence, time.monotonic()
            self.sequence += 1
            self._waiting[sent.seq] = sent

    def take_back(self, sent: Pending) -> None:
        """The message was not sent; its number goes to the next one."""
        del self._waiting[sent.seq]
        self.sequence = sent.seq

    def holds(self, sent: Pending) -> bool:
        """True if this message has no answer yet."""
        return self._waiting.get(sent.seq) is sent

    def raise_refused(self) -> None:
        """Raise Rejected, once, for refused messages nobody was told of."""
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
        """Payloads not known to be stored, in order of sending (P6)."""
        with self._lock:
            found = {seq: sent.record[0] for seq, sent in self._waiting.items()}
            found |= {seq: payload for seq, (payload, _) in self._refused.items()}
        return [payload for _, payload in sorted(found.items())]

    def give_up(self) -> None:
        """No more answers will come: fail the futures. The fate of the messages is unknown;
        `payloads` still lists them."""
        with self._lock:
            closed = NotConnected("closed before the engine answered")
            answered = [sent for sent in self._waiting.values() if sent.answer(0, closed)]
        tell(answered)

    def on_receipt(self, value: dict[str, Any]) -> None:
        """Take the engine's answer and resolve futures."""
        answered: list[Pending] = []
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
                        self._answer(sent, number + seq - first if number else 0, None, answered)
            for nack in value["nacks"]:
                sent = waiting.pop(nack["seq"] - base, None)
                if sent is not None:
                    error = Rejected(nack["reason"], nack["queue"] or None, nack["detail"])
                    if sent.is_unwatched:
                        self._keep_refused(sent, error)
                    self._answer(sent, 0, error, answered)
            if self._question not in waiting:
                others_are_lost = 0 < self._question >= self._answered
                self._question_size = 2 * self._question_size if others_are_lost else 1
                self._question = 0
        tell(answered)

    def _answer(
        self, sent: Pending, number: int, error: Rejected | None, answered: list[Pending]
    ) -> None:
        sent.record = None  # free the payload: an application may keep its futures
        sent.seq += self.base
        if sent.answer(number, error):
            answered.append(sent)

    def waits_for(self, queue: str) -> bool:
        """True if a message for this queue has no answer."""
        return any(sent.to == queue for sent in self._waiting.values())

    def _keep_refused(self, sent: Pending, error: Rejected) -> None:
        self._refused[sent.seq] = sent.record[0], error
        if len(self._refused) > self._size:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            self._report(f"message {oldest} was refused and flush was not called: {error}")

    def retransmit(self, now_s: float) -> None:
        """Send again what has waited longer than `pub_ack_time` (P2).

        The engine takes a producer's messages in order. If a later one is answered, an unanswered
        one was lost, or its receipt was: all of those are sent again. If nothing is answered, only
        the oldest is sent, as a question, each time after a longer wait, so that a busy engine does
        not get more of the same. Its answer covers all that followed. If it answers nothing else,
        those are lost, too, and each question has twice as many messages as the one before.
        """
        if not self._waiting or now_s - self._asked < self._patience_s:
            return
        with self._lock:
            waiting = self._waiting.values()
            due = [sent for sent in waiting if now_s - sent.at > self._pub_ack_s]
            late = [sent for sent in due if sent.seq < self._answered]
            if not late and due:
                sizes = accumulate(len(sent.record[0]) for sent in due[: self._question_size])
                late = due[: max(1, sum(size <= QUESTION_BYTES for size in sizes))]
                self._question = late[-1].seq
                self._patience_s = min(self._patience_s * 2, RETRANSMIT_MAX_S)
            for sent in late:
                if sent.seq not in self._waiting:  # on memory:// answers arrive while sending
                    continue
                sent.at = self._asked = now_s
                self.sends.alone(sent.seq, *sent.record)
