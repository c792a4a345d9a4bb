"""Callbacks: one at a time, never nested (C4).

In mode `auto` a message is acknowledged when its callback returns and canceled when it raises. A
failed message is not given to the callback again before the session's clock has moved. Over Kafka
the clock always moves; on `memory://` the test moves it, so a callback that always fails cannot
block a test for ever.
"""

from __future__ import annotations

import contextlib
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from ...protocol import LeaseLost
from ..message import Message
from .settling import Settling

log = logging.getLogger("lakequeue.client")

Callback = Callable[[Message], Any]
Join = Callable[[float], None]
Serve = Callable[[Callable[[], bool], Callable[[], bool]], Join]  # see `Runner.serve`


class CallbackRunner:
    """One consumer's callback. over: tells whether the consumer is closed."""

    def __init__(self, settling: Settling, over: Callable[[], bool]) -> None:
        self._settling = settling
        self._session = settling.session
        self._prefetch = settling.prefetch
        self._mode = settling.rule.mode
        self._over = over
        self._callback: Callback | None = None
        self._calling = False
        self._failed: set[int] = set()  # ids, at the moment `_failed_at`
        self._failed_at = -1.0
        self._alone = False  # callbacks run in a thread of their own
        self._join: Join = lambda _: None

    def use(self, callback: Callback, serve: Serve | None = None) -> None:
        """Call this callback from now on; failed messages are tried once more. serve: who calls the
        first callback, by default the session's runner."""
        first, self._callback = self._callback is None, callback
        self._failed.clear()
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

    def work(self) -> bool:
        """Call the callback for each message that is here. Returns False when the consumer is
        closed."""
        if self._calling:  # on memory:// the callback itself ran the engine
            return True
        self._calling = True
        try:
            while not self._over() and (message := self.begin()) is not None:
                with self.attempt(message) as callback:
                    callback(message)
        finally:
            self._calling = False
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
        if self._failed and self._session.clock_ms() != self._failed_at:
            self._failed.clear()
        message = self._prefetch.hand_over(self._failed)
        if message is None:
            return None
        if self._session.spans is not None:
            self._session.spans.begin(message, self._prefetch.tracks(message))
        if self._mode == "pre_ack":
            self._settling.settle([message])
        elif self._mode == "dups_ok":
            self._settling.working = message
        self._settling.freshen([message])
        return message

    def _failed_on(self, message: Message, error: BaseException) -> None:
        """Log the error with its traceback; in modes `auto` and `dups_ok` cancel the message."""
        self._settling.working = None
        log.error(
            "callback failed on message %s of queue %r, delivery %d",
            message.id, message.queue, message.delivery_count, exc_info=error,
        )  # fmt: skip
        now_ms = self._session.clock_ms()
        if now_ms != self._failed_at:
            self._failed.clear()
            self._failed_at = now_ms
        self._failed.add(message.number)
        if self._mode in ("auto", "dups_ok") and self._prefetch.holds(message):
            with contextlib.suppress(LeaseLost):  # its lease ended meanwhile
                message.cancel()

    def _returned(self, message: Message) -> None:
        """The callback has returned: acknowledge, if the mode says so."""
        self._settling.working = None
        if self._mode == "auto" and self._prefetch.holds(message):
            self._settling.settle([message])
        elif self._mode == "dups_ok":
            self._settling.dups_ok()
