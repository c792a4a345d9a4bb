"""What has come for a consumer: the buffer of what nobody has seen, and what the application holds.

A delivery has a number of its own, the same when it is sent again: by it what comes twice is
recognised, and the application sees each delivery once (C2). What is handed over is *held*, in
order of receipt, until it is settled. What was never handed over can be returned *untouched*, which
is no attempt (L5). A message whose lease or life has ended in the buffer is dropped: the engine
gives it to somebody else, or to nobody (C6).

Transport acks of a consumer: what has arrived, and when to say so (C1, C2).

The engine numbers what it sends to a subscription. Said is the number up to which everything has
arrived, so one small command stands for many messages: when 60 % of the window (the prefetch) has
arrived or 1 s after the first that was not said yet, whichever is first. Any ack that the
application causes carries it too, so a consumer that acknowledges quickly says nothing extra.

What becomes of the leases of what is in the client (L5, L10).

The background thread looks at them. A message that waits in the buffer when most of its lease is
over is handed back *untouched*, with what waits behind it: that is no attempt, and whoever has room
gets it, with a new lease. So a worker that is long busy with one message costs those behind it
nothing. With `auto_renew` leases are renewed instead when half is over, of what waits and of what
the application works on. That stops `auto_renew_limit` after the message came, and is counted anew
from its hand-over: a callback that never returns must not keep its message for ever, nor those
behind it. What the application has then ends its lease and comes again, as without renewal; what
waits is handed back.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable

from ...protocol import ConfigError
from ...protocol.ids import Ranges
from ...protocol.outputs import Deliveries
from ..message import Holder, Message
from ..session.transport import Record
from ..values import duration_ms

SEEN_MAX = 200_000


class Prefetch:
    """One consumer's messages, under the consumer's lock. clock_ms: the session's clock."""

    def __init__(self, lock: threading.RLock, clock_ms: Callable[[], float]) -> None:
        self._lock = lock
        self._clock_ms = clock_ms
        self.buffer: deque[Message] = deque()
        self.held: dict[int, Message] = {}
        self.removes_on_send = False
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._seen_max = SEEN_MAX

    def remember(self, backlog: int) -> None:
        """How many deliveries are remembered: twice what can be on its way at least."""
        self._seen_max = max(SEEN_MAX, 2 * backlog)

    def reset(self) -> None:
        """A new subscription begins: what was held is lost. What the engine has let go of already
        (pre_ack, no_ack) stays in the buffer: it comes to nobody else."""
        with self._lock:
            mine = [m for m in self.buffer if not self.tracks(m)]
            self.buffer.clear()
            self.buffer.extend(mine)
            self._lose_held()
            self._seen.clear()

    def clear(self) -> None:
        """Nothing is here any more."""
        with self._lock:
            self.buffer.clear()
            self._lose_held()

    def _lose_held(self) -> None:
        for message in self.held.values():
            message.end_span("lost")
        self.held.clear()

    def tracks(self, message: Message) -> bool:
        """Whether the engine waits for what becomes of it."""
        return not (self.removes_on_send or message.is_barrier or message.settled)

    def holds(self, message: Message) -> bool:
        """Whether this very delivery is held; not one that came after its lease had ended."""
        return self.held.get(message.number) is message

    # ------------------------------------------------------------ coming in

    def take(self, d: Deliveries, holder: Holder, now_ms: int, record: Record) -> list[Message]:
        """Put into the buffer what was not seen before; gives that. The lease counts from now.
        record: in which they came."""
        clock_ms = self._clock_ms()
        with self._lock:
            if d.again:
                self._remember_held(d)
            seen, new, again = self._seen, [], False
            for i, number in enumerate(d.ids):
                delivery = d.numbers[i]
                if delivery in seen:
                    continue
                seen[delivery] = None
                message = Message(
                    holder, d.queue, number, delivery, d.payloads[i], d.keys[i], d.headers[i],
                    d.counts[i], d.priorities[i], d.expires[i], d.times[i], d.barrier,
                    d.dead.get(i), record.offset,
                )  # fmt: skip
                message.live(record.timestamp, clock_ms)
                if d.lease_ms:
                    message.lease(d.lease_ms, clock_ms, now_ms)
                if (before := self.held.pop(number, None)) is not None:
                    before.end_span("lost")
                again = again or message.redelivered
                new.append(message)
            if again:  # an older delivery that nobody has seen is over
                ids = {m.number for m in new}
                self._remove(m for m in self.buffer if m.number in ids and self.tracks(m))
            self.buffer.extend(new)
            while len(seen) > self._seen_max:
                seen.popitem(last=False)
            return new

    def _remember_held(self, d: Deliveries) -> None:
        """What is sent again may be held so long that it is forgotten: it is not new (C2)."""
        for number, delivery in zip(d.ids, d.numbers, strict=True):
            held = self.held.get(number)
            if held is not None and held.delivery == delivery:
                self._seen[delivery] = None

    # ------------------------------------------------------------ going out

    def is_over(self, message: Message, clock_ms: float) -> bool:
        """Whether a message that waits here is nobody's to work on any more."""
        if message.life_ends and clock_ms >= message.life_ends:
            return True
        ends = message.lease_ends
        return bool(ends) and clock_ms >= ends and self.tracks(message)

    @property
    def has_next(self) -> bool:
        """Whether something is here to be handed over."""
        with self._lock:
            buffer, clock_ms = self.buffer, self._clock_ms()
            while buffer and self.is_over(buffer[0], clock_ms):
                buffer.popleft()
            return bool(buffer)

    def hand_over(self, passed_over: Collection[int] = ()) -> Message | None:
        """The next message for the application; ids of ``passed_over`` stay where they are."""
        with self._lock:
            if not self.has_next:
                return None
            buffer, clock_ms = self.buffer, self._clock_ms()
            for at in range(len(buffer)):
                message = buffer[at]
                if message.number in passed_over or self.is_over(message, clock_ms):
                    continue
                del buffer[at]
                message.since = clock_ms
                if self.tracks(message):
                    self.held[message.number] = message
                return message
            return None

    def up_to(self, message: Message) -> list[Message]:
        """What is held up to and including this one, in order of receipt."""
        with self._lock:
            out = []
            for held in self.held.values():
                out.append(held)
                if held is message:
                    break
            return out

    def count_held(self, ranges: Ranges) -> int:
        """How many of these ids are held."""
        with self._lock:
            return sum(_within(number, ranges) for number in self.held)

    def forget(self, ranges: Ranges) -> None:
        """These ids are not held any more."""
        with self._lock:
            for number in [n for n in self.held if _within(n, ranges)]:
                del self.held[number]

    def forget_unseen(self, ranges: Ranges) -> None:
        """Nobody will see what waits here of these ids, which are ascending: they were acknowledged
        after they came."""
        with self._lock:
            self._remove(m for m in self.buffer if self.tracks(m) and _within(m.number, ranges))

    def take_untouched(self, room: int = 0) -> list[Message]:
        """Take out what the engine waits for and nobody has seen, but for the first ``room``."""
        with self._lock:
            taken = [m for m in self.buffer if self.tracks(m)][room:]
            self._remove(taken)
            return taken

    def take_untouched_from(self, first: Message) -> list[Message]:
        """Take out this one, and what waits behind it: so what comes again is in its order."""
        with self._lock:
            waiting = [m for m in self.buffer if self.tracks(m)]
            at = next((i for i, m in enumerate(waiting) if m is first), len(waiting))
            self._remove(waiting[at:])
            return waiting[at:]

    def _remove(self, messages: Iterable[Message]) -> None:
        gone = {id(m) for m in messages}
        left = [m for m in self.buffer if id(m) not in gone]
        self.buffer.clear()
        self.buffer.extend(left)


