"""Who does a session's duties, and by which clock: what else Kafka and memory differ in.

Duties are reading what came in, acks and renewals that are due, heartbeats, messages to be sent
again, callbacks. Over Kafka threads do them (`threads`), and a call may wait. In memory nobody does
unless somebody calls: each call runs the engine first, and none waits (`lakequeue.memory`).

The runner over Kafka: a thread reads and keeps up, one sends what is gathered, one for each
consumer with a callback calls it.

The threads know their session weakly: a connection that is forgotten without a close leaves none
of them behind.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol
from uuid import uuid4

from ...protocol import ConfigError, LakequeueError


class Duties(Protocol):
    """What a runner asks of a session."""

    client_name: str
    is_open: bool
    changed: threading.Condition

    def receive(self, timeout_s: float) -> None:
        """Take what came in, waiting at most so long for it."""
        ...

    def upkeep(self) -> None:
        """Do what is due."""
        ...

    def due(self) -> int | None:
        """When `upkeep` has something to do next, by the runner's clock; None: nothing."""
        ...

    def beat(self) -> None:
        """Heartbeats, where they are this session's own affair."""
        ...

    def send_gathered(self) -> None:
        """Send what producers have gathered."""
        ...

    def report(self, text: str) -> None:
        """Something that the application should hear of."""
        ...

    def forked(self) -> None:
        """This is a forked child: nothing works here any more."""
        ...


class Runner(Protocol):
    """One for each session.

    tag: makes the session's names unlike all others'; acks_most: how many acks are collected before
    they are sent; gather_ms: how long a transport ack waits for an ack that can carry it; waits:
    whether things happen while nobody calls, so that it makes sense to wait for them.
    """

    tag: str
    acks_most: int
    gather_ms: int
    waits: bool

    def start(self, session: Duties) -> None:
        """Begin with the session's duties."""
        ...

    def stop(self) -> None:
        """The session was closed: end them."""
        ...

    def now_ms(self) -> int:
        """What a clock on the wall shows, epoch ms: for people, and for times that they name."""
        ...

    def clock_ms(self) -> float:
        """Milliseconds that only grow: leases and intervals are counted by them."""
        ...

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Whether a condition holds, after waiting for it at most ``timeout`` s."""
        ...

    def sent(self) -> None:
        """Something was sent to the engine."""
        ...

    def gathering(self) -> None:
        """What producers have gathered may go out now."""
        ...

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """Have ``work`` done now and whenever it is ``ready``, until it answers False.

        Gives a function that waits until it has ended, at most so many seconds.
        """
        ...

    def session_of(self, vpn: str, session: str, subscription: str) -> str:
        """The session whose heartbeats keep a subscription."""
        ...

    def ended(self, vpn: str, session: str, subscription: str) -> None:
        """A subscription needs no heartbeats any more."""
        ...

    def silence(self, vpn: str, session: str, subscription: str) -> None:
        """A subscription's heartbeats stop, as when its process is killed: an aid for tests."""
        ...


log = logging.getLogger("lakequeue.client")

POLL_S = 0.05
LOOK_S = 0.5  # how soon a close from elsewhere is noticed
STOP_S = 5.0
PAUSE_S = 0.2  # after a failure
ACKS_MOST = 500
GATHER_MS = 50

_sessions: weakref.WeakSet[Duties] = weakref.WeakSet()


def _after_fork() -> None:
    for session in list(_sessions):
        session.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Threads:
    """See `Runner`."""

    acks_most = ACKS_MOST
    gather_ms = GATHER_MS
    waits = True

    def __init__(self) -> None:
        self.tag = uuid4().hex[:8]
        self._gathered = threading.Event()  # a producer has messages that may go out now
        self._reader: threading.Thread | None = None
        self._session: weakref.ref[Duties]

    def start(self, session: Duties) -> None:
        """See `Runner.start`."""
        gathered = self._gathered
        # When the session is forgotten the thread that waits is woken, and ends.
        self._session = weakref.ref(session, lambda _: gathered.set())
        _sessions.add(session)
        name = f"lakequeue-{session.client_name}"
        self._reader = threading.Thread(target=_read, args=(self._session,), daemon=True, name=name)
        self._reader.start()
        threading.Thread(
            target=_gather, args=(self._session, gathered), daemon=True, name=f"{name}-gather"
        ).start()

    def stop(self) -> None:
        """See `Runner.stop`."""
        self._gathered.set()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(timeout=STOP_S)

    def now_ms(self) -> int:
        """See `Runner.now_ms`."""
        return round(time.time() * 1000)

    def clock_ms(self) -> float:
        """See `Runner.clock_ms`."""
        return time.monotonic() * 1000

    def wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """See `Runner.wait`. The reader itself, in a callback of a future, reads meanwhile."""
        session = self._session()
        if session is None:
            return condition()
        if threading.current_thread() is self._reader:
            deadline = None if timeout is None else time.monotonic() + timeout
            while not condition() and session.is_open:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                session.receive(POLL_S)
            return condition()
        with session.changed:
            session.changed.wait_for(lambda: condition() or not session.is_open, timeout)
            return condition()

    def sent(self) -> None:
        """See `Runner.sent`: the reader hears what comes of it."""

    def gathering(self) -> None:
        """See `Runner.gathering`."""
        self._gathered.set()

    def serve(self, ready: Callable[[], bool], work: Callable[[], bool]) -> Callable[[float], None]:
        """See `Runner.serve`."""

        def run() -> None:
            while _worked(self._session, work):
                self.wait(ready, LOOK_S)

        thread = threading.Thread(target=run, daemon=True, name="lakequeue-callbacks")
        thread.start()

        def join(timeout: float) -> None:
            if thread is not threading.current_thread():
                thread.join(timeout)

        return join

    def session_of(self, vpn: str, session: str, subscription: str) -> str:
        """See `Runner.session_of`: one for all."""
        return session

    def ended(self, vpn: str, session: str, subscription: str) -> None:
        """See `Runner.ended`: the session may have others."""

    def silence(self, vpn: str, session: str, subscription: str) -> None:
        """See `Runner.silence`."""
        raise ConfigError("kill: only on memory://; kill the process instead")


def _worked(reference: weakref.ref[Duties], work: Callable[[], bool]) -> bool:
    """Do some work; whether to go on. What cannot be said to Kafka now ends no consumer."""
    try:
        return work()
    except Exception as error:
        session = reference()
        if session is None or not session.is_open:
            return False
        _report(session, error)
        return True


def _report(session: Duties, error: Exception) -> None:
    if isinstance(error, LakequeueError):
        session.report(str(error))
    else:
        log.error("something went wrong in the background", exc_info=error)
    time.sleep(PAUSE_S)


def _read(reference: weakref.ref[Duties]) -> None:
    """The thread that reads; it ends when the session is closed or forgotten."""
    while True:
        session = reference()
        if session is None or not session.is_open:
            return
        for duty in (partial(session.receive, POLL_S), session.upkeep, session.beat):
            try:
                duty()
            except Exception as error:  # whatever it was, heartbeats and acks must go on
                if session.is_open:
                    _report(session, error)
        del session, duty


def _gather(reference: weakref.ref[Duties], gathered: threading.Event) -> None:
    """The thread that sends what was gathered while something else was on its way."""
    while True:
        gathered.wait()
        gathered.clear()
        session = reference()
        if session is None or not session.is_open:
            return
        try:
            session.send_gathered()
        except Exception as error:  # what is sent next must go out too
            if session.is_open:
                _report(session, error)
        del session
