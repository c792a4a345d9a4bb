"""Producers: send messages and know what became of them (P1–P7).

Every persistent message has a sequence number; the engine answers by sequence. A message without
an answer after `pub_ack_time` is sent again under the same number, and stored once.

Messages that follow each other closely and differ in nothing but their payload travel together, up
to `RUN_MAX` in a record (a *run*): most of what a record costs, in Kafka, in Spark and here,
it costs whatever is in it. A run waits for more at most `GATHER_S`; `send`, `flush` and `close` do
not wait.
"""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from ..protocol import ConfigError, NotConnected, Rejected, Timeout, WindowFull, topics
from ..protocol.messages import (
    HEADER,
    PRIORITY_MAX,
    RUN_MAX,
    PublishHeader,
    encode_publish_header,
    encode_run,
)
from .pending import Pending, Receipt, settle
from .values import duration_ms, time_ms

if TYPE_CHECKING:
    from .connection import Connection

MODES = ("persistent", "non_persistent", "persistent_groupack")
ON_FULL = ("block", "raise")
SEND_TIMEOUT_S = 60.0
RETRANSMIT_MAX_S = 60.0
TEMPLATES_MAX = 1_000
RUN_BYTES = 32_000
_SEQ = 1 << 61  # stands where the sequence number goes; no producer gets there


