"""The receipt of a sent message, and the future that `Producer.send_async` returns.

One answer settles thousands of futures. Their callbacks run in the thread that reads answers, one
after the other. They may wait for other answers, see `SessionFuture`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures._base import FINISHED
from dataclasses import dataclass
from typing import Any

from ...protocol import LakequeueError
from ..session.futures import ON_DEMAND, SessionFuture
from ..session.session import Session

log = logging.getLogger("lakequeue.client")


@dataclass(slots=True, eq=False, repr=False)
class Receipt:
    """The engine's answer to a sent message.

    sequence: the producer's number of the message. message_id: text; None if the engine stored
    nothing (mode `non_persistent`, or discarded) or has not answered yet. discarded: True if a
    queue's policy dropped the message (S4); `reason` and `queue` then say why and where. Another
    queue may have stored it. duplicate: the engine already had a message with this number, and this
    is that message's receipt (P1).
    """

    sequence: int
    message_id: str | None
    reason: str | None = None
    queue: str | None = None
    duplicate: bool = False

    @property
    def discarded(self) -> bool:
        """True if a queue dropped the message without an error."""
        return self.reason is not None

    def __repr__(self) -> str:
        what = f"message {self.message_id}"
        if self.discarded:
            what = f"discarded by {self.queue!r}, {self.reason}"
        return f"<Receipt {self.sequence}: {what}{', a duplicate' if self.duplicate else ''}>"


class Pending(SessionFuture[Receipt]):
    """A sent message whose answer is pending.

    seq: its number. to: the destination. record: what was sent, kept until the answer. at: when it
    was last sent (monotonic, s). is_unwatched: nobody looks at it, so `flush` reports a refusal.
    """

    at = 0.0
    number = 0
    is_unwatched = False
    discarded: tuple[str | None, str | None] = (None, None)  # reason, queue
    duplicate = False

    def __init__(self, session: Session, to: str, record: Any, seq: int = 0) -> None:
        self._session = session  # not through `super`: that costs as much as all the rest
        self.to = to
        self.record = record
        self.seq = seq

    def __repr__(self) -> str:
        state = "no answer yet"
        if self._state == FINISHED:
            state = repr(self._exception or self.result())
        return f"<Pending {self.seq} to {self.to!r}: {state}>"

    def _value(self) -> Receipt:
        number = str(self.number) if self.number else None
        return Receipt(self.seq, number, *self.discarded, self.duplicate)

    def answer(self, number: int, error: LakequeueError | None = None) -> bool:
        """Set the answer; only the first one counts. Returns whether it is that one: `tell` has to
        be called then."""
        if self._state == FINISHED:
            return False
        self.number = number
        self._exception = error
        self._state = FINISHED
        return True


def settle(pending: Pending, number: int, error: LakequeueError | None = None) -> None:
    """Set the answer and tell of it."""
    if pending.answer(number, error):
        tell([pending])


def tell(answered: Sequence[Pending]) -> None:
    """Tell waiters and callbacks that these messages of one connection have answers. Threads in
    `result` wake at the condition's next notification."""
    if not answered:
        return
    # A thread that adds a waiter or a callback holds the condition from before it looks at the
    # state until it has added it. So each thread that saw the old state has added its own by now.
    with answered[0]._condition:
        asked = [one for one in answered if not ON_DEMAND.isdisjoint(one.__dict__)]
        for one in asked:
            failed = one._exception is not None
            for waiter in one._waiters:
                waiter.add_exception(one) if failed else waiter.add_result(one)
    _call([(callback, one) for one in asked for callback in one._done_callbacks])


_thread = threading.local()


def _call(calls: list[tuple[Callable[[Pending], Any], Pending]]) -> None:
    """Call callbacks, in this thread one after the other: those of answers that come while one of
    them waits are called after it."""
    if (running := getattr(_thread, "calls", None)) is not None:
        running.extend(calls)
        return
    running = _thread.calls = deque(calls)
    try:
        while running:
            callback, pending = running.popleft()
            try:
                callback(pending)
            except BaseException:  # also SystemExit: other answers still need this thread
                log.exception("a callback of a sent message failed")
    finally:
        del _thread.calls
