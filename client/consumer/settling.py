"""Settling messages: acknowledge, cancel, reject, renew, as the mode says (C4, C5, L8, L10, L11).

| mode | acknowledged | after an exception in the callback |
|---|---|---|
| auto | when the callback has returned, or as receive() hands over | canceled |
| client | by `ack()`: this one and all received before it | stays with the consumer |
| individual | by `ack()`: this one | stays with the consumer |
| dups_ok | every n messages or k ms, whichever is first | canceled |
| pre_ack | as it arrives in the client, before the callback or receive() | lost |
| no_ack | never: the engine removes it as it sends it | lost |

For `dups_ok`, 0 switches n or k off. With n=0 and k=0 it is treated as mode client, with n=1 and
k=0 as auto.

Acks are collected and sent as ranges: when they are half of the backlog, so that a consumer with a
small one does not wait for its next message, or when the first of them is `ACKS_WAIT_MS` old. Every
other command sends them first, so nothing overtakes an ack (C5).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ...protocol import ConfigError, LakequeueError, LeaseLost, commands
from ...protocol.bounds import shown
from ...protocol.checked import checked
from ...protocol.ids import (
    RANGES_A_COMMAND,
    count_ids,
    format_parts,
    format_ranges,
    parse_ranges,
    within,
)
from ..message import Lease, Message
from ..session.all_hosts import acknowledge
from ..session.session import Answer, Session
from ..values import duration_ms, id_of, ids_text, one_of, positive_ms, ranges_of
from .binding import Binding
from .prefetch import FlowArrivals, Prefetch

ACK_MODES = ("auto", "client", "individual", "dups_ok", "pre_ack", "no_ack")
DUPS_OK_COUNT = 10
ACKS_WAIT_MS = 20  # so those of a busy consumer travel together


class AckRule:
    """How a consumer acknowledges. ack_mode: one of `ACK_MODES`. count: n of dups_ok; None for 10
    or the backlog, whichever is lower. interval: k of dups_ok. 0 switches either off. Raises
    ConfigError for a wrong option."""

    def __init__(self, ack_mode: str, count: int | None, interval: str | float) -> None:
        self.mode = one_of(ack_mode, "ack_mode", ACK_MODES)
        if isinstance(count, bool) or not isinstance(count, int | None) or (count or 0) < 0:
            raise ConfigError(
                f"dups_ok_count: {shown(count)} – allowed is a number of messages, 0 for none"
            )
        self.count = count
        self.interval_ms = duration_ms(interval, "dups_ok_interval")
        if self.mode == "dups_ok" and not self.interval_ms and count in (0, 1):
            self.mode = "auto" if count else "client"
        self.backlog = 1

    @property
    def n(self) -> int:
        """After how many messages dups_ok acknowledges; 0 for never."""
        if self.count == 0:
            return 0
        return max(1, min(DUPS_OK_COUNT if self.count is None else self.count, self.backlog))

    def fit(self, backlog: int) -> None:
        """Set the backlog (C6). Raises ConfigError if n is larger: with k = 0 nothing would ever be
        acknowledged."""
        if self.mode == "dups_ok" and self.count is not None and self.count > backlog:
            raise ConfigError(
                f"dups_ok_count: {self.count} – allowed is at most the backlog, {backlog} "
                "(the lower of max_backlog and the queue's max_per_subscription_backlog)"
            )
        self.backlog = backlog


FRESH_PART = 0.9  # with less than this part of the lease left, renew when handing over


class Settling:
    """The `Holder` of one consumer's messages.

    over: what became of them when the consumer was closed for good; None before. subscription: the
    current one.
    """

    subscription: Binding

    def __init__(
        self, session: Session, prefetch: Prefetch, arrivals: FlowArrivals, rule: AckRule
    ) -> None:
        self.session = session
        self.prefetch = prefetch
        self.rule = rule
        self.over: str | None = None
        self._lock = prefetch.lock
        self._arrivals = arrivals
        self._acks: list[int] = []
        self._acks_since = 0.0  # by the session's clock, when the first of them was given
        self.working: list[Message] = []  # taken for the callback, which has not returned
        self.failed: list[Message] = []  # those that the engine has to return
        self._last_dups_ack = session.clock_ms()

    # ------------------------------------------------------------ what messages ask for

    def ack_message(self, message: Message) -> None:
        """See `Message.ack`. Collects the ack; the engine gets it with the next batch of acks."""
        if self.rule.mode in ("auto", "pre_ack", "no_ack") and not self.prefetch.holds(message):
            return
        if self._check_held(message):
            cumulative = self.rule.mode in ("client", "dups_ok")
            self.settle(self.prefetch.up_to(message.number) if cumulative else [message])

    def renew_message(self, message: Message, period: str | float | None) -> None:
        """See `Message.renew`. Until the engine answers, the client counts with the requested
        period, or with the queue's as of the subscription."""
        ms = None if period is None else positive_ms(period, "period")
        if self._check_held(message):
            self.flush()
            self.renew([message], ms)

    def give_up(
        self, message: Message, outcome: str, kind: type[commands.Command], **fields: Any
    ) -> None:
        """See `Message.cancel`, `put_back` and `reject`. The engine does not answer these commands,
        so check first that it can read the command. If it cannot be sent, hold the message again,
        behind the others."""
        command = checked(self.subscription.about(kind, ids=message.id, **fields))
        if not self._check_held(message):
            if not message.is_barrier:
                self.session.report(
                    f"message {message.id} of queue {message.queue!r} is not {outcome}: it was "
                    f"settled before that (ack_mode {self.rule.mode!r})"
                )
            return
        with self._lock:
            self.flush()
            try:
                # Before sending: on memory:// the message may be back before `send` returns.
                self.prefetch.held.pop(message.number, None)
                message.settled = True
                self.subscription.send(command)
            except BaseException:  # also Ctrl-C: it was not sent
                message.settled = False
                self.prefetch.held.setdefault(message.number, message)
                raise
            message.settle(outcome)

    def _check_held(self, message: Message) -> bool:
        """Returns False if there is nothing to settle. Raises LeaseLost if the message is known to
        be lost."""
        self.session.check_process()
        if not self.prefetch.tracks(message):
            return False
        if self.over is not None:
            raise LeaseLost(f"message {message.id} {self.over}")
        with self._lock:
            held = self.prefetch.holds(message)
            if held and not 0 < message.lease_ends <= self.session.clock_ms():
                return True
            ended = message.lease_expires_at if held else None
            if held:
                del self.prefetch.held[message.number]
                message.end_span("lost")
        if ended is None:  # without an end: the message has left the queue
            raise LeaseLost(f"message {message.id} is no longer held by this consumer")
        raise LeaseLost(f"the lease of message {message.id} ended at {ended}")

    # ------------------------------------------------------------ acks

    def settle(self, messages: Iterable[Message]) -> None:
        """Acknowledge these messages with the next acks."""
        with self._lock:
            if not self._acks:
                self._acks_since = self.session.clock_ms()
            held = self.prefetch.held
            for message in messages:
                if message.number in held:
                    self._acks.append(message.number)  # first: Ctrl-C must not lose it
                    message.settle("acknowledged")
                    del held[message.number]
            pending = len(self._acks)
        if 2 * pending >= self.rule.backlog or pending >= self.session.runner.acks_most:
            self.flush()

    def settle_on_arrival(self, messages: Iterable[Message]) -> None:
        """Mode pre_ack: acknowledge these before the application sees them (C4)."""
        for message in messages:
            if self.prefetch.tracks(message):
                message.settled = True
                self._acks.append(message.number)

    def handed_over(self, message: Message, to_callback: bool) -> None:
        """The application gets this message: acknowledge, if the mode says so. A command that
        cannot be sent now must not keep the message from the application; `Consumer.tick` tries
        again."""
        try:
            if self.rule.mode == "pre_ack" or (self.rule.mode == "auto" and not to_callback):
                self.settle([message])
            elif self.rule.mode == "dups_ok" and not to_callback:
                self.dups_ok()
        except LakequeueError as error:
            self.session.report(str(error))

    def send_before_waiting(self) -> None:
        """Send what need not wait for the next message."""
        try:
            self.dups_ok_due()
            if self.rule.mode in ("auto", "pre_ack"):
                self.flush()
        except LakequeueError as error:  # see `handed_over`
            self.session.report(str(error))

    def flush_due(self) -> None:
        """Send the collected acks if they have waited long enough."""
        if self._acks and self.session.clock_ms() - self._acks_since >= ACKS_WAIT_MS:
            self.flush()

    def flush(self) -> None:
        """Send the collected acks (C5)."""
        with self._lock:
            if not self._acks:
                return
            acks, bound = self._acks, self.subscription
            try:
                self._acks = []  # before sending: on memory:// that leads here again
                received = self._arrivals.take_report()
                for ids in format_parts(acks):
                    bound.send(bound.about(commands.Ack, ids=ids, received=received))
            except BaseException:  # not sent: with the next ones, as soon as something is due
                if self._acks is not acks:
                    self._acks = acks + self._acks
                self._acks_since = 0.0
                raise

    def reset(self) -> None:
        """Begin a new subscription: acks collected for the old one are void."""
        with self._lock:
            self._acks.clear()

    def send_transport_ack(self) -> None:
        """Send a transport ack if one is due and no ack has carried it (C1)."""
        due = self._arrivals.due_at(self.rule.backlog)
        if due is None or due > self.session.clock_ms():
            return
        with self._lock:
            received = self._arrivals.take_report()
            if received:
                bound = self.subscription
                bound.send(bound.about(commands.TransportAck, received=received))

    def ack_named(
        self, ids: Iterable[str | int] | str | None, up_to: str | int | None, where: str | None
    ) -> None:
        """Acknowledge by id, by range, up to an id, or by expression (L13)."""
        if sum(x is not None for x in (ids, up_to, where)) != 1:
            raise ConfigError("ack: give exactly one of ids, up_to, where")
        self.flush()
        texts = [] if ids is None else [ids_text(ids)]
        if up_to is not None:
            last = id_of(up_to, "up_to")
            up_to = str(last)
            texts = format_parts(message.number for message in self.prefetch.up_to(last))
        for text in texts:
            self._ack_ids(text)
        if not texts:
            bound = self.subscription
            command = bound.about(commands.Ack, up_to=up_to, where=where)
            acknowledge(self.session, command, bound.broker, None)
            self._forget_waiting(bound)

    def _forget_waiting(self, bound: Binding) -> None:
        """Drop waiting messages that the engine has acknowledged without naming them: ask which
        leases can still be renewed."""
        waiting = self.prefetch.waiting()
        for ids in format_parts(message.number for message in waiting):
            asked, command = parse_ranges(ids), bound.about(commands.Renew, ids=ids)
            renewed = self.session.request(command, broker=bound.broker)["renewed"]
            left = parse_ranges(renewed) if renewed else []
            self.prefetch.drop(
                m for m in waiting if within(m.number, asked) and not within(m.number, left)
            )

    def _ack_ids(self, text: str) -> None:
        """Acknowledge ids and ranges, whoever holds them (L13)."""
        named, bound = ranges_of(text), self.subscription
        command = bound.about(commands.Ack, ids=text)

        def heard(_: Answer) -> None:
            self.prefetch.forget(named)

        if self.prefetch.count(named) == count_ids(named):
            self.session.request(command, broker=bound.place, heard=heard)
            return  # all are here: there is nobody else to ask
        acknowledge(self.session, command, bound.broker, heard)

    # ------------------------------------------------------------ dups_ok

    def dups_ok(self) -> None:
        """Mode dups_ok: acknowledge after n messages or k ms, whichever is first (C4)."""
        n = self.rule.n
        if n and len(self.prefetch.held) >= n:
            self.ack_done()
        else:
            self.dups_ok_due()

    def dups_ok_due(self) -> None:
        """Acknowledge if k ms have passed."""
        due = self.dups_ok_at()
        if due is not None and self.session.clock_ms() >= due:
            self.ack_done()

    def dups_ok_at(self) -> float | None:
        """When k ms have passed; None if nothing waits for that."""
        interval_ms = self.rule.interval_ms
        if self.rule.mode != "dups_ok" or not interval_ms or not self.prefetch.held:
            return None
        return self._last_dups_ack + interval_ms

    def ack_done(self) -> None:
        """Acknowledge everything handed over, except what the callback is working on, or has failed
        on."""
        with self._lock:
            others = [*self.working, *self.failed]
            done = [m for m in self.prefetch.held.values() if m not in others]
        self.settle(done)
        self._last_dups_ack = self.session.clock_ms()

    # ------------------------------------------------------------ renewing

    def freshen(self, messages: Iterable[Message]) -> None:
        """Renew the leases of messages that waited long before they were handed over, so that the
        application has a whole lease."""
        clock_ms = self.session.clock_ms()
        late = [
            m
            for m in messages
            if 0 < m.lease_ends < clock_ms + m.lease_ms * FRESH_PART and self.prefetch.holds(m)
        ]
        try:
            if late:
                self.flush()
                self.renew(late, None)
        except LakequeueError as error:  # see `handed_over`
            self.session.report(str(error))

    def renew(self, messages: list[Message], period_ms: int | None) -> None:
        """Extend leases. The client counts from before it asks, so never longer than the engine."""
        clock_ms, now_ms = self.session.clock_ms(), self.session.now_ms()
        guess = self.subscription.lease_ms if period_ms is None else period_ms
        for at in range(0, len(messages), RANGES_A_COMMAND):
            some = messages[at : at + RANGES_A_COMMAND]
            before = [message.lease_state() for message in some]
            for message in some:
                if message.lease_ends and guess:
                    message.lease(guess, clock_ms, now_ms)
            on_answer = partial(self._renewed, some, before, clock_ms, now_ms)
            ids, bound = format_ranges(m.number for m in some), self.subscription
            command = bound.about(commands.Renew, ids=ids, period_ms=period_ms)
            try:
                self.session.ask(command, on_answer, bound.broker)
            except BaseException:  # also Ctrl-C: it was not sent
                self._put_back(some, before)
                raise

    def _put_back(self, messages: list[Message], leases: list[Lease]) -> None:
        with self._lock:
            for message, lease in zip(messages, leases, strict=True):
                message.restore_lease(lease)

    def _renewed(
        self, messages: list[Message], before: list[Lease], clock_ms: float, now_ms: int,
        answer: Answer,
    ) -> None:  # fmt: skip
        """Take the engine's answer: which leases go on, and for how long (L10)."""
        result = answer["result"]
        if answer["error"] is not None or result is None:
            self._put_back(messages, before)
            ids = format_ranges(m.number for m in messages)
            self.session.report(f"the lease of {shown(ids)} was not renewed: {answer['error']}")
            return
        renewed = parse_ranges(result["renewed"]) if result["renewed"] else []
        left_ms = result["lease_ms"] or 0
        with self._lock:
            for message in messages:
                if not within(message.number, renewed):
                    message.lease_ends = clock_ms  # it was over: `ack` raises LeaseLost
                elif message.lease_ends:
                    message.lease(left_ms, clock_ms, now_ms)
