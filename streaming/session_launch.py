"""Spark's session on its way.

It takes seconds to come, most of them a Java process that starts. Whatever an engine does first
needs none of it: topics are looked at and made, brokers are told what they are to be. So both go on
at once, and a start that fails meanwhile ends the Java process again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.05


class SessionLaunch:
    """One start of Spark, which begins at once. make: gives the session; what it raises is raised
    to who takes that."""

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._session: SparkSession | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="lakequeue-spark", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._session = self._make()
        except BaseException as error:
            self._failure = error

    def session(self) -> SparkSession:
        """Wait until it is there. Raises what went wrong."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._session is not None
        return self._session

    def give_up(self, wait_s: float) -> None:
        """Nobody will take it: end its Java process, as soon as there is one. wait_s: for that."""
        from .spark import forget_session, kill_java

        until = time.monotonic() + wait_s
        while self._thread.is_alive() and time.monotonic() < until:
            kill_java()
            self._thread.join(LOOK_S)
        if self._session is not None:
            self._session.stop()
        elif not self._thread.is_alive() and kill_java():
            forget_session(None)
