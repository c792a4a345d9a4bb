"""Restarts failed queries and Spark's Java process, and gives up if that does not help.

    a query fails ─▶ the loop refused, or the checkpoint is gone   ─▶ give up, with the reason
                     Kafka does not answer, or the disk is full    ─▶ wait, however long
                     it writes the tables                          ─▶ see `tables_watch`
                     a Python worker was not ready in time         ─▶ restart, however often
                     anything else                                 ─▶ restart, up to five times in
                                                                       five minutes
    a broker hangs ─▶ `step_watch` reports it: its query is stopped and started
    Java ends      ─▶ start a new one, with all queries

A restarted query continues from its checkpoint, so nothing is lost. If the watch gives up one
broker, the others continue; after the last one the engine ends. A broker's pause delays no other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

from ...client.kafka.base import require_broker
from ...protocol import LakequeueError, NotConnected, Timeout
from ...protocol.once_a_minute import OnceAMinute
from ..application import SparkApplication
from ..broker_query import FAILED, RESTARTING, RUNNING, BrokerQuery
from ..captured import CapturedTopics
from ..home.home_folder import HomeFolder
from ..restarts import RESTARTS_MAX, Restarts, is_late, passes, puts_aside, within
from ..spark.error_causes import cause_of
from ..spark.queries import reason, refusal

log = logging.getLogger("lakequeue.engine")

START_TIMEOUT_S, START_EACH_S = 120.0, 20.0  # for one broker, and for each further one
ASK_TIMEOUT_S = 30.0
LOOK_S = 0.25
CALLS_LOST_MAX = 5  # because they start one after the other
END_HANGING_S = 20.0
JAVA = "Spark's Java process"


class EngineWatch:
    """Watches an engine's queries. stopping: ends every pause. on_state: called with a broker and
    its new state. look_at_tables: restarts the queries of the tables. tell: sends all brokers a
    command."""

    def __init__(
        self,
        bootstrap: str,
        application: SparkApplication,
        captured: CapturedTopics,
        folder: HomeFolder,
        trigger: str,
        stopping: threading.Event,
        on_state: Callable[[BrokerQuery, str], None],
        look_at_tables: Callable[[], None],
        tell: Callable[[bytes], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._folder, self._trigger = folder, trigger
        self._application = application
        self._captured = captured
        self._stopping = stopping
        self._on_state = on_state
        self._look_at_tables, self._tell = look_at_tables, tell
        self._see = str(folder.path / "spark.log")  # the log that a message points to
        self._restarts: dict[str, Restarts] = {}
        self._due: dict[str, float] = {}  # what will be restarted, and when
        self._asking: threading.Thread | None = None
        self._reports = OnceAMinute()
        self._waits_for = ""

    @property
    def _brokers(self) -> list[BrokerQuery]:
        """The brokers that were not given up."""
        return [b for b in self._application.brokers.values() if not b.failure]

    # ------------------------------------------------------------ while starting

    @contextlib.contextmanager
    def java_lives(self) -> Iterator[None]:
        """During the start: if a failure was caused by the end of Spark's Java process, say so."""
        try:
            yield
        except Exception as error:  # any call to a dead Java may fail in any way
            ended = self._application.java_ended()
            if not ended:
                raise
            raise LakequeueError(f"{JAVA} ended {ended} while starting: see {self._see}") from error

    def wait_until_up(self) -> None:
        """Wait until the engine answers, so its definitions have been read."""
        start_s = START_TIMEOUT_S + START_EACH_S * (len(self._brokers) - 1)
        deadline = time.monotonic() + start_s
        self._captured.ask_again(b.name for b in self._brokers)
        while self._captured.unasked:
            self.restart_if_passing()
            try:
                self._captured.ask(2.0)
            except Timeout as error:
                if time.monotonic() > deadline:
                    raise LakequeueError(
                        f"the first batch did not end within {start_s:.0f} s: see {self._see}"
                    ) from error
            self._tell_who_runs()

    def restart_if_passing(self) -> None:
        """Restart a query that failed for a temporary reason; raise for any other."""
        with self.java_lives():
            for broker in self._brokers:
                if broker.query is not None and not broker.query.isActive:
                    with self._alone(broker):
                        self._start_if_passing(broker)

    def _start_if_passing(self, broker: BrokerQuery) -> None:
        assert broker.query is not None
        if refused := refusal(broker.query):
            raise LakequeueError(refused)
        why = reason(broker.query)
        if not passes(str(broker.query.exception())):
            raise LakequeueError(f"the engine's query failed: {why}; see {self._see}")
        self._recover(broker, broker.query)

    # ------------------------------------------------------------ while it runs

    def watch(self, lock: threading.RLock) -> None:
        """Watch until the engine stops; raise if restarting does not help. lock: held during a
        restart."""
        lost = 0
        while not self._stopping.wait(LOOK_S):
            with lock:
                if self._stopping.is_set():
                    return
                try:
                    self.look_after()
                    lost = 0
                except Exception as error:  # Java is gone, or a call was lost: handled below
                    if self._stopping.is_set():
                        return
                    if self._application.java_ended():
                        self._restart_java()
                    elif isinstance(error, Py4JError) and lost < CALLS_LOST_MAX:
                        lost += 1  # its connection was cut: the next call opens another
                        log.warning("%s did not answer: %s", JAVA, error)
                    else:
                        raise

    def look_after(self) -> None:
        """Once: read newly captured topics, and restart ended queries."""
        self._ask()
        try:
            if self._captured.more:
                self._captured.learn()
                self._application.read_more()
        except (NotConnected, OSError) as error:
            self._await_captured(error)
        with contextlib.suppress(LakequeueError):  # Kafka is away: the next time
            self._captured.tell(self._tell)
        self._end_hanging()
        for broker in self._brokers:
            with self._alone(broker):
                if broker.query is None:
                    self._start_again(broker)
                elif not broker.query.isActive:
                    self._recover(broker, broker.query)
        self._tell_who_runs()
        self._look_at_tables()

    def _start_again(self, broker: BrokerQuery) -> None:
        """Start a query that a change of brokers could not start."""
        if self._application.spark is None:  # nothing was started yet
            return
        try:
            self._application.start_query(broker)
        except Exception as error:  # Spark's or Java's
            if self._application.java_ended():
                raise
            raise LakequeueError(f"its query does not start: {cause_of(error)}") from error

    def _end_hanging(self) -> None:
        for broker in self._brokers:
            query = broker.query
            if broker.hangs and broker.state == RUNNING and query is not None and query.isActive:
                self._on_state(broker, RESTARTING)
                # Spark kills a worker that does not end by itself.
                if not within(END_HANGING_S, query.stop, "end-hanging"):
                    log.warning("broker %r: its query does not end", broker.name)

    def _ask(self) -> None:
        """Ask the brokers for captured topics, in a thread: a starting broker answers late, and
        another one may end meanwhile."""
        if self._captured.unasked and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(
                target=self._ask_once, name="lakequeue-ask", daemon=True
            )
            self._asking.start()

    def _ask_once(self) -> None:
        try:
            self._captured.ask(ASK_TIMEOUT_S)
        except (LakequeueError, OSError) as error:
            self._await_captured(error)

    def _await_captured(self, error: Exception) -> None:
        """Pause until captured topics are asked for again. Kafka may be away for hours."""
        if self._reports.first("captured topics"):
            log.warning("captured topics are not known yet: %s", error)
        self._stopping.wait(1.0)

    def _tell_who_runs(self) -> None:
        waiting = {broker for broker, _ in list(self._captured.unasked)}  # a thread changes it
        for broker in self._brokers:
            if broker.state != RUNNING and broker.name not in waiting and broker.is_active:
                self._on_state(broker, RUNNING)

    # ------------------------------------------------------------ starting again

    @contextlib.contextmanager
    def _alone(self, broker: BrokerQuery) -> Iterator[None]:
        """If this raises LakequeueError, give up this broker alone."""
        try:
            yield
        except LakequeueError as error:
            if len(self._brokers) == 1:
                raise
            broker.failure = str(error)
            self._captured.forget(broker.name)
            self._on_state(broker, FAILED)
            fields = {"event": "broker_failed", "broker": broker.name}
            log.error(
                "broker %r stays stopped, the others continue: %s", broker.name, error,
                extra={"fields": fields},
            )  # fmt: skip

    def _recover(self, broker: BrokerQuery, query: StreamingQuery) -> None:
        """Restart a broker's query after a pause, once everything that it needs is available."""
        name, now = query.name, time.monotonic()
        if now < self._due.get(name, 0.0):
            return
        if refused := refusal(query):
            raise LakequeueError(refused)
        try:
            gone, unknown = self._folder.problem(self._trigger), ""
        except OSError as error:  # an object store that does not answer
            gone, unknown = "", f"{self._folder.checkpoint} cannot be read ({error})"
        if gone:  # Spark would silently start over
            raise LakequeueError(gone)
        missing, self._waits_for = self._waits_for, unknown or self._missing()
        if self._waits_for:  # not the query's fault: wait as long as it takes
            if self._waits_for != missing:
                log.error("the query %r ended: %s", name, self._waits_for)
            self._stopping.wait(1.0)
            return
        if name not in self._due:
            self._on_state(broker, RESTARTING)
            late = not broker.hangs and is_late(str(query.exception()))
            self._due[name] = now + self._pause_s(name, broker.hangs or reason(query), late)
        if now >= self._due[name] and not self._stopping.is_set():
            del self._due[name]
            self._application.start_query(broker)
            self._captured.ask_again([broker.name])

    def _pause_s(self, name: str, why: str, late: bool) -> float:
        """Log why a query ended; return the pause before its restart. late: it ended only because a
        Python worker was not ready in time, which does not count towards giving up."""
        if puts_aside(why):
            log.error("the query %r begins again: %s", name, why)
            return 0.0
        key, most = (f"{name}: late", math.inf) if late else (name, RESTARTS_MAX)
        restarts = self._restarts.setdefault(key, Restarts(self._stopping, most=most))
        return restarts.pause_s(f"the query {name!r}", why, self._see)

    def _missing(self) -> str:
        """The missing requirements of the queries; empty if nothing is missing."""
        try:
            require_broker(self._bootstrap)
        except NotConnected as error:
            return f"{error}; it continues when Kafka answers"
        unwritable = self._folder.unwritable()
        return f"{unwritable}; it continues when it can write there" if unwritable else ""

    def _restart_java(self) -> None:
        restarts = self._restarts.setdefault(JAVA, Restarts(self._stopping))
        while ended := self._application.java_ended():
            restarts.again(JAVA, ended, self._see)
            if self._stopping.is_set():
                return
            try:
                self._application.start_again()
                log.info("Spark runs again")
                break
            except Exception:  # Java has ended again; anything else is raised
                if not self._application.java_ended():
                    raise
        self._due.clear()
        self._captured.ask_again(b.name for b in self._brokers)
