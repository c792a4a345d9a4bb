"""Limits how often something is restarted, and how long the work of a stop may take.

The engine restarts a failed query, Spark's Java process or an embedded Kafka, each time after a
longer pause. If one ends more than five times in five minutes, a restart does not help, so the
engine ends with a message. Two failures do not count. If a step put a record or queue aside, the
query restarts at once and leaves that out. If a Python worker was not ready in time, the machine is
busy, and giving up would not help.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from ..protocol.errors import LakequeueError

log = logging.getLogger("lakequeue.engine")

RESTARTS_MAX = 5
RESTART_WINDOW_S = 300.0
PAUSE_S_MAX = 10.0
_LATE = re.compile(
    r"Python worker failed to connect back|waiting for the Python worker to connect back"
    r"|Streaming Runner initialization failed\. Socket connection timeout"
)
_DIED = re.compile(r"Python worker exited unexpectedly")
_PUT_ASIDE = re.compile(r"\bStepPutAside: ")  # see `replica.driver`


class Restarts:
    """Counts restarts of one thing. `stopping` ends a pause. say: receives the messages, by default
    the log. most: how many restarts are allowed in five minutes."""

    def __init__(
        self, stopping: threading.Event, say: Callable[[str], None] = log.error,
        most: float = RESTARTS_MAX,
    ) -> None:  # fmt: skip
        self._stopping, self._say, self._most = stopping, say, most
        self._times: list[float] = []

    def again(self, what: str, why: str, see: str = "") -> None:
        """Report what ended and why, and pause; raises LakequeueError if it ended too often."""
        self._stopping.wait(self.pause_s(what, why, see))

    def pause_s(self, what: str, why: str, see: str = "") -> float:
        """Like `again`, but return the length of the pause, for a caller with other work."""
        now = time.monotonic()
        self._times = [t for t in self._times if now - t < RESTART_WINDOW_S] + [now]
        count = len(self._times)
        where = f" (see {see})" if see else ""
        if count > self._most:
            raise LakequeueError(
                f"{what} ended, {why}: the {count}th end within {RESTART_WINDOW_S / 60:.0f} "
                f"minutes, so it is not started again{where}"
            )
        self._say(f"{what} ended, {why}; it is started again")
        return min(2.0**count / 2, PAUSE_S_MAX)


def passes(reason: str) -> bool:
    """Whether a failure will probably not happen again."""
    return is_late(reason) or puts_aside(reason) or _DIED.search(reason) is not None


def is_late(reason: str) -> bool:
    """Whether a Python worker was not ready in time."""
    return _LATE.search(reason) is not None


def puts_aside(reason: str) -> bool:
    """Whether a step failed and the log now names the input to leave out."""
    return _PUT_ASIDE.search(reason) is not None


def within(seconds: float, work: Callable[[], object], name: str) -> bool:
    """Do work in a thread. Returns whether it ended in time. An exception is only logged."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # the caller needs only whether it ended
            first, *_ = str(error).splitlines() or [""]  # an error of Java brings its stack
            log.info("%s ended with %s: %s", name, type(error).__name__, first)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    return not thread.is_alive()
