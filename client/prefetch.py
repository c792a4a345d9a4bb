"""What has come for a consumer: the buffer of what nobody has seen, and what the application holds.

A delivery has a number of its own, the same when it is sent again: by it what comes twice is
recognised, and the application sees each delivery once (C2). What is handed over is *held*, in
order of receipt, until it is settled. What was never handed over can be returned *untouched*, which
is no attempt (L5). A message whose lease or life has ended in the buffer is dropped: the engine
gives it to somebody else, or to nobody (C6).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable

from ..protocol.ids import Ranges
from ..protocol.outputs import Deliveries
from .message import Holder, Message
from .transport import Record

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
