"""Consumers: receive messages and settle them (C1–C7, L5, L8, L10, L11, L13).

A consumer is one subscription (`binding`). Deliveries enter its buffer (`prefetch`). `settling`
acknowledges as the mode says, and `callbacks` calls the application.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec

from ...protocol import ConfigError, LakequeueError, NotConnected, Timeout, commands, wire
from ...protocol.bounds import BACKLOG_MAX, NAME_CHARACTERS_MAX
from ...protocol.duties import do_every
from ...protocol.errors import Moved
from ...protocol.ids import format_parts, format_ranges
from ..message import Message
from ..session.requests import NAME_MAX
from ..session.session import Answer, Session
from ..session.transport import Record
from ..values import deadline_s, function_of, text_of, truth, whole
from .binding import Binding
from .callbacks import CallbackRunner
from .prefetch import LIMIT, WINDOW_PERCENT, FlowArrivals, Leases, Prefetch
from .settling import AckRule, Settling

CLOSE_S = 5.0
RETURN_S = 2.0  # how long close waits for deliveries that are still on their way
PRIORITY_MAX = 255
CLOSED = "the consumer is closed"
RETURNED = f"returned to the queue: {CLOSED}"  # what became of its messages

log = logging.getLogger("lakequeue.client")


class Consumer:
    """Receives messages from one queue; made by `Connection.consumer`. Receive from one thread at a
    time; messages may be settled from any thread.

    ack_mode: `client` (default: `ack()` also acknowledges everything received before),
    `individual`, `auto`, `dups_ok`, `pre_ack` or `no_ack`. max_backlog: the most messages leased to
    this consumer, 0 to 1,000,000; None for 1. The queue's `max_per_subscription_backlog` may be
    lower. filter: an expression; other messages go to other consumers. dups_ok_count,
    dups_ok_interval: in mode `dups_ok`, acknowledge after this many messages or this long. name:
    shown by `describe` and in events; by default the client's name. transport_ack_window: percent
    of the backlog after which arrivals are reported, 1 to 100; transport_ack_time: the same as a
    duration, `'20ms'` to `'1500ms'`. auto_renew: renew leases in the background, for at most
    auto_renew_limit per message. priority: 0 to 255, other than 0 only with `fairness_model: fast`;
    a consumer with a higher one is served first.

    replay: a future with the outcome of `replay_from`; None without one.

    Raises ConfigError for a wrong option or an unknown queue, PermissionDenied, and Timeout if the
    engine does not answer.
    """

    replay: Future[Any] | None = None

    def __init__(
        self,
        session: Session,
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
        self._rule = AckRule(ack_mode, dups_ok_count, dups_ok_interval)
        if max_backlog is not None:
            self._rule.fit(whole(max_backlog, "max_backlog", 0, BACKLOG_MAX))
        whole(priority, "priority", 0, PRIORITY_MAX)
        self._session = session
        self.queue = text_of(queue, "queue", NAME_CHARACTERS_MAX)
        self.name = session.client_name if name is None else text_of(name, "name", NAME_MAX)
        acks = "none" if ack_mode == "no_ack" else "explicit"
        self._wanted = commands.Subscribe(
            queue=self.queue, subscription="", inbox=session.inbox, name=self.name,
            max_backlog=max_backlog, filter=filter, acks=acks, framing="batch",
            transport_acks=True, priority=priority,
        )  # fmt: skip
        self._closed = False  # receives nothing more
        self._closer = 0  # the thread in which `close` is running; 0: in none
        self._is_closing = False  # it was called, and Kafka may not have taken all of it
        self._why: str | None = None  # why it was closed, if not by the application
        self._arrivals = FlowArrivals(
            transport_ack_window, transport_ack_time, session.runner.gather_ms
        )
        self._leases = Leases(auto_renew_limit, truth(auto_renew, "auto_renew"))
        self._prefetch = Prefetch(session.clock_ms, session.runner.new_lock())
        self._lock = self._prefetch.lock
        self._settling = Settling(session, self._prefetch, self._arrivals, self._rule)
        self.serving = CallbackRunner(self._settling, self._take, lambda: self._closed)
        self._subscription: Binding | None = None
        self._untouched: list[int] = []  # ids sent to a lost subscription
        try:
            self.subscribe()
        except LakequeueError:
            self._end()
            raise
        except BaseException:  # Ctrl-C
            self._end()
            if self._subscription is not None and session.is_open:
                # The engine may have bound it, and would keep messages for it.
                with contextlib.suppress(LakequeueError):
                    self._subscription.unbind()
            raise

    def subscribe(self) -> None:
        """Bind to the queue under a new subscription id. Messages held before are lost. A closed
        consumer stays closed: the session may call this late."""
        if self._closed:
            return
        session, bound = self._session, self._subscription
        if self._rule.mode == "pre_ack":
            self._settling.flush()
        if bound is not None:
            self._report_untouched(bound)
            bound.unbind()  # the engine may still know it, and must not keep messages leased to it
        with self._lock:
            new = Binding(session, self._wanted)
            self._prefetch.reset()
            self._settling.reset()
            self._arrivals.reset()
            self._subscription = self._settling.subscription = new
            session.attach_consumer(new.id, self)
        new.bind()
        if self._closed:  # meanwhile, and `close` may have ended the subscription before this one
            new.unbind()
            session.detach_consumer(new.id, self)
            return
        session.follow_if_gone(self)
        self._prefetch.remember(new.backlog)
        if bound is not None:  # the queue may allow less than when the count was checked
            self._rule.backlog = new.backlog
            return
        try:
            self._rule.fit(new.backlog)
        except ConfigError:
            self.close()
            raise

    def _report_untouched(self, bound: Binding) -> None:
        """Tell the queue's broker which messages of an ended subscription nobody has seen, so that
        they do not count as attempts (L5)."""
        self._untouched += [m.number for m in self._prefetch.take_untouched()]
        if not self._untouched:
            return
        try:
            ids = format_ranges(self._untouched)
            self._session.request(bound.about(commands.Returned, ids=ids))
        except (Moved, NotConnected):  # no broker has taken it
            raise
        except LakequeueError as error:  # the broker may have taken it: never send it twice
            self._session.report(
                f"consumer {self.name!r}: messages it never saw count as delivered: {error}"
            )
        self._untouched.clear()

    @property
    def subscription(self) -> str:
        """The id of its subscription, as `describe` shows it."""
        return self._settling.subscription.id

    @property
    def broker(self) -> int | None:
        """The number of the broker it is bound to; None until it is bound."""
        return self._settling.subscription.broker

    @property
    def is_closed(self) -> bool:
        """True once nothing more is received."""
        return self._closed or not self._session.is_open

    @property
    def has_messages(self) -> bool:
        """True if a message has arrived that was not handed over yet."""
        return self._prefetch.has_next

    # ------------------------------------------------------------ receiving

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none comes within ``timeout`` seconds.

        timeout: None waits for ever, 0 not at all. On `memory://` no call waits. Raises
        NotConnected if the consumer is closed or its queue is deleted, also while it waits;
        ConfigError for a wrong timeout.
        """
        found = self.receive_many(1, timeout)
        return found[0] if found else None

    def receive_many(self, most: int, timeout: float | None = None) -> list[Message]:
        """Up to ``most`` messages: waits up to ``timeout`` seconds for the first one, then takes
        what is already here. Returns an empty list if none comes. Raises as `receive`."""
        whole(most, "most", 0, BACKLOG_MAX)
        self.check_open()
        until = deadline_s(timeout)
        while most > 0:
            found = self._wait(max(until - time.monotonic(), 0.0))
            self.check_open()
            out = self._take([], most)
            if out or not found:  # otherwise it was returned or lost meanwhile: wait on
                return out
        return []

    def _wait(self, timeout: float | None) -> bool:
        """Wait until a message is here, or the consumer is closed; False if neither happens."""
        if self.has_messages:
            return True
        self._settling.send_before_waiting()
        return self._session.wait(lambda: self.has_messages or self._closed, timeout)

    def _take(
        self, out: list[Message], most: int, passed_over: Collection[int] = (),
        to_callback: bool = False,
    ) -> list[Message]:  # fmt: skip
        """Append up to ``most`` messages for the application. After Ctrl-C they wait here again:
        the application has not got them, and could not settle them."""
        try:
            while len(out) < most and self._prefetch.hand_over(out, passed_over):
                message = out[-1]
                self._leases.begun(message.lease_ends, message.lease_ms)
                if self._session.spans is not None:
                    self._session.spans.begin(message, self._prefetch.tracks(message))
                self._settling.handed_over(message, to_callback)
            self._settling.freshen(out)
            return out
        except BaseException:
            self._prefetch.give_back(out)
            raise

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed; on `memory://` until none is left.
        Raises NotConnected when the queue is deleted."""
        with contextlib.suppress(NotConnected):  # of `receive`, once it is closed
            while True:
                self._wait(None)
                message = self.receive(0)
                if message is not None:
                    yield message
                elif not self._session.runner.waits:
                    return
        self.check_why()

    def on_message(self, callback: Callable[[Message], Any]) -> None:
        """Call ``callback`` with each message, one after the other, in a thread of its own (C4).

        In mode `auto` a message is acknowledged when the callback returns and canceled when it
        raises; the traceback is logged. If it keeps failing, it comes again after up to a second.
        SystemExit is treated like any error. When the queue is
        deleted, the consumer is closed and an error is logged. Calling `on_message` again replaces
        the callback. Raises NotConnected if the consumer is closed, ConfigError if ``callback`` is
        not callable.

        On `memory://` the callback runs in the calling thread, for what is there and then for what
        arrives. SystemExit and KeyboardInterrupt are raised there too. A message whose callback
        failed comes again when the clock moves, or when `on_message` is called again.
        """
        self.check_open()
        self.serving.use(function_of(callback, "callback"))

    # ------------------------------------------------------------ settling

    def ack(
        self,
        ids: Iterable[str | int] | str | None = None,
        up_to: str | int | None = None,
        where: str | None = None,
    ) -> None:
        """Acknowledge by id, up to an id, or by expression (L13). Give exactly one.

        ids: message ids, or ranges as text (`'17,20-25'`). up_to: this message and all received
        before it. where: an expression over messages of the queue. Waits for the engine's answer.
        Raises ConfigError, LakequeueError, Timeout; NotConnected if the consumer is closed.
        """
        if self._settling.over is not None or not self._session.is_open:
            raise self._session.closed(self._why or CLOSED)
        self._settling.ack_named(ids, up_to, where)

    # ------------------------------------------------------------ the rest

    def set_max_backlog(self, max_backlog: int) -> None:
        """Change the backlog of this subscription (B3). max_backlog: 0 to 1,000,000.

        If more messages are leased already, delivery waits; 0 stops delivery until the next change.
        Messages beyond the new limit that were not handed over return untouched (L5). Waits for the
        engine's answer. Raises ConfigError for a wrong value, and in mode `dups_ok` for one below
        its count; LakequeueError, Timeout; NotConnected if the consumer is closed.
        """
        self.check_open()
        before, told = self._rule.backlog, None
        self._rule.fit(whole(max_backlog, "max_backlog", 0, BACKLOG_MAX))
        try:
            self._settling.flush()
            self._prefetch.remember(max_backlog)
            # It may subscribe again while the engine is asked, still with the old backlog.
            while told is not (bound := self._settling.subscription):
                bound.set_backlog(max_backlog)
                with self._lock:
                    self._wanted = msgspec.structs.replace(self._wanted, max_backlog=max_backlog)
                told = bound
        except BaseException:  # also Ctrl-C: the engine may not have the new one
            self._rule.backlog = before
            raise
        # The queue may allow less: acks that wait for more messages than that wait for ever.
        with self._lock:
            self._rule.backlog = bound.backlog
        self._send_untouched(self._prefetch.take_beyond(max_backlog))

    def close(self) -> None:
        """Send collected acks, return the rest to the queue, end the subscription.

        Waits up to 5 s for a running callback, so that its message can still be acknowledged.
        Received messages without an ack return (C3). Messages never handed over return untouched,
        which is no attempt (L5); waits up to 2 s for those still on their way. If Kafka takes none
        of this, raises NotConnected; the consumer receives nothing more, and is closed as soon as
        Kafka is back, or `close` is called again.
        """
        self.stop()
        self.close_by(deadline_s(CLOSE_S))

    def stop(self) -> None:
        """Receive nothing more: no other callback begins. `close_by` does the rest."""
        self._closed = True
        self._session.wake()

    def close_by(self, until: float) -> None:
        """See `close`, after `stop`. until: how long the running callback has (monotonic, s)."""
        if self._settling.over is not None or self._session.is_forked:
            return
        here = threading.get_ident()
        if self._closer:  # in another thread; or it waits for the callback that is running here
            if here not in (self._closer, self.serving.thread):
                self._session.wait(lambda: not self._closer, CLOSE_S + RETURN_S)
            return
        self._closer, self._is_closing = here, True
        try:
            self.serving.join(max(until - time.monotonic(), 0.0))
            if self._session.is_open:
                if self._rule.mode == "dups_ok":
                    self._settling.ack_done()
                self._settling.flush()
                self._return_untouched()
                self._settling.subscription.unbind()
            self._end()
        finally:
            self._closer = 0
            self._session.wake()

    def _return_untouched(self) -> None:
        """Return messages nobody has seen. A backlog of 0 stops delivery, and the engine's answer
        to it comes behind everything sent before."""
        session = self._session
        if self._settling.subscription.removes_on_send:
            return
        if not session.is_silent:
            try:
                self._settling.subscription.stop_delivery(RETURN_S)
            except Timeout:  # the engine is away: do not let other consumers wait for it too
                session.is_silent = True
            except NotConnected:  # what returned now would come again
                raise
            except LakequeueError:  # the queue is gone
                return
        self._send_untouched(self._prefetch.take_untouched())

    def _send_untouched(self, messages: list[Message]) -> None:
        if messages:
            bound = self._settling.subscription
            try:
                self._settling.flush()
                for ids in format_parts(m.number for m in messages):
                    bound.send(bound.about(commands.Returned, ids=ids))
            except BaseException:  # not sent: they wait here again
                self._prefetch.buffer.extend(messages)
                raise

    def _end(self, what: str = RETURNED) -> None:
        """End locally: nothing is held any more."""
        with self._lock:
            self._closed, self._settling.over = True, what
            self._prefetch.clear()
            self._settling.reset()
        if self._subscription is not None:
            self._session.detach_consumer(self._subscription.id, self)

    def kill(self) -> None:
        """Die silently, as a killed process does. A test aid for `memory://`."""
        self._session.runner.silence(self.subscription)
        self._end()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_open(self) -> None:
        """Raise NotConnected if it is closed."""
        if self._closed or not self._session.is_open:
            raise self._session.closed(self._why or CLOSED)

    def check_why(self) -> None:
        """Raise NotConnected if something other than the application closed it."""
        self._session.check_process()
        if self._why is not None:
            raise self._session.closed(self._why)

    # ------------------------------------------------------------ called by the session

    def on_record(self, record: Record) -> None:
        """Put a delivery record into the buffer, without messages seen before (C2). Called by the
        session."""
        deliveries = wire.decode_batch(record.value or b"")
        clock_ms, now_ms = self._session.clock_ms(), self._session.now_ms()
        with self._lock:
            if deliveries.subscription != self.subscription or self._settling.over is not None:
                return
            if deliveries.flow is not None:
                self._arrivals.take(deliveries.flow, len(deliveries.ids), clock_ms)
            room = self._rule.backlog - len(self._prefetch.buffer)
            new = self._prefetch.take(deliveries, self._settling, now_ms, record)
            for message in new if self._settling.subscription.removes_on_send else ():
                message.settled = True  # it has left the queue (L2)
            if self._rule.mode == "pre_ack" and not self._closed:
                # Acknowledge at most a backlog ahead; the rest is acknowledged when handed over.
                self._settling.settle_on_arrival(new[: max(room, 0)])
            if deliveries.lease_ms:
                self._leases.begun(clock_ms + deliveries.lease_ms, deliveries.lease_ms)

    def on_end(self, why: str) -> None:
        """The subscription has ended and the application did not ask for it, for example because
        its queue was deleted. Called by the session."""
        if self._closed:
            return
        self._why = f"{why}; the consumer is closed"
        self._end(f"is no longer held: {why}")
        log.error("consumer %r of queue %r: %s", self.name, self.queue, self._why)
        self._session.wake()

    def on_terms(self, terms: Answer) -> None:
        """The queue's definition has changed this subscription's backlog, or whether its messages
        are removed when they are sent (Q9). Called by the session."""
        with self._lock:
            bound = self._settling.subscription
            bound.note(terms)
            self._rule.backlog = bound.backlog
            if self._rule.mode == "dups_ok":  # it may wait for more messages than come now
                self._settling.dups_ok()

    def send_acks(self) -> None:
        """Send what was acknowledged so far, without waiting for more."""
        self._session.check_process()
        self._settling.flush()

    def tick(self) -> None:
        """Send acks that are due and look after leases. Called by the session."""
        settling = self._settling
        do_every((
            settling.dups_ok_due, settling.flush_due, settling.send_transport_ack,
            self._look_after_leases, self.serving.cancel_failed, self._close_again,
        ))  # fmt: skip

    def _close_again(self) -> None:
        """Finish a close that Kafka did not take. Its caller may have gone, as a canceled task."""
        if self._is_closing and not self._closer:
            self.close_by(time.monotonic())

    def _look_after_leases(self) -> None:
        """Renew leases that need it; hand back messages that have waited too long (L5)."""
        clock_ms = self._session.clock_ms()
        if clock_ms < self._leases.look_at:
            return
        with self._lock:
            held = [m for m in self._prefetch.held.values() if not m.settled]
            renewed, first = self._leases.look(held, self._prefetch.waiting(), clock_ms)
            for period_ms, messages in renewed.items():
                self._settling.renew(messages, period_ms)
            if first is not None:
                self._send_untouched(self._prefetch.take_untouched_from(first))

    def due(self) -> int | None:
        """When `tick` has something to do next, by the session's clock; None for nothing."""
        times = [self._arrivals.due_at(self._rule.backlog), self._settling.dups_ok_at()]
        if self._prefetch.held or self._prefetch.buffer:
            times.append(self._leases.look_at)
        return min((round(t) for t in times if t is not None), default=None)
