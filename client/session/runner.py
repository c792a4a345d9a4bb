"""Runners: they do a session's background duties, each by its own clock.

Duties are: read what arrived, send acks and renewals that are due, send heartbeats, send messages
again, call callbacks. Over Kafka, `Threads` does them, and calls may wait. On `memory://`
(`memory/inline.py`) each call runs the engine first, and nothing waits.

`Threads` runs one thread that reads and does the duties, one that sends gathered messages, and one
per consumer with a callback. They hold the session weakly, so a connection that is dropped without
`close` leaves no thread behind.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from ...protocol import ConfigError, LakequeueError

log = logging.getLogger("lakequeue.client")

POLL_S = 0.05
LOOK_S = 0.5  # how soon a close in another thread is noticed
STOP_S = 2.0
PAUSE_S = 0.2  # after a failure
ACKS_MOST = 500
GATHER_MS = 50


class Duties(Protocol):
    """The part of `Session` that a runner needs; see there."""

    vpn: str
    session: str
    client_name: str
    is_open: bool
    changed: threading.Condition

    def receive(self, timeout_s: float) -> None: ...
    def upkeep(self) -> None: ...
    def due(self) -> int | None: ...
    def beat(self) -> None: ...
    def send_gathered(self) -> None: ...
    def report(self, text: str) -> None: ...
    def forked(self) -> None: ...


class Runner(Protocol):
    """One for each session; what has a body here is what most of them do.

    tag: makes the session's names unique. acks_most: how many acks are collected before they are
    sent. gather_ms: how long a transport ack waits for an ack that can carry it. waits: True if
    work goes on while nobody calls, so that waiting makes sense.
    """

    tag: str
    acks_most: int
    gather_ms: int
    waits: bool

    def new_lock(self) -> AbstractContextManager[Any]:
        """A reentrant lock, for a producer or a consumer."""
        return threading.RLock()

    def start(self, session: Duties) -> None:
        """Begin with the session's duties."""

    def stop(self) -> None:
        """End them: the session was closed."""
        return

    def now_ms(self) -> int:
        """The wall clock, epoch ms: for times that people see or give."""

    def clock_ms(self) -> float:
        """A monotonic clock in ms: leases and intervals are counted by it."""

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition for at most ``timeout`` seconds (None: for ever); returns whether it
        holds."""

    def is_reader(self) -> bool:
        """True in the thread that reads answers: only `wait` may wait there."""
        return False

    def sent(self) -> None:
        """Something was sent to the engine. Where a thread gets the answers, nothing is to do."""
        return

    def gathering(self) -> None:
        """Send the messages that producers have gathered."""

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """Call ``work`` now and whenever it is ``ready``, until it returns False.

        Returns a function that waits for the end of that, at most so many seconds.
        """

    def session_of(self, subscription: str) -> str | None:
        """A session of its own for a subscription, whose heartbeats keep it alive; None: the
        connection's session does."""
        return None

    def ended(self, subscription: str) -> None:
        """A subscription needs no heartbeats any more."""
        return

    def silence(self, subscription: str) -> None:
        """Stop a subscription's heartbeats, as when its process is killed. A test aid."""
        raise ConfigError("kill: works on memory:// only; over Kafka, kill the process")


_sessions: weakref.WeakSet[Duties] = weakref.WeakSet()


def end_in_children(session: Duties) -> None:
    """Close this session in every child that this process forks: see `Duties.forked`."""
    _sessions.add(session)


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Threads(Runner):
    """The `Runner` over Kafka: background threads."""

    acks_most = ACKS_MOST
    gather_ms = GATHER_MS
    waits = True

    def __init__(self) -> None:
        self.tag = uuid4().hex[:8]
        self._gathered = threading.Event()  # a producer has messages to send
        self._reader: threading.Thread | None = None
        self._session: weakref.ref[Duties]

    def start(self, session: Duties) -> None:
        """See `Runner.start`: starts the two threads, which hold the session weakly."""
        gathered = self._gathered
        # When the session is dropped, wake the waiting thread so that it ends.
        self._session = weakref.ref(session, lambda _: gathered.set())
        end_in_children(session)
        name = f"lakequeue-{session.client_name}"
        self._reader = threading.Thread(target=_read, args=(self._session,), daemon=True, name=name)
        self._reader.start()
        threading.Thread(
            target=_gather, args=(self._session, gathered), daemon=True, name=f"{name}-gather"
        ).start()

    def stop(self) -> None:
        """See `Runner.stop`. Waits up to `STOP_S` for the reader thread."""
        self._gathered.set()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=STOP_S)

    def now_ms(self) -> int:
        return round(time.time() * 1000)

    def clock_ms(self) -> float:
        return time.monotonic() * 1000

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """See `Runner.wait`. If the reader thread itself waits (in a future's callback), it goes on
        with its duties."""
        session = self._session()
        if session is None:
            return condition()
        if self.is_reader():
            deadline = None if timeout is None else time.monotonic() + timeout
            while not condition() and session.is_open:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                _read_once(session)
            return condition()
        with session.changed:
            session.changed.wait_for(lambda: condition() or not session.is_open, timeout)
            return condition()

    def is_reader(self) -> bool:
        return threading.current_thread() is self._reader

    def gathering(self) -> None:
        """See `Runner.gathering`: wakes the thread that sends."""
        self._gathered.set()

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """See `Runner.serve`: in a thread of its own, which ends with the session."""

        def run() -> None:
            while _worked(self._session, work):
                self.wait(ready, LOOK_S)

        thread = threading.Thread(target=run, daemon=True, name="lakequeue-callbacks")
        thread.start()

        def join(timeout: float) -> None:
            if self.is_reader():  # the callback may wait for an answer
                self.wait(lambda: not thread.is_alive(), timeout)
            elif thread is not threading.current_thread():
                thread.join(timeout)

        return join


def _worked(reference: weakref.ref[Duties], work: Callable[[], bool]) -> bool:
    """Do some work; returns whether to go on. A failure to reach Kafka does not end a consumer."""
    try:
        return work()
    except Exception as error:  # Kafka's, or a callback's: logged once, then tried again
        session = reference()
        if session is None or not session.is_open:
            return False
        _report(session, error)
        return True


def _report(session: Duties, error: Exception) -> None:
    if isinstance(error, LakequeueError):
        session.report(str(error))
    else:
        log.error("a background duty of the connection failed", exc_info=error)
    time.sleep(PAUSE_S)


def _read(reference: weakref.ref[Duties]) -> None:
    """The thread that reads; it ends when the session is closed or dropped."""
    while (session := reference()) is not None and session.is_open:
        _read_once(session)
        del session


def _read_once(session: Duties) -> None:
    for duty in (partial(session.receive, POLL_S), session.upkeep, session.beat):
        _do(duty, session)


def _gather(reference: weakref.ref[Duties], gathered: threading.Event) -> None:
    """The thread that sends gathered messages."""
    gathered.wait()
    while (session := reference()) is not None and session.is_open:
        gathered.clear()
        _do(session.send_gathered, session)
        del session
        gathered.wait()


def _do(duty: Callable[[], None], session: Duties) -> None:
    try:
        duty()
    except Exception as error:  # the other duties, and later ones, must go on
        if session.is_open:
            _report(session, error)
