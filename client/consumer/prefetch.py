"""A consumer's buffer, its transport acks and its leases.

`Prefetch`. Every delivery has a number, which stays the same when it is sent again. Duplicates are
recognised by it, so the application sees each delivery once (C2). Messages handed to the
application are *held*, in order of receipt, until they are settled. Messages never handed over can
be returned *untouched*, which is no attempt (L5). A message whose lease or life ends in the buffer
is dropped (C6).

`FlowArrivals`. The engine numbers what it sends to a subscription. A transport ack names the number
up to which everything has arrived, so one small command covers many messages (C1, C2). It is sent
when 60 % of the window (the backlog) has arrived, or 1 s after the first unreported message. Any
ack of the application carries it too, so a consumer that acknowledges quickly sends nothing extra.

`Leases`. When most of a waiting message's lease is over, the message is handed back untouched, with
those behind it (L5). So a worker that is busy for long does not delay the messages behind. With
`auto_renew`, leases are renewed instead at half time, for waiting and held messages alike (L10).
Renewal stops `auto_renew_limit` after a message arrived, and again after it was handed over, so a
callback that never returns does not keep its message for ever.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from ...protocol import ConfigError
from ...protocol.ids import Ranges, within
from ...protocol.outputs import Deliveries
from ..message import Holder, Message
from ..session.transport import Record
from ..values import duration_ms, positive_ms, whole

SEEN_MAX = 200_000  # delivery numbers that are remembered
WINDOW_PERCENT = 60
TIME_MS_MIN, TIME_MS_MAX = 20, 1_500  # the engine sends again after 2 s
LIMIT = "5m"
LOOK_MS_MIN = 20
LOOK_MS_MAX = 60_000
RENEWED_PART = 0.5  # `auto_renew` renews when this part of the lease is left
HANDED_BACK_PART = 0.25  # a waiting message is handed back when this part is left


class Prefetch:
    """A consumer's messages, and the lock for all of its state. clock_ms: the session's clock."""

    def __init__(self, clock_ms: Callable[[], float], lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self._clock_ms = clock_ms
        self.buffer: deque[Message] = deque()
        self.held: dict[int, Message] = {}
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._seen_max = SEEN_MAX

    def remember(self, backlog: int) -> None:
        """Remember the numbers of at least twice as many deliveries as can be on their way."""
        self._seen_max = max(SEEN_MAX, 2 * backlog)

    def reset(self) -> None:
        """Begin a new subscription: held messages are lost. Messages the engine has already removed
        (pre_ack, no_ack) stay in the buffer, because nobody else gets them."""
        with self.lock:
            mine = [m for m in self.buffer if not self.tracks(m)]
            self.buffer.clear()
            self.buffer.extend(mine)
            self._lose_held()
            self._seen.clear()

    def clear(self) -> None:
        with self.lock:
            self.buffer.clear()
            self._lose_held()

    def _lose_held(self) -> None:
        for message in self.held.values():
            message.end_span("lost")
        self.held.clear()

    def tracks(self, message: Message) -> bool:
        """True if the engine waits for this message to be settled."""
        return not (message.is_barrier or message.settled)

    def holds(self, message: Message) -> bool:
        """True if exactly this delivery is held, not a later one of the same message."""
        return self.held.get(message.number) is message

    # ------------------------------------------------------------ coming in

    def take(self, d: Deliveries, holder: Holder, now_ms: int, record: Record) -> list[Message]:
        """Put new deliveries of a record into the buffer and return them. Leases count from now."""
        clock_ms = self._clock_ms()
        with self.lock:
            if d.again:
                self._remember_held(d)
            seen, new, again = self._seen, [], False
            for i, number in enumerate(d.ids):
                delivery = d.numbers[i]
                if delivery in seen:
                    continue
                seen[delivery] = None
                message = Message(holder, d, i, record.offset)
                message.live(record.timestamp, clock_ms)
                if d.lease_ms:
                    message.lease(d.lease_ms, clock_ms, now_ms)
                if (before := self.held.pop(number, None)) is not None:
                    before.end_span("lost")
                again = again or message.redelivered
                new.append(message)
            if again:  # it replaces an older, unseen delivery
                ids = {m.number for m in new}
                self.drop(m for m in self.buffer if m.number in ids and self.tracks(m))
            self.buffer.extend(new)
            while len(seen) > self._seen_max:
                seen.popitem(last=False)
            return new

    def _remember_held(self, d: Deliveries) -> None:
        """Mark held messages that are sent again as seen: they may have been held so long that
        their numbers were forgotten (C2)."""
        for number, delivery in zip(d.ids, d.numbers, strict=True):
            held = self.held.get(number)
            if held is not None and held.delivery == delivery:
                self._seen[delivery] = None

    # ------------------------------------------------------------ going out

    def is_over(self, message: Message, clock_ms: float) -> bool:
        """True if a message has expired or lost its lease."""
        if message.life_ends and clock_ms >= message.life_ends:
            return True
        ends = message.lease_ends
        return bool(ends) and clock_ms >= ends and self.tracks(message)

    @property
    def has_next(self) -> bool:
        """True if a message can be handed over. Drops expired messages at the front."""
        with self.lock:
            buffer, clock_ms = self.buffer, self._clock_ms()
            while buffer and self.is_over(buffer[0], clock_ms):
                buffer.popleft()
            return bool(buffer)

    def hand_over(self, out: list[Message], passed_over: Collection[int] = ()) -> bool:
        """Append the next message for the application; returns False if there is none. Messages
        with an id in ``passed_over`` stay."""
        with self.lock:
            clock_ms = self._clock_ms()
            at = self._first(passed_over, clock_ms)
            if at is None:
                return False
            message = self.buffer[at]
            message.since = clock_ms
            out.append(message)  # first, so that Ctrl-C loses it nowhere: see `give_back`
            if self.tracks(message):
                self.held[message.number] = message
            del self.buffer[at]
            return True

    def give_back(self, messages: list[Message]) -> None:
        """Put messages back in front: the application did not get them. Those that the engine
        expects back stay away if they were lost meanwhile."""
        with self.lock:
            for message in reversed(messages):
                message.end_span("given back")
                lost = self.tracks(message) and not self.holds(message)
                if not lost and message not in self.buffer:
                    self.buffer.appendleft(message)
                if self.holds(message):
                    del self.held[message.number]

    def has_besides(self, passed_over: Collection[int]) -> bool:
        """True if a message without an id in ``passed_over`` can be handed over."""
        with self.lock:
            return self._first(passed_over, self._clock_ms()) is not None

    def _first(self, passed_over: Collection[int], clock_ms: float) -> int | None:
        """Where in the buffer the next message is."""
        if not self.has_next:
            return None
        for at, message in enumerate(self.buffer):
            if message.number not in passed_over and not self.is_over(message, clock_ms):
                return at
        return None

    def up_to(self, number: int) -> list[Message]:
        """The messages that the engine waits for up to and including this one, held and waiting, in
        order of receipt; empty if it is not here."""
        with self.lock:
            out = []
            for message in filter(self.tracks, chain(self.held.values(), self.buffer)):
                out.append(message)
                if message.number == number:
                    return out
            return []

    def count(self, ranges: Ranges) -> int:
        """Count the messages here whose ids are in the ranges."""
        with self.lock:
            here = {*self.held, *(message.number for message in self.waiting())}
            return sum(within(number, ranges) for number in here)

    def forget(self, ranges: Ranges) -> None:
        """Drop what the engine has acknowledged, also messages that wait here. Called with its
        answer: later deliveries, as after a replay, are new. ranges: ascending."""
        with self.lock:
            for number in [n for n in self.held if within(n, ranges)]:
                self.held.pop(number).settle("acknowledged")
            self.drop(m for m in self.buffer if self.tracks(m) and within(m.number, ranges))

    def waiting(self) -> list[Message]:
        """The unseen messages that the engine waits for."""
        with self.lock:
            return [m for m in self.buffer if self.tracks(m)]

    def take_beyond(self, backlog: int) -> list[Message]:
        """Take out unseen messages that the engine waits for, beyond a backlog. Held messages that
        are over take no room in it."""
        with self.lock:
            clock_ms = self._clock_ms()
            held = sum(not self.is_over(m, clock_ms) for m in self.held.values())
            return self.take_untouched(max(backlog - held, 0))

    def take_untouched(self, room: int = 0) -> list[Message]:
        """Take out unseen messages that the engine waits for, except the first ``room``."""
        with self.lock:
            taken = self.waiting()[room:]
            self.drop(taken)
            return taken

    def take_untouched_from(self, first: Message) -> list[Message]:
        """Take out this message and those waiting behind it, so that they come back in order."""
        with self.lock:
            waiting = self.waiting()
            return self.take_untouched(waiting.index(first)) if first in waiting else []

    def drop(self, messages: Iterable[Message]) -> None:
        """Drop these messages, if they still wait here."""
        with self.lock:
            gone = {id(m) for m in messages}
            left = [m for m in self.buffer if id(m) not in gone]
            self.buffer.clear()
            self.buffer.extend(left)


class FlowArrivals:
    """The arrivals of one flow. percent, time: when to send a transport ack; gather_ms: the
    shortest wait for an ack that can carry it."""

    __slots__ = ("_first_at", "_gather_ms", "_next", "_percent", "_time_ms", "_told")

    def __init__(self, percent: int, time: str | float, gather_ms: int) -> None:
        whole(percent, "transport_ack_window", 1, 100)
        time_ms = duration_ms(time, "transport_ack_time")
        if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
            raise ConfigError(
                f"transport_ack_time: {time!r} – allowed are {TIME_MS_MIN}ms to {TIME_MS_MAX}ms"
            )
        self._percent, self._time_ms, self._gather_ms = percent, time_ms, gather_ms
        self.reset()

    def reset(self) -> None:
        self._next = 1  # the next number expected
        self._told = 0
        self._first_at = 0.0

    def take(self, flow: tuple[int, int], count: int, now_ms: float) -> None:
        """Count a record with ``count`` messages. A gap is not skipped: the engine sends the
        missing messages again."""
        base, first = flow
        start = max(self._next, base)
        if first <= start:
            start = max(start, first + count)
        if start > self._next and self._next == self._told + 1:
            self._first_at = now_ms
        self._next = start

    def due_at(self, window: int) -> float | None:
        """When the next transport ack is due, by the session's clock; None if all is reported."""
        unreported = self._next - 1 - self._told
        if not unreported:
            return None
        full = unreported >= max(1, math.ceil(window * self._percent / 100))
        return self._first_at + (self._gather_ms if full else self._time_ms)

    def take_report(self) -> int:
        """The number to report, which then counts as reported; 0 if there is nothing new."""
        if self._told == self._next - 1:
            return 0
        self._told = self._next - 1
        return self._told