class Producer:
    """Sends messages; made by `Connection.producer`. Safe to use from several threads."""

    def __init__(
        self,
        connection: Connection,
        delivery_mode: str = "persistent",
        window: int = 255,
        group_ack: int = 100,
        pub_ack_time: str | float = "2s",
        producer_id: str | None = None,
        first_sequence: int = 1,
        ttl: str | float | None = None,
        priority: int = 4,
        dmq_eligible: bool = True,
        durability: str = "checkpoint",
        on_full: str = "block",
    ) -> None:
        if delivery_mode not in MODES:
            raise ConfigError(f"delivery_mode: {delivery_mode!r} – allowed are {', '.join(MODES)}")
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"window: {window!r} – allowed is a number of messages from 1")
        if not isinstance(group_ack, int) or group_ack < 1:
            raise ConfigError(f"group_ack: {group_ack!r} – allowed is a number of messages from 1")
        if durability != "checkpoint":
            raise ConfigError(
                f"durability: {durability!r} – allowed in this version is 'checkpoint'"
            )
        if isinstance(first_sequence, bool) or not isinstance(first_sequence, int) or (
            first_sequence < 1
        ):
            raise ConfigError(f"first_sequence: {first_sequence!r} – sequences start at 1")
        if on_full not in ON_FULL:
            raise ConfigError(f"on_full: {on_full!r} – allowed are {', '.join(ON_FULL)}")
        if not isinstance(dmq_eligible, bool):
            raise ConfigError(f"dmq_eligible: {dmq_eligible!r} – allowed are True and False")
        self._connection = connection
        self.delivery_mode = self._mode = delivery_mode
        self._raises_when_full = on_full == "raise"
        self._window = max(window, group_ack if delivery_mode == "persistent_groupack" else 1)
        self._pub_ack_s = duration_ms(pub_ack_time, "pub_ack_time") / 1000
        if not self._pub_ack_s:
            raise ConfigError(f"pub_ack_time: {pub_ack_time!r} – allowed is a positive duration")
        self.producer_id = producer_id or connection.new_name("producer")
        self._next = first_sequence
        self._ttl_ms = _ttl(ttl)
        self._priority = _priority(priority)
        self._dmq = dmq_eligible
        self._lock = threading.RLock()
        self._waiting: dict[int, Pending] = {}
        self._asked = time.monotonic()  # the last receipt, or the last retransmission
        self._answered = 0  # the highest sequence that was answered
        self._patience_s = self._pub_ack_s
        self._closed = False
        self._error: Exception | None = None
        self._templates: dict[tuple, tuple[bytes, bytes]] = {}
        self._run: list[bytes] = []  # gathered, not sent yet
        self._run_first = self._run_bytes = 0
        self._run_template: tuple[bytes, bytes] = (b"", b"")
        self._topic = topics.topic(connection.vpn, topics.PUBLISH)
        self._gathers = not connection.is_memory  # there, each record is a step
        # One partition per producer: its messages keep their order, whatever their keys.
        partitions = connection.publish_partitions
        self._partition = crc32(self.producer_id.encode()) % partitions
        connection.attach_producer(self)

    # ------------------------------------------------------------ sending

    def send(
        self,
        destination: str,
        payload: bytes | str,
        *,
        ttl: str | float | None = None,
        priority: int | None = None,
        headers: dict[str, str | bytes] | None = None,
        key: bytes | str | None = None,
        deliver_at: datetime | str | None = None,
        ack_immediately: bool = False,
        delivery_mode: str | None = None,
        dmq_eligible: bool | None = None,
        timeout: float = SEND_TIMEOUT_S,
    ) -> Receipt:
        """Send a message to a queue or topic; in mode `persistent` returns when it is stored.

        Raises Rejected with the reason and the queue when it is refused, Timeout when no answer
        came in ``timeout`` seconds (it is then unknown, not lost: see `unacknowledged`).
        """
        future = self.send_async(
            destination, payload, ttl=ttl, priority=priority, headers=headers, key=key,
            deliver_at=deliver_at, ack_immediately=ack_immediately, delivery_mode=delivery_mode,
            dmq_eligible=dmq_eligible,
        )  # fmt: skip
        self.send_gathered()
        mode = delivery_mode or self._mode
        if mode == "persistent":
            if not self._connection.wait(future.done, timeout):
                raise Timeout(f"no answer to a message for {destination!r} within {timeout} s")
            return future.result()
        return self.receipt_of(future)

    def receipt_of(self, sent: Pending) -> Receipt:
        """What is known of a sent message by now; without a message id while it is on its way."""
        return sent.result() if sent.done() else Receipt(sent.seq, None)

    def send_async(
        self,
        destination: str,
        payload: bytes | str,
        *,
        ttl: str | float | None = None,
        priority: int | None = None,
        headers: dict[str, str | bytes] | None = None,
        key: bytes | str | None = None,
        deliver_at: datetime | str | None = None,
        ack_immediately: bool = False,
        delivery_mode: str | None = None,
        dmq_eligible: bool | None = None,
    ) -> Pending:
        """Send without waiting; the future has the receipt, or raises Rejected.

        While `window` messages are without an answer it waits up to 60 s; with
        ``on_full="raise"`` it raises WindowFull at once, and nothing was sent (P5).
        """
        self._check_open()
        if not isinstance(destination, str) or not destination:
            raise ConfigError(f"destination: {destination!r} – allowed is a queue or topic name")
        mode = delivery_mode or self._mode
        if mode not in MODES:
            raise ConfigError(f"delivery_mode: {mode!r} – allowed are {', '.join(MODES)}")
        data = payload.encode() if isinstance(payload, str) else payload
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ConfigError(f"payload: {type(payload).__name__} – allowed are bytes and str")
        persistent = mode != "non_persistent"
        if persistent and len(self._waiting) >= self._window:
            self._wait_for_room()
        wanted = (destination, ttl, priority, deliver_at, dmq_eligible, persistent)
        template = self._templates.get(wanted) or self._template(*wanted)
        data = bytes(data)
        if isinstance(key, str):
            key = key.encode()
        own = None
        if headers:
            own = [(n, v.encode() if isinstance(v, str) else v) for n, v in headers.items()]
        with self._lock:
            seq = self._next if persistent else 0
            record = (data, key, own, template)
            future = Pending(self._connection.changed, seq, record, time.monotonic())
            if persistent:
                self._next = seq + 1
                self._waiting[seq] = future
            else:
                settle(future, 0)
            if key is None and own is None and self._gathers and len(data) < RUN_BYTES:
                self._gather(seq, data, template)
                if ack_immediately:
                    self.send_gathered()
            else:
                self.send_gathered()
                self._publish(seq, *record)
        return future

    def _publish(
        self,
        seq: int,
        payload: bytes,
        key: bytes | None,
        headers: list[tuple[str, bytes]] | None,
        template: tuple[bytes, bytes],
    ) -> None:
        """Send one message as a record of its own."""
        pairs = [(HEADER, b"%b%d%b" % (template[0], seq, template[1])), *(headers or ())]
        self._connection.publish(self._topic, payload, key, pairs, self._partition)

    def _gather(self, seq: int, payload: bytes, template: tuple[bytes, bytes]) -> None:
        """Put a message into the run, sending it when it is full or of another kind."""
        run = self._run
        if run and (template != self._run_template or self._run_bytes > RUN_BYTES - len(payload)):
            self.send_gathered()
            run = self._run
        if not run:
            self._run_first, self._run_template, self._run_bytes = seq, template, 0
            self._connection.gathering()
        run.append(payload)
        self._run_bytes += len(payload)
        if len(run) >= RUN_MAX:
            self.send_gathered()

    def send_gathered(self) -> None:
        """Send the run as it is."""
        with self._lock:
            run, self._run = self._run, []
            if not run:
                return
            first, template = self._run_first, self._run_template
            if len(run) == 1:
                self._publish(first, run[0], None, None, template)
                return
            meta = b'%b%d,"count":%d%b' % (template[0], first, len(run), template[1])
            self._connection.publish(
                self._topic, encode_run(run), None, [(HEADER, meta)], self._partition
            )

    def _template(
        self,
        destination: str,
        ttl: str | float | None,
        priority: int | None,
        deliver_at: datetime | str | None,
        dmq_eligible: bool | None,
        persistent: bool,
    ) -> tuple[bytes, bytes]:
        """The header `lq` of messages with these options: what stands before the sequence number,
        and what stands behind it."""
        header = encode_publish_header(
            PublishHeader(
                to=destination,
                producer=self.producer_id if persistent else "",
                seq=_SEQ,
                ttl_ms=self._ttl_ms if ttl is None else _ttl(ttl),
                priority=self._priority if priority is None else _priority(priority),
                deliver_at=None if deliver_at is None else time_ms(deliver_at, "deliver_at"),
                dmq=self._dmq if dmq_eligible is None else dmq_eligible,
                reply=self._connection.receipts_partition if persistent else 0,
            )
        )
        before, name, after = header.partition(b'"seq":%d' % _SEQ)
        template = (before + name[:6], after)
        if deliver_at is None:  # times differ from message to message
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[destination, ttl, priority, None, dmq_eligible, persistent] = template
        return template

    def _wait_for_room(self) -> None:
        self.send_gathered()

        def room() -> bool:
            return len(self._waiting) < self._window or self._error is not None

        if self._raises_when_full and not self._connection.wait(room, 0):
            raise WindowFull(
                f"{self._window} messages are without an answer, as many as window allows"
            )
        if not self._connection.wait(room, SEND_TIMEOUT_S):
            raise Timeout(
                f"window of {self._window} messages is full, no answer within {SEND_TIMEOUT_S} s"
            )
        self._check_open()

    def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until every sent message is answered; raises Timeout if some are not."""
        self.send_gathered()
        if not self._connection.wait(lambda: not self._waiting, timeout):
            raise Timeout(f"{len(self._waiting)} messages without an answer after {timeout} s")

    def unacknowledged(self) -> list[bytes]:
        """Payloads of messages that are not known to be stored, in order of sending (P6)."""
        with self._lock:
            return [sent.record[0] for _, sent in sorted(self._waiting.items())]

    def close(self, timeout: float = 30.0) -> None:
        """Flush and close; messages still without an answer raise Timeout."""
        if self._closed:
            return
        try:
            if self._connection.is_open:
                self.flush(timeout)
        finally:
            self._closed = True
            self._connection.detach_producer(self)
            self._give_up()

    def _give_up(self) -> None:
        """Nobody will answer any more: whoever waits for a future is told. What became of these
        messages is unknown, and `unacknowledged` still lists them."""
        with self._lock:
            waiting = list(self._waiting.values())
        for sent in waiting:
            settle(sent, 0, NotConnected("closed before the engine answered"))
        self._connection.wake()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed or not self._connection.is_open:
            raise self._connection.closed("the producer is closed")

    # ------------------------------------------------------------ called by the connection

    def on_receipt(self, value: dict[str, Any]) -> None:
        """An answer of the engine: resolve futures."""
        settled: list[tuple[Pending, int, Rejected | None]] = []
        with self._lock:
            self._asked, self._patience_s = time.monotonic(), self._pub_ack_s
            waiting = self._waiting
            for first, count, start in value["runs"]:
                self._answered = max(self._answered, first + count - 1)
                number = int(start)
                for seq in range(first, first + count) if waiting else ():
                    sent = waiting.pop(seq, None)
                    if sent is not None:
                        settled.append((sent, number + seq - first if number else 0, None))
            for nack in value["nacks"]:
                sent = waiting.pop(nack["seq"], None)
                if sent is not None:
                    error = Rejected(nack["reason"], nack["queue"] or None, nack["detail"])
                    settled.append((sent, 0, error))
        for sent, number, refused in settled:
            sent.record = None  # an application may keep its futures
            settle(sent, number, refused)

    def retransmit(self, now: float) -> None:
        """Send again what has waited longer than `pub_ack_time` (P2).

        The engine takes a producer's messages in order, so one that is unanswered while a later one
        is answered was lost, or its receipt was: all such are sent again. In silence only the
        oldest is, as a question, and each time after a longer wait: an engine that works its way
        through much is not held up by more of the same. Its answer tells of all that followed.
        """
        if not self._waiting or now - self._asked < self._patience_s:
            return
        with self._lock:
            late = [
                sent for seq, sent in self._waiting.items()
                if seq < self._answered and now - sent.at > self._pub_ack_s
            ]  # fmt: skip
            oldest = next(iter(self._waiting.values()), None)
            if not late and oldest is not None and now - oldest.at > self._pub_ack_s:
                late = [oldest]
                self._patience_s = min(self._patience_s * 2, RETRANSMIT_MAX_S)
            for sent in late:
                sent.at = self._asked = now
                self._publish(sent.seq, *sent.record)

    def on_lost(self, error: Exception) -> None:
        """The connection was closed with messages in flight."""
        self._error = error


def _ttl(value: str | float | None) -> int | None:
    if value is None:
        return None
    ms = duration_ms(value, "ttl")
    if ms <= 0:
        raise ConfigError(f"ttl: {value!r} – allowed is a positive duration, such as '8s'")
    return ms


def _priority(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PRIORITY_MAX:
        raise ConfigError(f"priority: {value!r} – allowed are 0 to {PRIORITY_MAX}")
    return value


def decode_receipt(value: bytes) -> dict[str, Any]:
    """A receipt record as a dict."""
    return msgspec.json.decode(value)
