"""The receipt of a sent message, and the future that `Producer.send_async` returns.

`Pending` is a `concurrent.futures.Future`, so `wait`, `as_completed` and `asyncio.wrap_future`
accept it. Python's own future makes a lock and two lists each. Here all futures of a connection
share its condition, and one answer settles thousands of them: 2.6 µs a message instead of 14.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, TimeoutError
from concurrent.futures._base import FINISHED, RUNNING
from dataclasses import dataclass
from typing import Any

from ...protocol import LakequeueError

log = logging.getLogger("lakequeue.client")
ON_DEMAND = frozenset(("_waiters", "_done_callbacks"))


@dataclass(slots=True, eq=False, repr=False)
class Receipt:
    """What the engine answered to a sent message.

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

    def __init__(self, condition: threading.Condition, to: str, record: Any, seq: int = 0) -> None:
        self._condition = condition
        self.to = to
        self.record = record
        self.seq = seq

    def __getattr__(self, name: str) -> Any:
        # Made on demand: only `concurrent.futures` and `add_done_callback` use them.
        if name in ON_DEMAND:
            made: list[Any] = []
            self.__dict__[name] = made
            return made
        raise AttributeError(name)

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
        TimeoutError after ``timeout`` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        number = str(self.number) if self.number else None
        return Receipt(self.seq, number, *self.discarded, self.duplicate)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Rejected, or None for a stored message. Waits as `result` does."""
        if self._state != FINISHED:
            with self._condition:
                # The condition is shared: it also wakes for other messages' answers.
                self._condition.wait_for(self.done, timeout)
        if self._state == FINISHED:
            return self._exception
        raise TimeoutError()


def settle(pending: Pending, number: int, error: LakequeueError | None = None) -> None:
    """Set the answer; only the first one counts. Waiting threads wake at the condition's next
    notification."""
    settle_all([(pending, number, error)])


def settle_all(answers: Sequence[tuple[Pending, int, LakequeueError | None]]) -> None:
    """The same for several messages of one connection."""
    new = [answer for answer in answers if answer[0]._state != FINISHED]
    if not new:
        return
    for pending, number, error in new:
        pending.number = number
        pending._exception = error
        pending._state = FINISHED
    # A thread that adds a waiter or a callback holds the condition from before it looks at the
    # state until it has added it. So each thread that saw the old state has added its own by now.
    with new[0][0]._condition:
        asked = [answer for answer in new if not ON_DEMAND.isdisjoint(answer[0].__dict__)]
        for pending, _, error in asked:
            for waiter in pending._waiters:
                waiter.add_result(pending) if error is None else waiter.add_exception(pending)
    for pending, _, _ in asked:
        for callback in pending._done_callbacks:
            try:
                callback(pending)
            except BaseException:  # also SystemExit: other messages' answers still need this thread
                log.exception("a callback of a sent message failed")