class Leases:
    """The leases to renew, the messages to hand back, and the time of the next check. limit: of
    `auto_renew`; renews: whether it is on."""

    def __init__(self, limit: str | float, renews: bool) -> None:
        limit_ms = positive_ms(limit, "auto_renew_limit")
        self._limit_ms = limit_ms if renews else 0
        self.look_at = 0.0  # by the session's clock

    def begun(self, ends: float, period_ms: float) -> None:
        """A lease has begun, or `auto_renew` starts over: plan when to look at it."""
        if ends:
            part = RENEWED_PART if self._limit_ms else HANDED_BACK_PART
            self.look_at = min(self.look_at, ends - period_ms * part)

    def look(
        self, held: Iterable[Message], waiting: Iterable[Message], now_ms: float
    ) -> tuple[dict[int, list[Message]], Message | None]:
        """The messages whose leases are to be renewed now, by lease period in ms, and the first
        waiting message that has to go back (or None)."""
        self.look_at = now_ms + LOOK_MS_MAX
        renewed: dict[int, list[Message]] = {}
        if self._limit_ms:
            for message in held:
                self._renew(message, now_ms, renewed)
        for message in waiting:
            if self._renew(message, now_ms, renewed) or not message.lease_ends:
                continue
            goes_back = message.lease_ends - message.lease_ms * HANDED_BACK_PART
            if now_ms >= goes_back:
                return renewed, message
            self._look_at(goes_back, now_ms)
        return renewed, None

    def _renew(self, message: Message, now_ms: float, renewed: dict[int, list[Message]]) -> bool:
        """Returns True if `auto_renew` keeps the message; adds it to ``renewed`` when it is due."""
        ends, period = message.lease_ends, round(message.lease_ms)
        if not ends or period <= 0 or now_ms >= min(ends, message.since + self._limit_ms):
            return False
        if ends - now_ms <= period * RENEWED_PART:
            renewed.setdefault(period, []).append(message)
            ends = now_ms + period
        self._look_at(min(ends - period * RENEWED_PART, message.since + self._limit_ms), now_ms)
        return True

    def _look_at(self, moment: float, now_ms: float) -> None:
        self.look_at = min(self.look_at, max(moment, now_ms + LOOK_MS_MIN))
