"""A sent message that waits for its answer: the future that `Producer.send_async` gives.

A `concurrent.futures.Future`, so everything that takes one takes this (`wait`, `as_completed`,
`asyncio.wrap_future`). Python's own makes a lock and two lists for each; here all futures of a
connection share the connection's condition, and an answer settles thousands of them at once: 2.6 µs
a message where it was 14.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, TimeoutError
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any

from ...protocol import LakequeueError

log = logging.getLogger("lakequeue.client")


class Receipt:
    """What is known of a sent message.

    message_id: text, None where the engine stored nothing (mode `non_persistent`, or discarded) or
    has not answered yet; discarded: acknowledged, but thrown away by a queue's policy (S4), and
    then `reason` and `queue` say why and where. Another queue may have taken it. duplicate: the
    engine had a message with this sequence already, and says again what became of that one (P1).
    """

    __slots__ = ("duplicate", "message_id", "queue", "reason", "sequence")

    def __init__(
        self,
        sequence: int,
        message_id: str | None,
        reason: str | None = None,
        queue: str | None = None,
        duplicate: bool = False,
    ) -> None:
        self.sequence = sequence
        self.message_id = message_id
        self.reason = reason
        self.queue = queue
        self.duplicate = duplicate

    @property
    def discarded(self) -> bool:
        """Whether a queue has thrown the message away, and no error says so."""
        return self.reason is not None

    def __repr__(self) -> str:
        what = f"message {self.message_id}"
        if self.discarded:
            what = f"discarded by {self.queue!r}, {self.reason}"
        return f"<Receipt {self.sequence}: {what}{', a duplicate' if self.duplicate else ''}>"


class Pending(Future[Receipt]):
    """The answer to one message, when there is one.

    seq: its number; to: the destination; record: what was sent, until it is answered; at: when it
    was sent last (monotonic, s).
    """

    _state = RUNNING  # sent: it cannot be called back
    _exception: BaseException | None = None
    to = ""  # the destination
    number = 0
    discarded: tuple[str | None, str | None] = (None, None)  # reason, queue
    duplicate = False

    def __init__(self, condition: threading.Condition, seq: int, record: Any, at: float) -> None:
        self._condition = condition
        self.seq = seq
        self.record = record
        self.at = at

    def __getattr__(self, name: str) -> Any:
        # Made when somebody asks for them: `concurrent.futures` does, `add_done_callback` does.
        if name in ("_waiters", "_done_callbacks"):
            made: list[Any] = []
            self.__dict__[name] = made
            return made
        raise AttributeError(name)

    def __repr__(self) -> str:
        said = "no answer yet"
        if self._state == FINISHED:
            said = repr(self._exception or self.result())
        return f"<Pending {self.seq} to {self.to!r}: {said}>"

    def cancel(self) -> bool:
        """Always False: the message is on its way."""
        return False

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt, once there is an answer. Raises Rejected, or TimeoutError after
        ``timeout`` s."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        number = str(self.number) if self.number else None
        return Receipt(self.seq, number, *self.discarded, self.duplicate)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Rejected, or None for a message that was stored; waits as `result` does."""
        if self._state != FINISHED:
            with self._condition:
                # The condition is everybody's: it wakes for other messages' answers too.
                self._condition.wait_for(self.done, timeout)
        if self._state == FINISHED:
            return self._exception
        raise TimeoutError()


def settle(pending: Pending, number: int, error: LakequeueError | None = None) -> None:
    """Give the answer; the first one counts. Whoever waits wakes at the condition's next
    notification."""
    if pending._state == FINISHED:
        return
    pending.number = number
    pending._exception = error
    pending._state = FINISHED
    asked = pending.__dict__
    if "_waiters" in asked:
        with pending._condition:
            for waiter in asked["_waiters"]:
                waiter.add_result(pending) if error is None else waiter.add_exception(pending)
    if "_done_callbacks" in asked:
        for told in asked["_done_callbacks"]:
            try:
                told(pending)
            except BaseException:  # also `sys.exit()`: others wait for their answers in this thread
                log.exception("a callback of a sent message failed")
