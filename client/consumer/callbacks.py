"""Callbacks: one at a time, never nested (C4).

In mode `auto` a message is acknowledged when its callback returns and canceled when it raises. So a
message whose callback always fails comes again at once, unless its queue has a `redelivery_delay`.
It then *rests* here before the callback gets it: longer at each delivery, up to a second. Other
messages pass it. Without rests it would use a whole core, here and in the engine.

On `memory://` it rests until the session's clock has moved. The test moves it, so a callback that
always fails cannot block a test for ever.
"""

from __future__ import annotations

import logging
import threading
from asyncio import CancelledError
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from ...protocol import LeaseLost
from ..message import Message
from .settling import Settling

log = logging.getLogger("lakequeue.client")

REST_MS, REST_MS_MAX = 10, 1_000  # after the second failure, then twice as long each time
CANCELS = ("auto", "dups_ok")  # the modes in which a failed message is canceled

Callback = Callable[[Message], Any]
Take = Callable[[list[Message], int, Collection[int], bool], object]  # see `Consumer._take`
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
        self._beginning = threading.Lock()
        self.thread = 0  # in which the callback is running; 0: in none
        self._taken = settling.working  # at most one: its attempt has not ended
        self._begun = False  # the callback has got it
        self._failed: dict[int, float] = {}  # ids; until when they rest, by the session's clock
        self._to_cancel = settling.failed  # the engine does not know of them yet
        self._alone = False  # callbacks run in a thread of their own
        self._join: Join | None = None  # known once it is called

    def use(self, callback: Callback, serve: Serve | None = None) -> None:
        """Call this callback from now on; failed messages are tried once more. serve: who calls the
        first callback, by default the session's runner."""
        self._callback, self._failed = callback, {}
        if self._join is None:
            if serve is None:
                serve, self._alone = self._session.runner.serve, self._session.runner.waits
            self._join = serve(self.ready, self.work)
        else:
            self._session.wake()
            self._session.wait(lambda: True, 0)  # on memory:// this calls it now

    def join(self, timeout_s: float) -> None:
        """Wait until the running callback has returned and no more will be called."""
        if self._join is not None:
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
        here, is_mine = threading.get_ident(), False
        try:
            with self._beginning:
                if self.thread:  # on memory:// another thread, or the callback, ran the engine
                    return True
                self.thread, is_mine = here, True
            while not self._over():
                if (message := self.begin()) is not None:
                    self._attempt(message)
                elif self._alone and (rest_s := self.rest_s()):
                    self._session.wait(self._has_work, rest_s)
                else:
                    break
        finally:
            if is_mine:
                try:
                    self._end_interrupted()
                finally:
                    self.thread = 0
        return not self._over() and self._session.is_open

    def _attempt(self, message: Message) -> None:
        try:
            with self.current(message):
                self.call(message)
        except BaseException as error:  # of the application's callback
            self.failed(message, error)
        else:
            self.returned(message)

    def current(self, message: Message) -> AbstractContextManager[Any]:
        """For the time of the attempt: its span is the current one."""
        spans = self._session.spans
        return nullcontext() if spans is None else spans.current(message)

    def begin(self) -> Message | None:
        """Begin an attempt with the next message; None if there is none. After `call`, it ends with
        `failed` or `returned`."""
        self._end_interrupted()
        self._take(self._taken, 1, self._resting(), True)
        return self._taken[0] if self._taken else None

    def call(self, message: Message) -> Any:
        """Call the callback; returns its result."""
        assert self._callback is not None
        self._begun = True
        return self._callback(message)

    def _end_interrupted(self) -> None:
        """End the attempt that Ctrl-C has interrupted outside of the callback, or whose task was
        canceled before it began. A message that the callback did not get waits here again."""
        if self._taken and not self._begun:
            self._prefetch.give_back(self._taken)
        elif self._mode in CANCELS:
            self._to_cancel += self._taken
        self._ended()

    def _ended(self) -> None:
        self._taken.clear()
        self._begun = False

    def failed(self, message: Message, error: BaseException) -> None:
        """The attempt has failed: log the error with its traceback; in modes `auto` and `dups_ok`
        cancel the message.

        Every exception fails an attempt, also asyncio's CancelledError. SystemExit and
        KeyboardInterrupt are raised again, except in the runner's own thread: nobody would notice
        them there, and the next message would wait for ever.
        """
        is_ordinary = self._alone or isinstance(error, Exception | CancelledError)
        if self._begun or is_ordinary:
            self._failed[message.number] = self._session.clock_ms() + self._rest_ms(message)
            if self._mode in CANCELS:
                self._to_cancel.append(message)
            self._ended()
            log.error(
                "callback failed on message %s of queue %r, delivery %d",
                message.id, message.queue, message.delivery_count, exc_info=error,
            )  # fmt: skip
            self.cancel_failed()
        if not is_ordinary:
            raise error

    def cancel_failed(self) -> None:
        """Cancel messages whose callback failed. If Kafka does not take a cancel now, the next
        `Consumer.tick` tries again, because nobody else would settle these messages."""
        if not self._to_cancel:  # most often
            return
        with self._prefetch.lock:
            while self._to_cancel:
                message = self._to_cancel[0]
                with suppress(LeaseLost):  # its lease ended meanwhile
                    if self._prefetch.holds(message):
                        message.cancel()
                del self._to_cancel[0]

    def _rest_ms(self, message: Message) -> int:
        """How long a message rests after this failure."""
        if not self._session.runner.waits:
            return 1  # until the clock moves
        if message.delivery_count == 1:
            return 0
        return min(REST_MS << min(message.delivery_count - 2, 10), REST_MS_MAX)

    def returned(self, message: Message) -> None:
        """The callback has returned: acknowledge, if the mode says so."""
        if self._mode == "auto" and self._prefetch.holds(message):
            self._settling.settle([message])
        self._ended()
        if self._mode == "dups_ok":
            self._settling.dups_ok()
