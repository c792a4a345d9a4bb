"""Consumers: receive messages and settle them (C1–C7, L5, L8, L10, L11, L13).

A consumer is one subscription (`binding`). Deliveries come into its buffer (`prefetch`); what
the application was given is settled (`settling`) as its mode says (`acking`); callbacks are
called in `callbacks`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from ...protocol import ConfigError, LakequeueError, Timeout, wire
from ...protocol.bounds import BACKLOG_MAX, NAME_CHARACTERS_MAX
from ...protocol.duties import do_every
from ...protocol.errors import Moved
from ...protocol.ids import format_parts, format_ranges
from ..message import Message
from ..session.requests import NAME_MAX
from ..session.session import Session
from ..session.transport import Record
from ..values import function_of, text_of, truth, wait_s, whole
from .binding import Binding, Wanted
from .callbacks import CallbackRunner
from .prefetch import LIMIT, WINDOW_PERCENT, FlowArrivals, Leases, Prefetch
from .settling import Settling, ack_rule

CLOSE_S = 5.0
RETURN_S = 2.0  # how long a close waits for what is still on its way here
PRIORITY_MAX = 255
CLOSED = "the consumer is closed"
RETURNED = f"returned to the queue: {CLOSED}"  # what became of its messages

log = logging.getLogger("lakequeue.client")


class Consumer:
    """Receives from one queue; made by `Connection.consumer`. One thread at a time, except that
    messages may be settled from any thread.

    ack_mode: `client`, the default, is cumulative: `ack()` acknowledges all that was received
    before, too; see `acking` for the others. replay: what became of the replay that it was made
    with (`replay_from`); None where there was none.
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
        self._rule = ack_rule(ack_mode, dups_ok_count, dups_ok_interval)
        if max_backlog is not None:
            self._rule.fit(whole(max_backlog, "max_backlog", 0, BACKLOG_MAX))
        whole(priority, "priority", 0, PRIORITY_MAX)
        self._session = session
        self.queue = text_of(queue, "queue", NAME_CHARACTERS_MAX)
        self.ack_mode = ack_mode
        self.name = session.client_name if name is None else text_of(name, "name", NAME_MAX)
        acks = "none" if ack_mode == "no_ack" else "explicit"
        self._wanted = Wanted(self.name, max_backlog, filter, acks, priority)
        self._lock = threading.RLock()
        self._closed = False  # nothing is received any more
        self._closing = False  # a call of `close` is at work
        self._ended: str | None = None  # nothing is settled any more: what became of its messages
        self._why: str | None = None  # it was not the application that closed it
        self._arrivals = FlowArrivals(
            transport_ack_window, transport_ack_time, session.runner.gather_ms
        )
        self._leases = Leases(auto_renew_limit, truth(auto_renew, "auto_renew"))
        self._prefetch = Prefetch(self._lock, session.clock_ms)
        self._settling = Settling(
            session, self._lock, self._prefetch, self._arrivals, self._rule, lambda: self._ended
        )
        self.serving = CallbackRunner(
            session, self._prefetch, self._settling, self._rule, lambda: self._closed
        )
        self._subscription: Binding | None = None
        self._untouched: list[int] = []  # ids that a lost subscription was sent
        try:
            self.subscribe()
        except BaseException:
            self._end()
            raise

    def subscribe(self) -> None:
        """Bind to the queue under a new subscription id; what was held before is lost. Closed, it
        stays closed: a session that was lost may come upon it later."""
        if self._closed:
            return
        session, bound = self._session, self._subscription
        if self._rule.mode == "pre_ack":
            self._settling.flush()
        if bound is not None:
            self._report_untouched(bound)
            bound.unbind()  # it may live on after all: nothing may stay leased to it
        with self._lock:
            new = Binding(session, self.queue, self._wanted)
            self._prefetch.reset()
            self._prefetch.removes_on_send = new.removes_on_send
            self._settling.reset()
            self._arrivals.reset()
            self._subscription = self._settling.subscription = new
            session.attach_consumer(new.id, self)
        new.bind()
        session.follow_if_gone(self)
        self._prefetch.removes_on_send = new.removes_on_send
        self._prefetch.remember(new.backlog)
        try:
            self._rule.fit(new.backlog)
        except ConfigError:
            self.close()
            raise

    def _report_untouched(self, bound: Binding) -> None:
        """What was sent to a subscription that has ended, and nobody has seen, was no attempt (L5):
        say so to the broker that has it now, before that gives it to anybody."""
        self._untouched += [m.number for m in self._prefetch.take_untouched()]
        if not self._untouched:
            return
        try:
            self._session.request(bound.untouched(format_ranges(self._untouched)))
        except Moved:  # the queue is on its way: nobody has heard it
            raise
        except LakequeueError as error:  # whether it was heard is not known: it is said once
            self._session.report(f"what waited for consumer {self.name!r} counts: {error}")
        self._untouched.clear()

    @property
    def subscription(self) -> str:
        """The id of its subscription, as `describe` shows it."""
        return self._settling.subscription.id

    @property
    def broker(self) -> int | None:
        """The number of the broker with which it is bound; None until it is."""
        return self._settling.subscription.broker

    @property
    def is_closed(self) -> bool:
        """Whether nothing is received any more."""
        return self._closed

    @property
    def has_messages(self) -> bool:
        """Whether a message is here that was not handed over yet."""
        return self._prefetch.has_next

    # ------------------------------------------------------------ receiving

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there is none within ``timeout`` seconds (None: for ever;
        on ``memory://`` no call waits). Raises NotConnected when the consumer is closed, or its
        queue deleted, also meanwhile."""
        found = self.receive_many(1, timeout)
        return found[0] if found else None

    def receive_many(self, most: int, timeout: float | None = None) -> list[Message]:
        """At most ``most`` messages: waits for the first, takes what is there of the rest."""
        timeout = wait_s(timeout)
        whole(most, "most", 0, BACKLOG_MAX)
        self.check_open()
        out: list[Message] = []
        if most > 0:
            self._wait(timeout)
            self.check_open()
        while len(out) < most and (message := self._hand_over()) is not None:
            out.append(message)
        self._settling.freshen(out)
        return out

    def _wait(self, timeout: float | None) -> None:
        """Wait until a message is here, or the consumer is closed."""
        if not self.has_messages:
            self._send_acks()
            self._session.wait(lambda: self.has_messages or self._closed, timeout)

    def _send_acks(self) -> None:
        self._settling.dups_ok_due()
        if self._rule.mode in ("auto", "pre_ack"):
            self._settling.flush()

    def _hand_over(self) -> Message | None:
        message = self._prefetch.hand_over()
        if message is None:
            return None
        self._leases.begun(message.lease_ends, message.lease_ms)
        if self._session.spans is not None:
            self._session.spans.begin(message, self._prefetch.tracks(message))
        if self._rule.mode in ("auto", "pre_ack"):
            self._settling.settle([message])
        elif self._rule.mode == "dups_ok":
            self._settling.dups_ok()
        return message

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed; on ``memory://`` while there are.
        Raises NotConnected when its queue is deleted."""
        while not self._closed:
            self._wait(None)
            if self._closed:
                break
            message = self.receive(0)
            if message is not None:
                yield message
            elif not self._session.runner.waits:
                return
        self.check_why()

    def on_message(self, callback: Callable[[Message], Any]) -> None:
        """Call ``callback`` for each message, one after the other, in a thread of its own (C4).

        In mode `auto` the message is acknowledged when the callback returns, canceled when it
        raises; the traceback is logged. `sys.exit()` is an error like any: the thread goes on with
        the next message. When the queue is deleted the consumer is closed, and an error logged.
        On ``memory://`` the callback runs at once for what is there, and for what comes as it
        comes, and `sys.exit()` or Ctrl-C are raised there too; a message on which it failed comes
        again when the clock moves, or `on_message` is called again. Called again, it replaces the
        callback.
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
        """Acknowledge by id, by range, up to an id, or by filter (L13). Exactly one is given."""
        if self._ended is not None or not self._session.is_open:
            raise self._session.closed(self._why or CLOSED)
        self._settling.ack_named(ids, up_to, where)

    # ------------------------------------------------------------ the rest

    def set_max_backlog(self, max_backlog: int) -> None:
        """Change this subscription's backlog (B3); below what it holds, delivery waits; with 0
        nothing is delivered until it is changed again. What was prefetched beyond it, and never
        handed over, returns untouched (L5)."""
        self.check_open()
        before = self._rule.backlog
        self._rule.fit(whole(max_backlog, "max_backlog", 0, BACKLOG_MAX))
        try:
            self._settling.flush()
            self._settling.subscription.set_backlog(max_backlog)
        except BaseException:
            self._rule.backlog = before
            raise
        self._wanted = self._wanted.with_backlog(max_backlog)
        self._hand_back(max(max_backlog - len(self._prefetch.held), 0))

    def close(self) -> None:
        """Send what is acknowledged, return the rest to the queue, end the subscription.

        Waits up to 5 s for a callback that runs, so that its message can still be acknowledged.
        What was received and not acknowledged returns (C3); what was never handed over returns
        untouched: that is no attempt (L5). For what is still on its way here it waits up to 2 s.
        Where something of that cannot be said to Kafka it raises that, receives nothing any more,
        and can be called again.
        """
        if self._ended is not None or self._closing:
            return
        self._closed = self._closing = True
        try:
            self._session.wake()
            self.serving.join(CLOSE_S)
            if self._session.is_open:
                if self._rule.mode == "dups_ok":
                    self._settling.ack_done()
                self._settling.flush()
                self._return_untouched()
                self._settling.subscription.unbind()
            self._end()
        finally:
            self._closing = False

    def _return_untouched(self) -> None:
        """Return what nobody has seen. With a backlog of 0 nothing more is sent, and the answer to
        that comes behind all that was sent before."""
        session = self._session
        if self._prefetch.removes_on_send:
            return
        if not session.is_silent:
            try:
                self._settling.subscription.set_backlog(0, RETURN_S)
            except Timeout:  # the engine is away: other consumers need not wait for it too
                session.is_silent = True
            except LakequeueError:  # the queue is gone
                return
        self._hand_back(0)

    def _hand_back(self, room: int) -> None:
        untouched = self._prefetch.take_untouched(room)
        self._say_untouched(untouched)

    def _say_untouched(self, messages: list[Message]) -> None:
        if messages:
            self._settling.flush()
            for ids in format_parts(m.number for m in messages):
                self._settling.subscription.hand_back(ids)

    def _end(self, what: str = RETURNED) -> None:
        """The subscription is over: what was held here is not any more."""
        with self._lock:
            self._closed, self._ended = True, what
            self._prefetch.clear()
            self._settling.reset()
        if self._subscription is not None:
            self._session.detach_consumer(self._subscription.id, self)

    def kill(self) -> None:
        """On ``memory://`` only: die silently, as a killed process does. A test aid."""
        self._session.silence(self.subscription)
        self._end()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_open(self) -> None:
        """Raise NotConnected once it is closed."""
        if self._closed or not self._session.is_open:
            raise self._session.closed(self._why or CLOSED)

    def check_why(self) -> None:
        """Raise NotConnected if it was not the application that closed it."""
        if self._why is not None:
            raise self._session.closed(self._why)

    # ------------------------------------------------------------ called by the session

    def on_record(self, record: Record) -> None:
        """A delivery record: into the buffer, without what was seen already (C2)."""
        deliveries = wire.decode_batch(record.value or b"")
        clock_ms, now_ms = self._session.clock_ms(), self._session.now_ms()
        with self._lock:
            if deliveries.subscription != self.subscription or self._ended is not None:
                return
            if deliveries.flow is not None:
                self._arrivals.take(deliveries.flow, len(deliveries.ids), clock_ms)
            room = self._rule.backlog - len(self._prefetch.buffer)
            new = self._prefetch.take(deliveries, self._settling, now_ms, record)
            if self._rule.mode == "pre_ack" and not self._closed:
                # At most a backlog of it waits here; the rest is acknowledged as it is handed over.
                self._settling.settle_on_arrival(new[: max(room, 0)])
            if deliveries.lease_ms:
                self._leases.begun(clock_ms + deliveries.lease_ms, deliveries.lease_ms)

    def on_end(self, why: str) -> None:
        """The subscription is over, and nobody here has asked for that: its queue was deleted."""
        if self._closed:
            return
        self._why = f"{why}; the consumer is closed"
        self._end(f"is no longer held: {why}")
        log.error("consumer %r of queue %r: %s", self.name, self.queue, self._why)
        self._session.wake()

    def tick(self) -> None:
        """Called by the session now and then: acks that are due are sent, leases looked after."""
        settling = self._settling
        do_every((
            settling.dups_ok_due, settling.flush, settling.say_what_arrived,
            self._look_after_leases,
        ))  # fmt: skip

    def _look_after_leases(self) -> None:
        """Renew what is to be renewed; hand back what waits here for too long (L5)."""
        clock_ms = self._session.clock_ms()
        if clock_ms < self._leases.look_at:
            return
        with self._lock:
            held = [m for m in self._prefetch.held.values() if not m.settled]
            waiting = [m for m in self._prefetch.buffer if self._prefetch.tracks(m)]
            renewed, first = self._leases.look(held, waiting, clock_ms)
            for period_ms, messages in renewed.items():
                self._settling.renew(messages, period_ms)
            if first is not None:
                self._say_untouched(self._prefetch.take_untouched_from(first))

    def due(self) -> int | None:
        """When the next duty of `tick` is due, by the session's clock; None: none is."""
        times = [self._arrivals.due_at(self._rule.backlog), self._settling.dups_ok_at()]
        if self._prefetch.held or self._prefetch.buffer:
            times.append(self._leases.look_at)
        return min((round(t) for t in times if t is not None), default=None)

    def forked(self) -> None:
        """Closed: this is a forked child."""
        self._closed, self._ended = True, RETURNED
