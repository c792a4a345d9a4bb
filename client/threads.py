"""The runner over Kafka: a thread reads and keeps up, one sends what is gathered, one for each
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
from uuid import uuid4

from ..protocol import ConfigError, LakequeueError
from .runner import Duties

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
