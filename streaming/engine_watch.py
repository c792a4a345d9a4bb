"""Looks after what runs in Spark: starts again what failed, and says when that does not help.

    a query fails ─▶ refused by the loop, or the checkpoint is gone ─▶ the engine ends, and says why
                     Kafka does not answer, or the disk is full     ─▶ wait, however long
                     anything else ─▶ start it again, five times in five minutes
    Java ends     ─▶ a new one, with all queries

What is started again goes on from its checkpoint, so nothing is lost on the way.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from ..client.kafka_base import require_broker
from ..protocol import LakequeueError, NotConnected, Timeout
from .application import SparkApplication
from .captured import CapturedTopics
from .home import HomeFolder
from .queries import reason, refusal
from .supervision import Restarts, passes

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger("lakequeue.engine")

START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 30.0
LOOK_S = 0.25
CALLS_LOST_MAX = 5  # one after the other
JAVA = "Spark's Java process"


class EngineWatch:
    """Of one engine. stopping ends every pause."""

    def __init__(
        self,
        bootstrap: str,
        application: SparkApplication,
        captured: CapturedTopics,
        folder: HomeFolder,
        trigger: str,
        stopping: threading.Event,
    ) -> None:
        self._bootstrap = bootstrap
        self._folder, self._trigger = folder, trigger
        self._application = application
        self._captured = captured
        self._stopping = stopping
        self._see = str(folder.path / "spark.log")  # what a sentence points to
        self._restarts = Restarts(stopping)
        self._restarts_of_history = Restarts(stopping)  # what ends all queries counts once
        self._waits_for = ""

    # ------------------------------------------------------------ while starting

    @contextlib.contextmanager
    def java_lives(self) -> Iterator[None]:
        """While starting: what fails because Spark's Java process ended is told as that."""
        try:
            yield
        except Exception as error:
            ended = self._application.java_ended()
            if not ended:
                raise
            raise LakequeueError(f"{JAVA} ended {ended} while starting: see {self._see}") from error

    def wait_until_up(self) -> None:
        """The engine answers: its definitions have been read."""
        deadline = time.monotonic() + START_TIMEOUT_S
        self._captured.ask_again()
        while self._captured.unasked:
            self.restart_if_passing()
            try:
                self._captured.ask(2.0)
            except Timeout as error:
                if time.monotonic() > deadline:
                    raise LakequeueError(
                        f"the first batch did not end within {START_TIMEOUT_S:.0f} s: "
                        f"see {self._see}"
                    ) from error

    def restart_if_passing(self) -> None:
        """A cause that passes is no reason to end a start, any other is."""
        with self.java_lives():
            query = self._application.query
            if query is None or query.isActive:
                return
            if refused := refusal(query):
                raise LakequeueError(refused)
            why = reason(query)
            if not passes(why):
                raise LakequeueError(f"the engine's query failed: {why}; see {self._see}")
            self._recover(query, self._application.start_query)

    # ------------------------------------------------------------ while it runs

    def watch(self, lock: threading.RLock) -> None:
        """Until the engine stops; raises when starting again does not help. lock: held while
        something is started again."""
        lost = 0
        while not self._stopping.wait(LOOK_S):
            with lock:
                if self._stopping.is_set():
                    return
                try:
                    self.look_after()
                    lost = 0
                except Exception as error:
                    if self._stopping.is_set():
                        return
                    if self._application.java_ended():
                        self._restart_java()
                    elif isinstance(error, Py4JError) and lost < CALLS_LOST_MAX:
                        lost += 1  # a connection to it was cut: the next call has another
                        log.warning("%s did not answer: %s", JAVA, error)
                    else:
                        raise

    def look_after(self) -> None:
        """Once: read what is captured by now, and start again what has ended."""
        try:
            if self._captured.unasked:
                self._captured.ask(ASK_TIMEOUT_S)
            if self._captured.more:
                self._captured.learn()
                self._application.read_more()
        except (NotConnected, Timeout, OSError) as error:  # the next time
            log.warning("captured topics are not known yet: %s", error)
            self._stopping.wait(1.0)
        application = self._application
        for restart, query in (
            (application.start_query, application.query),
            (application.start_tables, application.tables_query),
            (application.start_history, application.history_query),
        ):
            if query is not None and not query.isActive:
                self._recover(query, restart)

    def _recover(self, query: StreamingQuery, restart: Callable[[], None]) -> None:
        if refused := refusal(query):
            raise LakequeueError(refused)
        if gone := self._folder.problem(self._trigger):  # Spark would begin anew, in silence
            raise LakequeueError(gone)
        missing, self._waits_for = self._waits_for, self._missing()
        if self._waits_for:  # no fault of the query's: wait, however long it takes
            if self._waits_for != missing:
                log.error("the query %r ended: %s", query.name, self._waits_for)
            self._stopping.wait(1.0)
            return
        history = query is self._application.history_query
        restarts = self._restarts_of_history if history else self._restarts
        restarts.again(f"the query {query.name!r}", reason(query), self._see)
        if not self._stopping.is_set():
            restart()
            self._captured.ask_again()

    def _missing(self) -> str:
        """What the queries need and is not there now; empty when all is."""
        try:
            require_broker(self._bootstrap)
        except NotConnected as error:
            return f"{error}; it goes on when Kafka answers"
        unwritable = self._folder.unwritable()
        return f"{unwritable}; it goes on when there is room" if unwritable else ""

    def _restart_java(self) -> None:
        """Spark's Java process is gone: what it had committed stands in the checkpoint."""
        while ended := self._application.java_ended():
            self._restarts.again(JAVA, ended, self._see)
            if self._stopping.is_set():
                return
            try:
                self._application.start_again()
                log.warning("Spark runs again")
                break
            except Exception:
                if not self._application.java_ended():
                    raise
        self._captured.ask_again()
