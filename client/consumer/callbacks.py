"""Callbacks: one at a time, never nested (C4).

In mode `auto` a message is acknowledged when its callback returns and canceled when it raises. So a
message whose callback always fails comes again at once, unless its queue has a `redelivery_delay`.
It then *rests* here before the callback gets it: longer at each delivery, up to a second. Other
messages pass it. Without rests it would use a whole core, here and in the engine.

On `memory://` it rests until the session's clock has moved. The test moves it, so a callback that
always fails cannot block a test for ever.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from typing import Any

from ...protocol import LakequeueError, LeaseLost
from ..message import Message
from .settling import Settling

log = logging.getLogger("lakequeue.client")

REST_MS, REST_MS_MAX = 10, 1_000  # after the second failure, then twice as long each time

Callback = Callable[[Message], Any]
Take = Callable[[int, Collection[int], bool], list[Message]]  # see `Consumer._take`
Join = Callable[[float], None]
Serve = Callable[[Callable[[], bool], Callable[[], bool]], Join]  # see `Runner.serve`


class CallbackRunner:
    """One consumer's callback. take: takes messages out of the buffer. over: tells whether the
    consumer is closed."""

    def __init__(self, settling: Settling, take: Take, over: Callable[[], bool]) -> None:
        self._settling = settling
        self._take = take
        self._session = settling.session
        self._prefetch = settling.prefetch
        self._mode = settling.rule.mode
        self._over = over
        self._callback: Callback | None = None
        self.thread = 0  # in which the callback is running; 0: in none
        self._failed: dict[int, float] = {}  # ids; until when they rest, by the session's clock
        self._to_cancel: list[Message] = []  # failed ones that the engine does not know of yet
        self._alone = False  # callbacks run in a thread of their own
        self._join: Join = lambda _: None

    def use(self, callback: Callback, serve: Serve | None = None) -> None:
        """Call this callback from now on; failed messages are tried once more. serve: who calls the
        first callback, by default the session's runner."""
        first, self._callback = self._callback is None, callback
        self._failed = {}
        if first:
            if serve is None:
                serve, self._alone = self._session.runner.serve, self._session.runner.waits
            self._join = serve(self.ready, self.work)
        else:
            self._session.wake()
            self._session.wait(lambda: True, 0)  # on memory:// this calls it now

    def join(self, timeout_s: float) -> None:
        """Wait until the running callback has returned and no more will be called."""
        self._join(timeout_s)

    def ready(self) -> bool:
        return self._prefetch.has_next or self._over()

    def _has_work(self) -> bool:
        """Like `ready`, without the messages that rest."""
        return self._prefetch.has_besides(self._resting()) or self._over()

    def rest_s(self) -> float:
        """How long to wait if all messages here rest; 0 if one does not, or none is here."""
        resting = self._resting()
        if not resting or not self._prefetch.has_next or self._prefetch.has_besides(resting):
            return 0.0
        return max(min(resting.values()) - self._session.clock_ms(), 0.0) / 1000

    def _resting(self) -> dict[int, float]:
        """The failed messages that the callback does not get yet, and until when."""
        if self._failed:
            clock_ms = self._session.clock_ms()
            self._failed = {n: until for n, until in self._failed.items() if until > clock_ms}
        return self._failed

    def work(self) -> bool:
        """Call the callback for each message that is here. Returns False when the consumer is
        closed."""
        if self.thread:  # on memory:// the callback itself ran the engine
            return True
        self.thread = threading.get_ident()
        try:
            while not self._over():
                if (message := self.begin()) is not None:
                    with self.attempt(message) as callback:
                        callback(message)
                elif self._alone and (rest_s := self.rest_s()):
                    self._session.wait(self._has_work, rest_s)
                else:
                    break
        finally:
            self.thread = 0
        return not self._over() and self._session.is_open

    @contextlib.contextmanager
    def attempt(self, message: Message) -> Iterator[Callback]:
        """Yields the callback for this message; leaving the block ends the attempt.

        Every exception fails the attempt, also asyncio's CancelledError. SystemExit and
        KeyboardInterrupt are raised again, except in the runner's own thread: nobody would notice
        them there, and the next message would wait for ever.
        """
        assert self._callback is not None
        spans = self._session.spans
        try:
            with nullcontext() if spans is None else spans.current(message):
                yield self._callback
        except BaseException as error:  # of the application's callback
            self._failed_on(message, error)
            if not isinstance(error, Exception | CancelledError) and not self._alone:
                raise
        else:
            self._returned(message)

    def begin(self) -> Message | None:
        """The next message for a callback; None if there is none."""
        taken = self._take(1, self._resting(), True)
        return taken[0] if taken else None

    def _failed_on(self, message: Message, error: BaseException) -> None:
        """Log the error with its traceback; in modes `auto` and `dups_ok` cancel the message."""
        self._settling.working = None
        log.error(
            "callback failed on message %s of queue %r, delivery %d",
            message.id, message.queue, message.delivery_count, exc_info=error,
        )  # fmt: skip
        self._failed[message.number] = self._session.clock_ms() + self._rest_ms(message)
        if self._mode in ("auto", "dups_ok"):
            self._to_cancel.append(message)
            self.cancel_failed()

    def cancel_failed(self) -> None:
        """Cancel messages whose callback failed. If Kafka does not take a cancel now, the next
        `Consumer.tick` tries again, because nobody else would settle these messages."""
        if not self._to_cancel:  # most often
            return
        with self._prefetch.lock:
            failed, self._to_cancel = self._to_cancel, []
            for at, message in enumerate(failed):
                try:
                    if self._prefetch.holds(message):
                        message.cancel()
                except LeaseLost:  # its lease ended meanwhile
                    continue
                except LakequeueError:
                    self._to_cancel += failed[at:]
                    raise

    def _rest_ms(self, message: Message) -> int:
        """How long a message rests after this failure."""
        if not self._session.runner.waits:
            return 1  # until the clock moves
        if message.delivery_count == 1:
            return 0
        return min(REST_MS << min(message.delivery_count - 2, 10), REST_MS_MAX)

    def _returned(self, message: Message) -> None:
        """The callback has returned: acknowledge, if the mode says so."""
        self._settling.working = None
        if self._mode == "auto" and self._prefetch.holds(message):
            self._settling.settle([message])
        elif self._mode == "dups_ok":
            self._settling.dups_ok()
