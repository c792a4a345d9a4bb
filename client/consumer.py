"""Consumers: receive messages and settle them (C1–C7, L8, L10, L11, L13).

A consumer is one subscription. Deliveries come into its buffer; what the application was given and
has not settled is *held*, in order of receipt. Acks are collected and sent as ranges; anything
that is not an ack sends them first, so nothing overtakes them (C5).
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..protocol import ConfigError, LeaseLost, commands, wire
from ..protocol.ids import format_ranges
from ..protocol.outputs import Deliveries
from .acking import ack_rule
from .arrivals import GATHER_MS, WINDOW_PERCENT, Arrivals
from .message import Message
from .renewal import LIMIT, Renewal
from .values import duration_ms

if TYPE_CHECKING:
    from .connection import Connection

ACKS_PENDING_MAX = 500
SEEN_MAX = 200_000
CLOSE_S = 5.0


class Consumer:
    """Receives from one queue; made by `Connection.consumer`. One thread at a time, except that
    messages may be settled from any thread."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        ack_mode: str = "client",
        max_backlog: int | None = None,
        filter: str | None = None,
        dups_ok_count: int | None = None,
        dups_ok_interval: str | float = "1s",
        name: str | None = None,
        transport_ack_window: int = WINDOW_PERCENT,
        transport_ack_time: str | float = "1s",
        auto_renew: bool = False,
        auto_renew_limit: str | float = LIMIT,
        priority: int = 0,
    ) -> None:
        self._rule = ack_rule(ack_mode, dups_ok_count, dups_ok_interval)
        if max_backlog is not None:
            self._rule.fit(max_backlog)
        gather_ms = 0 if connection.is_memory else GATHER_MS
        self._arrivals = Arrivals(transport_ack_window, transport_ack_time, gather_ms)
        self._renewal = Renewal(auto_renew_limit) if auto_renew else None
        self._connection = connection
        self.queue = queue
        self.ack_mode = ack_mode
        self._mode = self._rule.mode  # what it means: see `acking`
        self._max_backlog = max_backlog
        self._filter = filter
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 255:
            raise ConfigError(f"priority: {priority!r} – allowed are 0 to 255")
        self._priority = priority
        self.name = name or connection.client_name
        self._buffer: deque[Message] = deque()
        self._held: dict[int, Message] = {}
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._seen_max = SEEN_MAX  # deliveries; twice the prefetch where that is more
        self._acks: list[int] = []
        self._lock = threading.RLock()
        self._closed = False  # nothing is received any more
        self._ended = False  # nothing is settled any more: the subscription has ended
        self._thread: threading.Thread | None = None
        self._draining = False  # callbacks run one after the other, never one in another
        self._working: Message | None = None  # dups_ok: its callback has not returned
        self._removes_on_send = ack_mode == "no_ack"
        self._last_dups_ack = connection.clock_ms()
        self.subscription = ""
        try:
            self.subscribe()
        except BaseException:
            self._end()
            raise

    def subscribe(self) -> None:
        """Bind to the queue under a new subscription id; what was held before is lost. What the
        engine has let go of already (pre_ack, no_ack) stays in the buffer: it comes to nobody."""
        connection = self._connection
        if self._mode == "pre_ack":
            self._flush_acks()
        if self.subscription:  # it may live on after all: nothing may stay leased to it
            connection.command(
                commands.Unsubscribe(queue=self.queue, subscription=self.subscription)
            )
        with self._lock:
            mine = [m for m in self._buffer if not self._tracks(m)]
            self._buffer.clear()
            self._buffer.extend(mine)
            self._held.clear()
            self._acks.clear()
            self._arrivals.reset()
            self.subscription = connection.new_name(self.name)
            connection.attach_consumer(self)
        result = connection.request(
            commands.Subscribe(
                queue=self.queue,
                subscription=self.subscription,
                session=connection.session_of(self.subscription),
                name=self.name,
                inbox=connection.inbox,
                max_backlog=self._max_backlog,
                filter=self._filter,
                acks="none" if self.ack_mode == "no_ack" else "explicit",
                framing="batch",
                transport_acks=True,
                priority=self._priority,
            )
        )
        self._removes_on_send = result["removes_on_send"]
        self._seen_max = max(SEEN_MAX, 2 * result["backlog"])
        try:
            self._rule.fit(result["backlog"])
        except ConfigError:
            self.close()
            raise
        connection.heartbeat_within(result["heartbeat_timeout_ms"] / 1000)

    # ------------------------------------------------------------ receiving

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there is none within ``timeout`` seconds (None: for ever;
        on ``memory://`` no call waits)."""
        self._check_open()
        if not self._buffer:
            self._dups_ok_due()
            if self._mode in ("auto", "pre_ack"):
                self._flush_acks()
            self._connection.wait(lambda: bool(self._buffer) or self._closed, timeout)
        with self._lock:
            if not self._buffer:
                return None
            message = self._buffer.popleft()
            if self._tracks(message):
                self._held[message.number] = message
        if self._mode in ("auto", "pre_ack"):
            self._settle_acks([message])
        elif self._mode == "dups_ok":
            self._dups_ok()
        return message

    def receive_many(self, most: int, timeout: float | None = None) -> list[Message]:
        """Up to ``most`` messages: waits for the first, takes what is there of the rest."""
        first = self.receive(timeout)
        out = [first] if first is not None else []
        while out and len(out) < most and self._buffer:
            message = self.receive(0)
            if message is None:
                break
            out.append(message)
        return out

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed; on ``memory://`` while there are."""
        while not self._closed:
            message = self.receive(None)
            if message is None:
                return
            yield message

    def on_message(self, callback: Callable[[Message], Any]) -> None:
        """Call ``callback`` for each message, in a thread of its own (C4).

        In mode `auto` the message is acknowledged when the callback returns, canceled when it
        raises. On ``memory://`` the callback runs at once for what is there.
        """
        self._check_open()
        if self._connection.is_memory:
            while self._buffer_filled():
                self._drain(callback)
            self._connection.on_delivery(self, lambda: self._drain(callback))
            return
        self._thread = threading.Thread(target=self._loop, args=(callback,), daemon=True)
        self._thread.start()

    def _buffer_filled(self) -> bool:
        self._connection.wait(lambda: bool(self._buffer), 0)
        return bool(self._buffer) and not (self._draining or self._closed)

    def _drain(self, callback: Callable[[Message], Any]) -> None:
        if self._draining:  # in memory: the callback itself let the engine run
            return
        self._draining = True
        try:
            while self._buffer and not self._closed:
                self._call(callback)
        finally:
            self._draining = False

    def _loop(self, callback: Callable[[Message], Any]) -> None:
        while not self._closed and self._connection.is_open:
            self._connection.wait(lambda: bool(self._buffer) or self._closed, 0.5)
            self._drain(callback)

    def _call(self, callback: Callable[[Message], Any]) -> None:
        message = self._begin()
        if message is None:
            return
        try:
            callback(message)
        except Exception as error:
            self._failed(message, error)
        else:
            self._returned(message)

    def _begin(self) -> Message | None:
        """The next message for a callback; None when there is none."""
        with self._lock:
            if not self._buffer:
                return None
            message = self._buffer.popleft()
            if self._tracks(message):
                self._held[message.number] = message
        if self._mode == "pre_ack":
            self._settle_acks([message])
        elif self._mode == "dups_ok":
            self._working = message
        return message

    def _failed(self, message: Message, error: Exception) -> None:
        """The callback raised: reported, and in some modes the message returns (C4)."""
        self._working = None
        self._connection.report(f"callback failed on message {message.id}: {error!r}")
        if self._mode in ("auto", "dups_ok") and self._holds(message):
            with contextlib.suppress(LeaseLost):  # it has come back by itself
                self._cancel_message(message, None)

    def _returned(self, message: Message) -> None:
        """The callback has returned (C4)."""
        self._working = None
        if self._mode == "auto" and self._holds(message):
            self._settle_acks([message])
        elif self._mode == "dups_ok":
            self._dups_ok()

    def _holds(self, message: Message) -> bool:
        """Whether this very delivery is held; not one that came after its lease had ended."""
        return self._held.get(message.number) is message

    def _tracks(self, message: Message) -> bool:
        return not (self._removes_on_send or message.is_barrier or message.settled)

    # ------------------------------------------------------------ settling

    def ack(
        self,
        ids: Iterable[str | int] | str | None = None,
        up_to: str | int | None = None,
        where: str | None = None,
    ) -> None:
        """Acknowledge by id, by range, up to an id, or by filter (L13). Exactly one is given."""
        if sum(x is not None for x in (ids, up_to, where)) != 1:
            raise ConfigError("ack: exactly one of ids, up_to, where is given")
        self._check_settling()
        self._flush_acks()
        command = commands.Ack(queue=self.queue, subscription=self.subscription)
        if ids is not None:
            text = ids if isinstance(ids, str) else format_ranges(int(i) for i in ids)
            command = commands.Ack(
                queue=self.queue, subscription=self.subscription, ids=text
            )
            self._forget(text)
        elif up_to is not None:
            last = int(up_to)
            with self._lock:
                known = last in self._held
            if known:
                self._settle_acks(self._up_to(self._held[last]))
                self._flush_acks()
                return
            command = commands.Ack(
                queue=self.queue, subscription=self.subscription, up_to=str(last)
            )
        else:
            command = commands.Ack(queue=self.queue, subscription=self.subscription, where=where)
        self._connection.request(command)

    def _forget(self, text: str) -> None:
        from ..protocol.ids import parse_ranges

        try:
            ranges = parse_ranges(text)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        with self._lock:
            for low, high in ranges:
                for number in [n for n in self._held if low <= n <= high]:
                    del self._held[number]

    def _up_to(self, message: Message) -> list[Message]:
        with self._lock:
            out = []
            for held in self._held.values():
                out.append(held)
                if held is message:
                    break
            return out

    def _check_held(self, message: Message) -> bool:
        """Whether there is something to settle. Raises LeaseLost where it is known to be lost."""
        self._check_settling()
        if not self._tracks(message):
            return False
        with self._lock:
            held = self._held.get(message.number)
        if held is not message:
            if message.settled:
                return False
            raise LeaseLost(f"message {message.id} is no longer held by this consumer")
        if message._lease and self._connection.now_ms() >= message._lease:
            with self._lock:
                self._held.pop(message.number, None)
            ended = message.lease_expires_at
            raise LeaseLost(f"the lease of message {message.id} ended at {ended}")
        return True

    def _ack_message(self, message: Message) -> None:
        if self._mode in ("auto", "pre_ack", "no_ack") and message.number not in self._held:
            return
        if self._check_held(message):
            cumulative = self._mode in ("client", "dups_ok")
            self._settle_acks(self._up_to(message) if cumulative else [message])

    def _settle_acks(self, messages: list[Message]) -> None:
        with self._lock:
            for message in messages:
                if self._held.pop(message.number, None) is not None:
                    message.settled = True
                    self._acks.append(message.number)
            pending = len(self._acks)
        if self._connection.is_memory or pending >= ACKS_PENDING_MAX:
            self._flush_acks()

    def _flush_acks(self) -> None:
        """Send the acks collected so far (C5)."""
        with self._lock:
            if not self._acks:
                return
            text = format_ranges(self._acks)
            self._acks.clear()
            received = self._arrivals.tell()
            self._connection.command(
                commands.Ack(
                    queue=self.queue, subscription=self.subscription, ids=text, received=received
                )
            )

    def _say_what_arrived(self) -> None:
        """Send a transport ack if one is due and no ack has carried it (C1)."""
        due = self._arrivals.due_at(self._rule.backlog)
        if due is None or due > self._connection.clock_ms():
            return
        with self._lock:
            received = self._arrivals.tell()
            if received:
                self._connection.command(
                    commands.TransportAck(
                        queue=self.queue, subscription=self.subscription, received=received
                    )
                )

    def _dups_ok(self) -> None:
        """Mode dups_ok: after n messages or k ms, whichever is first (C4)."""
        n = self._rule.n
        if n and len(self._held) >= n:
            self._ack_done()
        else:
            self._dups_ok_due()

    def _dups_ok_due(self) -> None:
        interval_ms = self._rule.interval_ms
        if self._mode != "dups_ok" or not interval_ms or not self._held:
            return
        if self._connection.clock_ms() - self._last_dups_ack >= interval_ms:
            self._ack_done()

    def _ack_done(self) -> None:
        """Acknowledge all that was handed over, but not what the callback still works on."""
        with self._lock:
            done = [m for m in self._held.values() if m is not self._working]
        self._settle_acks(done)
        self._last_dups_ack = self._connection.clock_ms()

    def _cancel_message(self, message: Message, delay: str | float | None) -> None:
        ms = None if delay is None else duration_ms(delay, "delay")
        self._give_up(
            message,
            commands.Cancel(
                queue=self.queue, subscription=self.subscription, ids=message.id, delay_ms=ms
            ),
        )

    def _reject_message(self, message: Message, reason: str) -> None:
        self._give_up(
            message,
            commands.Reject(
                queue=self.queue, subscription=self.subscription, ids=message.id, reason=reason
            ),
        )

    def _give_up(self, message: Message, command: commands.Command) -> None:
        if self._check_held(message):
            with self._lock:
                self._held.pop(message.number, None)
                message.settled = True
                self._flush_acks()
                self._connection.command(command)

    def _renew_message(self, message: Message, period: str | float | None) -> None:
        ms = None if period is None else duration_ms(period, "period")
        if self._check_held(message):
            self._flush_acks()
            self._connection.command(
                commands.Renew(
                    queue=self.queue, subscription=self.subscription, ids=message.id, period_ms=ms
                )
            )
            if message._lease and ms is not None:
                message._lease = self._connection.now_ms() + ms

    # ------------------------------------------------------------ the rest

    def set_max_backlog(self, max_backlog: int) -> None:
        """Change this subscription's backlog (B3); below what it holds, delivery waits."""
        self._check_open()
        self._rule.fit(max_backlog)
        self._flush_acks()
        self._connection.request(
            commands.SetBacklog(
                queue=self.queue, subscription=self.subscription, max_backlog=max_backlog
            )
        )
        self._max_backlog = max_backlog

    def close(self) -> None:
        """Send what is acknowledged, return the rest to the queue, end the subscription.

        Waits up to 5 s for a callback that runs, so that its message can still be acknowledged;
        what was received and not acknowledged, or never handed over, returns (C3).
        """
        if self._closed:
            return
        self._closed = True
        connection, thread = self._connection, self._thread
        connection.wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=CLOSE_S)
        if connection.is_open:
            if self._mode == "dups_ok":
                self._ack_done()
            self._flush_acks()
            connection.command(
                commands.Unsubscribe(queue=self.queue, subscription=self.subscription)
            )
        self._end()

    def _end(self) -> None:
        """The subscription is over: what was held here is not any more."""
        with self._lock:
            self._closed = self._ended = True
            self._buffer.clear()
            self._held.clear()
            self._acks.clear()
        self._connection.detach_consumer(self)

    def kill(self) -> None:
        """On ``memory://`` only: die silently, as a killed process does. A test aid."""
        if not self._connection.is_memory:
            raise ConfigError("kill: only on memory://; kill the process instead")
        self._connection.silence(self.subscription)
        self._end()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed or not self._connection.is_open:
            raise self._connection.closed("the consumer is closed")

    def _check_settling(self) -> None:
        """While it closes, a callback that still runs may settle its message."""
        if self._ended or not self._connection.is_open:
            raise self._connection.closed("the consumer is closed")

    # ------------------------------------------------------------ called by the connection

    def on_record(self, value: bytes) -> None:
        """A delivery record: into the buffer, without what was seen already (C2)."""
        deliveries = wire.decode_batch(value)
        with self._lock:
            if deliveries.subscription != self.subscription or self._closed:
                return
            if deliveries.flow is not None:
                count, now_ms = len(deliveries.ids), self._connection.clock_ms()
                self._arrivals.take(deliveries.flow, count, now_ms)
            if deliveries.again:
                self._remember_held(deliveries)
            before = len(self._buffer)
            self._take(deliveries)
            if self._mode == "pre_ack":
                self._pre_ack(before)
            if self._renewal is not None:
                self._renewal.arrived(self._connection.now_ms())

    def _remember_held(self, d: Deliveries) -> None:
        """What is sent again may be held so long that it is forgotten: it is not new (C2)."""
        for number, delivery, count in zip(d.ids, d.numbers, d.counts, strict=True):
            held = self._held.get(number)
            if held is not None and held.delivery_count == count:
                self._seen[delivery] = None

    def _pre_ack(self, before: int) -> None:
        """Mode pre_ack: acknowledge what has just come in, before anybody asks for it (C4). At most
        a backlog of it waits here; what comes beyond that is acknowledged as it is handed over."""
        arrived = list(self._buffer)[before : self._rule.backlog]
        for message in arrived:
            if self._tracks(message):
                message.settled = True
                self._acks.append(message.number)

    def _take(self, d: Deliveries) -> None:
        seen = self._seen
        lease_until = self._connection.now_ms() + d.lease_ms if d.lease_ms else 0
        for i, number in enumerate(d.ids):
            count, delivery = d.counts[i], d.numbers[i]
            if delivery in seen:
                continue
            seen[delivery] = None
            message = Message(
                self, d.queue, number, d.payloads[i], d.keys[i], d.headers[i], count,
                d.priorities[i], lease_until, d.expires[i], d.times[i], d.barrier,
                d.dead.get(i),
            )  # fmt: skip
            self._held.pop(number, None)
            self._buffer.append(message)
        while len(seen) > self._seen_max:
            seen.popitem(last=False)

    def tick(self) -> None:
        """Called by the connection now and then: acks that are due are sent."""
        self._dups_ok_due()
        self._flush_acks()
        self._say_what_arrived()
        if self._renewal is not None:
            self._renew_due(self._renewal)

    def _renew_due(self, renewal: Renewal) -> None:
        now_ms = self._connection.now_ms()
        if now_ms < renewal.look_at:
            return
        with self._lock:
            due = renewal.look([*self._held.values(), *self._buffer], now_ms)
            for period_ms, messages in due.items():
                ids = format_ranges(m.number for m in messages)
                self._connection.command(
                    commands.Renew(
                        queue=self.queue, subscription=self.subscription, ids=ids,
                        period_ms=period_ms,
                    )
                )

    def due(self) -> int | None:
        """When the next duty of `tick` is due, as the connection's clock counts; None: none is."""
        times = [self._arrivals.due_at(self._rule.backlog)]
        if self._renewal is not None and (self._held or self._buffer):
            times.append(self._renewal.look_at)
        if self._mode == "dups_ok" and self._rule.interval_ms and self._held:
            times.append(self._last_dups_ack + self._rule.interval_ms)
        return min((round(t) for t in times if t is not None), default=None)
