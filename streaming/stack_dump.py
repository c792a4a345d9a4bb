"""A step that does not end leaves the stacks of its process in Spark's log.

The clock is C's own, which needs no lock of Python's: it also tells of a thread that holds that
one. It is wound up every few seconds by the thread that steps, and stopped where that has to wait.
"""

from __future__ import annotations

import faulthandler
import sys
import time

DUMP_S = 20.0  # before `step_watch` starts the worker again
WIND_S = 2.0


class StackDump:
    """Of one thread that must not stand still."""

    def __init__(self) -> None:
        self._wound = float("-inf")

    def wind(self) -> None:
        """It goes on."""
        now = time.monotonic()
        if now - self._wound >= WIND_S:
            self._wound = now
            # A worker's standard error is Spark's; what stands in its place in a test may be none.
            faulthandler.dump_traceback_later(DUMP_S, file=sys.__stderr__ or 2)

    def stop(self) -> None:
        """It waits for others now."""
        if self._wound > float("-inf"):
            self._wound = float("-inf")
            faulthandler.cancel_dump_traceback_later()
