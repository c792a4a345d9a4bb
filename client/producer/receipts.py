"""The receipt of a sent message, and the future that `Producer.send_async` returns.

`Pending` is a `concurrent.futures.Future`, so `wait`, `as_completed` and `asyncio.wrap_future`
accept it. Python's own future makes a lock and two lists each. Here all futures of a connection
share its condition, and one answer settles thousands of them: 2.6 µs a message instead of 14.

Callbacks run in the thread that reads answers. There `result` and all calls of a connection may
wait, because that thread reads on meanwhile (`Threads.wait`). Python's own functions cannot.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from concurrent.futures._base import FINISHED, RUNNING
from dataclasses import dataclass
from typing import Any

from ...protocol import LakequeueError
from ..session.session import Session

log = logging.getLogger("lakequeue.client")
ON_DEMAND = frozenset(("_waiters", "_done_callbacks"))


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


class Pending(Future[Receipt]):
    """A sent message whose answer is pending.

    seq: its number. to: the destination. record: what was sent, kept until the answer. at: when it
    was last sent (monotonic, s). is_unwatched: nobody looks at it, so `flush` reports a refusal.
    """

    _state = RUNNING  # it has been sent, so it cannot be canceled
    _exception: BaseException | None = None
    at = 0.0
    number = 0
    is_unwatched = False
    discarded: tuple[str | None, str | None] = (None, None)  # reason, queue
    duplicate = False

    def __init__(self, session: Session, to: str, record: Any, seq: int = 0) -> None:
        self._session = session
        self.to = to
        self.record = record
        self.seq = seq

    def __getattr__(self, name: str) -> Any:
        if name == "_condition":  # another one in a forked child
            return self._session.changed
        # Made on demand: only `concurrent.futures` and `add_done_callback` use them.
        if name in ON_DEMAND:
            if name == "_waiters" and self._state != FINISHED:
                self._check_others_answer()
            made: list[Any] = []
            self.__dict__[name] = made
            return made
        raise AttributeError(name)

    def _check_others_answer(self) -> None:
        """Raise an error if Python's `wait` or `as_completed` would wait for ever here."""
        self._session.check_process()
        if self._session.runner.is_reader():
            raise LakequeueError(
                "concurrent.futures cannot wait in a message's callback: it runs in the thread "
                "that reads answers; wait with result() or flush(), or in another thread"
            )

    def __repr__(self) -> str:
        state = "no answer yet"
        if self._state == FINISHED:
            state = repr(self._exception or self.result())
        return f"<Pending {self.seq} to {self.to!r}: {state}>"

    def cancel(self) -> bool:
        """Always False: the message has been sent."""
        return False

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt, once there is an answer. Raises Rejected if the message was refused,
        TimeoutError after ``timeout`` seconds, NotConnected in a forked child."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        number = str(self.number) if self.number else None
        return Receipt(self.seq, number, *self.discarded, self.duplicate)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Rejected, or None for a stored message. Waits as `result` does."""
        if self._state != FINISHED:
            self._session.check_process()
            self._session.wait(lambda: self._state == FINISHED, timeout)
        if self._state == FINISHED:
            return self._exception
        raise TimeoutError()

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
