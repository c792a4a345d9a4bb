"""Producers: send messages and report what became of them (P1–P7).

`options` checks a message and makes its header. `window` numbers messages per broker, and keeps
them until the engine has answered. `moved_messages` follows queues to other brokers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from uuid import uuid4

from ...protocol import ConfigError, NotConnected, Reason, Rejected, Timeout, WindowFull
from ...protocol.bounds import NAME_CHARACTERS_MAX
from ..session.session import Answer, Session
from ..values import (
    content,
    deadline_s,
    delivery_ms,
    one_of,
    positive_ms,
    text_of,
    truth,
    wait_s,
    whole,
)
from .moved_messages import MovedMessages
from .options import (
    HeaderOptions,
    Templates,
    check_outlived,
    destination_of,
    headers_of,
    priority_of,
    ttl_ms,
)
from .receipts import Pending, Receipt, settle
from .window import RUN_BYTES, Batcher, Window

MODES = ("persistent", "non_persistent", "persistent_groupack")
ON_FULL = ("block", "raise")
DURABILITIES = ("checkpoint", "delta")
SEND_TIMEOUT_S = 60.0
# The Delta tables are committed every few seconds: sending again earlier is useless.
DELTA_PUB_ACK_S = 15.0
FIRST_SEQUENCE_MAX = 1 << 60  # leaves room for as many again
WINDOW_MAX = 1_000_000_000


class Producer:
    """Sends messages; made by `Connection.producer`. Safe to use from several threads.

    delivery_mode: `persistent` (`send` returns when the engine has stored the message),
    `non_persistent` (no receipt; may be lost), or `persistent_groupack` (`send` does not wait;
    `flush` does). window: the most messages without an answer, 1 to 1,000,000,000. on_full: what
    `send` does at that limit, `block` or `raise` WindowFull. group_ack: in mode
    `persistent_groupack`, the smallest window. pub_ack_time: how long to wait for an answer before
    a message is sent again, such as `'2s'`.

    ttl, priority, dmq_eligible, deliver_at, delay: defaults for messages that do not set their own
    (P7); `send` explains them.

    durability: `checkpoint` (stored by the engine) or `delta`: the receipt comes only when the
    Delta table `messages` has the message, seconds later. `pub_ack_time` is then at least 15 s.

    producer_id: a name that survives restarts. The first message takes the name over from any other
    producer that uses it: numbering goes on behind the last message the engine knows, and the other
    producer is refused from then on (P1). first_sequence: number messages yourself from here on,
    without taking over. A message whose number the engine already has gets a receipt marked
    `duplicate`.

    Raises ConfigError for a wrong option.
    """

    def __init__(
        self,
        session: Session,
        delivery_mode: str = "persistent",
        window: int = 255,
        group_ack: int = 100,
        pub_ack_time: str | float = "2s",
        producer_id: str | None = None,
        first_sequence: int | None = None,
        ttl: str | float | None = None,
        priority: int = 4,
        dmq_eligible: bool = True,
        durability: str = "checkpoint",
        on_full: str = "block",
        deliver_at: datetime | str | None = None,
        delay: str | float | None = None,
    ) -> None:
        self._session = session
        self.delivery_mode = one_of(delivery_mode, "delivery_mode", MODES)
        whole(window, "window", 1, WINDOW_MAX)
        whole(group_ack, "group_ack", 1, WINDOW_MAX)
        self._window_size = max(window, group_ack if delivery_mode == "persistent_groupack" else 1)
        if first_sequence is not None:
            whole(first_sequence, "first_sequence", 1, FIRST_SEQUENCE_MAX)
        one_of(durability, "durability", DURABILITIES)
        if durability == "delta" and delivery_mode == "non_persistent":
            raise ConfigError(
                "durability: 'delta' – mode 'non_persistent' has no receipts; allowed is "
                "'checkpoint'"
            )
        self._raises_when_full = one_of(on_full, "on_full", ON_FULL) == "raise"
        truth(dmq_eligible, "dmq_eligible")
        pub_ack_s = positive_ms(pub_ack_time, "pub_ack_time") / 1000
        if durability == "delta":
            pub_ack_s = max(pub_ack_s, DELTA_PUB_ACK_S)
        given = session.new_name("producer") if producer_id is None else producer_id
        self.producer_id = text_of(given, "producer_id", NAME_CHARACTERS_MAX)
        self._first_sequence = first_sequence or 1
        # An earlier run of the program may have used the name.
        named = producer_id is not None and first_sequence is None
        self._start = uuid4().hex if named else ""
        self._superseded = ""  # the engine's text once another producer has the name
        self._deliver_at, self._delay = deliver_at, delay
        now_ms = session.now_ms()
        at = delivery_ms(deliver_at, delay, now_ms)
        self._delivers_later = at is not None
        self._defaults = HeaderOptions(ttl_ms(ttl), priority_of(priority), None, dmq_eligible, True)
        if at is not None and delay is not None:
            check_outlived("delay", at - now_ms, self._defaults.ttl_ms)
        self._lock = session.runner.new_lock()
        self._closed = False
        self._templates = Templates(
            self.producer_id, session.receipts_partition, durability, self._start
        )
        self._pub_ack_s = pub_ack_s
        self._windows: dict[int, Window] = {}  # by the broker's number
        self._moved_messages = MovedMessages(self._windows, self._window, session.broker_of)
        self._window(session.number)
        session.attach_producer(self.producer_id, self)

    def _window(self, broker: int) -> Window:
        """The window of a broker, made on first use."""
        if (found := self._windows.get(broker)) is not None:
            return found
        session = self._session
        with self._lock:
            if broker not in self._windows:
                sends = Batcher(session, session.publish_partition(self.producer_id, broker))
                self._windows[broker] = Window(
                    session, sends, self._lock, self._first_sequence, self._pub_ack_s,
                    self._window_size,
                )  # fmt: skip
            return self._windows[broker]

    # ------------------------------------------------------------ sending

    def send(
        self,
        destination: str,
        payload: bytes | str,
        *,
        ttl: str | float | None = None,
        priority: int | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        key: bytes | str | None = None,
        deliver_at: datetime | str | None = None,
        delay: str | float | None = None,
        ack_immediately: bool = False,
        delivery_mode: str | None = None,
        dmq_eligible: bool | None = None,
        timeout: float | None = SEND_TIMEOUT_S,
    ) -> Receipt:
        """Send a message to a queue or topic. In mode `persistent`, return when it is stored.

        destination: a queue or topic. payload: bytes, or text that is sent as UTF-8; about 12 MB at
        most. ttl: how long the message may live, such as `'8s'` or seconds as a number; None for no
        end. priority: 0 to 255; it orders deliveries if the queue's `priority` reads `/@priority`.
        headers: names and values, text or bytes. key: the Kafka record key. deliver_at: not before
        this moment, an aware datetime or ISO-8601 text; delay: not before this long from now (L12).
        ack_immediately: send at once instead of gathering a batch. dmq_eligible: may go to the dead
        message queue. timeout: seconds to wait for the receipt, and before that while the window is
        full; None for ever.

        Raises Rejected, with reason and queue, if the engine refuses the message. Raises Timeout if
        no answer came in time: the message may still be stored, see `unacknowledged`. Raises
        ConfigError for a wrong argument, WindowFull as set by `on_full`, and NotConnected if the
        producer is closed or Kafka takes nothing: the message was not sent then. In mode
        `persistent_groupack` it does not wait, and `flush` raises Rejected. The receipt is
        `discarded`, with the reason, if a queue's policy dropped the message (S4).
        """
        until = deadline_s(timeout)
        future = self.send_async(
            destination, payload, ttl=ttl, priority=priority, headers=headers, key=key,
            deliver_at=deliver_at, delay=delay, ack_immediately=ack_immediately,
            delivery_mode=delivery_mode, dmq_eligible=dmq_eligible, timeout=timeout,
        )  # fmt: skip
        self.send_gathered()
        if (delivery_mode or self.delivery_mode) == "persistent":
            if not self._session.wait(future.done, max(until - time.monotonic(), 0.0)):
                raise Timeout(f"no answer to a message for {destination!r} within {timeout} s")
            return future.result()
        return self.receipt_of(future)

    def receipt_of(self, sent: Pending) -> Receipt:
        """The receipt of a sent message as known by now; without a message id while no answer has
        come. If the message is refused later, `flush` raises that."""
        self._session.check_process()
        with self._lock:
            sent.is_unwatched = True
            if any(sent is one for one in self._moved_messages.waiting(sent.to)):
                return Receipt(sent.seq, None)
            for window in self._windows.values():
                if window.holds(sent):
                    return Receipt(window.base + sent.seq, None)
        return sent.result()

    def send_async(
        self,
        destination: str,
        payload: bytes | str,
        *,
        ttl: str | float | None = None,
        priority: int | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        key: bytes | str | None = None,
        deliver_at: datetime | str | None = None,
        delay: str | float | None = None,
        ack_immediately: bool = False,
        delivery_mode: str | None = None,
        dmq_eligible: bool | None = None,
        timeout: float | None = SEND_TIMEOUT_S,
    ) -> Pending:
        """Send without waiting for the receipt. Arguments as for `send`.

        Returns a future (`concurrent.futures.Future`) that gives the `Receipt` or raises Rejected.
        While `window` messages have no answer it blocks for up to ``timeout`` seconds (None: for
        ever), then raises Timeout. With `on_full="raise"` it raises WindowFull at once. In both
        cases nothing was sent (P5).
        """
        self._check_open()
        until = 0.0 if timeout == SEND_TIMEOUT_S else deadline_s(timeout)
        to = destination_of(destination)
        mode = self.delivery_mode
        if delivery_mode is not None:
            mode = one_of(delivery_mode, "delivery_mode", MODES)
        data = content(payload, "payload")
        persistent = mode != "non_persistent"
        record_key = None if key is None else content(key, "key")
        own = headers_of(headers)
        options = self._options(ttl, priority, deliver_at, delay, dmq_eligible, persistent)
        template = self._templates.of(to, options)
        if ack_immediately is not False:
            truth(ack_immediately, "ack_immediately")
        # All arguments are checked now.
        number = self._session.broker_of(to)
        window = self._window(number)
        if self._session.spans is not None:
            own = headers_of(self._session.spans.published(to, headers))
        sent = Pending(self._session, to, (data, record_key, own, template))
        while True:
            with self._lock:
                if not persistent or self._in_window(window, to) < self._window_size:
                    self._send(sent, window, number, persistent, ack_immediately)
                    return sent
            until = until or deadline_s(timeout)
            self._wait_for_room(window, to, until)

    def _send(
        self, sent: Pending, window: Window, number: int, persistent: bool, ack_immediately: bool
    ) -> None:
        """Send a message to the broker with this number, or let it wait for its moved queue."""
        if persistent and len(self._windows) > 1 and self._moved_messages.keep_back(sent, number):
            return
        window.number(sent, persistent)
        if not persistent:
            settle(sent, 0)
        data, key, headers, template = sent.record
        try:
            if key is None and headers is None and len(data) < RUN_BYTES:
                window.sends.add(sent.seq, data, template)
                if ack_immediately:
                    window.sends.send()
            else:
                window.sends.send()
                window.sends.alone(sent.seq, data, key, headers, template)
        except (NotConnected, Rejected):  # Kafka's client did not take it
            if window.holds(sent):
                window.take_back(sent)
            raise

    def _options(
        self,
        ttl: str | float | None,
        priority: int | None,
        deliver_at: datetime | str | None,
        delay: str | float | None,
        dmq_eligible: bool | None,
        persistent: bool,
    ) -> HeaderOptions:
        """The header's options: the message's own, else the producer's (P7)."""
        options = self._defaults
        if not persistent:
            options = options._replace(persistent=False)
        if ttl is not None:
            options = options._replace(ttl_ms=ttl_ms(ttl))
        if priority is not None:
            options = options._replace(priority=priority_of(priority))
        if dmq_eligible is not None:
            options = options._replace(dmq_eligible=truth(dmq_eligible, "dmq_eligible"))
        if deliver_at is None and delay is None:
            if not self._delivers_later:
                return options
            deliver_at, delay = self._deliver_at, self._delay
        now_ms = self._session.now_ms()
        at = delivery_ms(deliver_at, delay, now_ms)
        if at is not None:
            what = "deliver_at" if delay is None else "delay"
            check_outlived(what, at - now_ms, options.ttl_ms)
            if delay is not None:  # independent of this machine's clock
                return options._replace(delay_ms=at - now_ms)
        return options._replace(at=at)

    def send_gathered(self) -> None:
        """Send the messages that were gathered while another record was on its way."""
        with self._lock:
            for window in self._windows.values():
                window.sends.send()

    def _in_window(self, window: Window, destination: str) -> int:
        """How many messages have no answer yet, including those that wait for a moving queue."""
        return len(window) + len(self._moved_messages.waiting(destination))

    def _wait_for_room(self, window: Window, destination: str, until: float) -> None:
        self.send_gathered()
        left_s = max(until - time.monotonic(), 0.0)

        def room() -> bool:
            return self._closed or self._in_window(window, destination) < self._window_size

        if self._raises_when_full and not self._session.wait(room, 0):
            raise WindowFull(
                f"window: {self._window_size} messages are without an answer, the most it allows; "
                "wait, call flush(), or make the window larger"
            )
        found = self._session.wait(room, left_s)
        self._check_open()
        if not found:
            raise Timeout(
                f"window: {self._window_size} messages are without an answer, and none came within "
                f"{left_s:.3g} s; is the engine running? (lakequeue doctor)"
            )

    # ------------------------------------------------------------ what became of it

    def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until every sent message has an answer.

        timeout: seconds; None waits for ever. Raises Timeout if some have none, NotConnected if the
        producer was closed. Raises Rejected, once, for a refusal nobody was told about: in mode
        `persistent_groupack`, `send` returns too early to raise it. `unacknowledged` lists these
        messages until the next flush.
        """
        timeout_s = wait_s(timeout)
        self._session.check_process()
        self.send_gathered()
        self._session.wait(lambda: self._closed or not self._waiting(), timeout_s)
        if left := self._waiting():
            if self._closed or not self._session.is_open:
                raise self._session.closed(f"closed with {left} messages without an answer")
            raise Timeout(f"{left} messages without an answer after {timeout_s or 0:.3g} s")
        for window in list(self._windows.values()):
            window.raise_refused()

    def _waiting(self) -> int:
        waiting = sum(len(window) for window in list(self._windows.values()))
        return waiting + len(self._moved_messages)

    def unacknowledged(self) -> list[bytes]:
        """Payloads of messages not known to be stored (P6): without an answer, or refused when
        nobody could be told. In order of sending, per broker. Raises NotConnected in a forked
        child."""
        self._session.check_process()
        with self._lock:
            sent = [p for window in self._windows.values() for p in window.payloads()]
            return sent + [p.record[0] for p in self._moved_messages.all()]

    def close(self, timeout: float = 30.0) -> None:
        """Flush and close. Raises as `flush`; the producer is closed in any case. Repeated calls do
        nothing."""
        timeout_s = wait_s(timeout)
        if self._closed or self._session.is_forked:
            return
        try:
            if self._session.is_open:
                self.flush(timeout_s)
        finally:
            self._closed = True
            self._session.detach_producer(self.producer_id, self)
            for window in list(self._windows.values()):
                window.give_up()
            for sent in self._moved_messages.all():  # `unacknowledged` lists them on
                settle(sent, 0, NotConnected("closed before the engine answered"))
            self._session.wake()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed or not self._session.is_open:
            raise self._session.closed("the producer is closed")
        if self._superseded:
            raise Rejected(Reason.SUPERSEDED.value, None, self._superseded)

    # ------------------------------------------------------------ called by the session

    def on_receipt(self, value: Answer) -> None:
        """Take an answer of the engine. Called by the session."""
        window = self._windows.get(value.get("broker", 0))
        if window is None or value.get("start", "") != self._start:
            return
        for nack in value["nacks"]:
            if nack["reason"] == Reason.SUPERSEDED:
                self._superseded = nack["detail"]

        window.on_receipt(value)
        if len(self._moved_messages):
            with self._lock:
                self._moved_messages.go_on()

    def retransmit(self, now_s: float) -> None:
        """Send again what has waited too long for an answer (P2). Called by the session."""
        for window in list(self._windows.values()):
            window.retransmit(now_s)
        if len(self._moved_messages):
            with self._lock:
                self._moved_messages.go_on()