def _within(number: int, ranges: Ranges) -> bool:
    """Whether it is in one of these ranges, which are ascending."""
    at = bisect_right(ranges, number, key=lambda one: one[0])
    return at > 0 and number <= ranges[at - 1][1]


WINDOW_PERCENT = 60
TIME_MS_MIN, TIME_MS_MAX = 20, 1_500  # the engine sends again after 2 s


class FlowArrivals:
    """What has arrived in one flow. percent, time: see above; gather_ms: the least time."""

    __slots__ = ("_first_at", "_gather_ms", "_next", "_percent", "_time_ms", "_told")

    def __init__(self, percent: int, time: str | float, gather_ms: int) -> None:
        if isinstance(percent, bool) or not isinstance(percent, int) or not 1 <= percent <= 100:
            raise ConfigError(f"transport_ack_window: {percent!r} – allowed are 1 to 100 percent")
        time_ms = duration_ms(time, "transport_ack_time")
        if not TIME_MS_MIN <= time_ms <= TIME_MS_MAX:
            raise ConfigError(
                f"transport_ack_time: {time!r} – allowed are {TIME_MS_MIN}ms to {TIME_MS_MAX}ms"
            )
        self._percent, self._time_ms, self._gather_ms = percent, time_ms, gather_ms
        self.reset()

    def reset(self) -> None:
        """A new flow begins."""
        self._next = 1  # the number that is expected
        self._told = 0
        self._first_at = 0.0

    def take(self, flow: tuple[int, int], count: int, now_ms: float) -> None:
        """A record has come with ``count`` messages. What is missing before it is not passed over:
        the engine sends it again."""
        base, first = flow
        start = max(self._next, base)
        if first <= start:
            start = max(start, first + count)
        if start > self._next and self._next == self._told + 1:
            self._first_at = now_ms
        self._next = start

    def due_at(self, window: int) -> float | None:
        """When to say what has arrived, as the connection's clock counts; None: it is said."""
        untold = self._next - 1 - self._told
        if not untold:
            return None
        full = untold >= max(1, math.ceil(window * self._percent / 100))
        return self._first_at + (self._gather_ms if full else self._time_ms)

    def tell(self) -> int:
        """What to say, said from now on; 0 when there is nothing new."""
        if self._told == self._next - 1:
            return 0
        self._told = self._next - 1
        return self._told


LIMIT = "5m"
LOOK_MS_MIN = 20
LOOK_MS_MAX = 60_000
RENEWED_PART = 0.5  # of a lease that is left: `auto_renew` renews it
HANDED_BACK_PART = 0.25  # of a lease that is left: who waits is handed back


class Leases:
    """Which leases to renew, what to hand back, and when to look again. limit: of `auto_renew`;
    renews: whether it is on."""

    def __init__(self, limit: str | float, renews: bool) -> None:
        limit_ms = duration_ms(limit, "auto_renew_limit")
        if not limit_ms:
            raise ConfigError(f"auto_renew_limit: {limit!r} – allowed is a positive duration")
        self._limit_ms = limit_ms if renews else 0
        self.look_at = 0.0  # by the session's clock

    def begun(self, ends: float, period_ms: float) -> None:
        """A lease has begun, or `auto_renew` has begun to count anew: when to look at it."""
        if ends:
            part = RENEWED_PART if self._limit_ms else HANDED_BACK_PART
            self.look_at = min(self.look_at, ends - period_ms * part)

    def look(
        self, held: Iterable[Message], waiting: Iterable[Message], now_ms: float
    ) -> tuple[dict[int, list[Message]], Message | None]:
        """The messages whose lease has to be renewed now, by the period in ms; and the first of
        those that wait that has to go back."""
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
        """Whether `auto_renew` keeps it; it is put to ``renewed`` if it is time."""
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
