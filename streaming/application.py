"""The engine's Spark application: one session, the query of the broker, the query of the tables.

The application may end at any time, with its Java process or in order, and be started again: all
that counts stands in the checkpoints, and what is started again goes on from there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..client.kafka_base import require_broker
from ..protocol import LakequeueError, topics
from ..sources.discovery import captured_topics
from ..sources.live import InputLimits, kafka_client
from ..state import Home
from .captured import CapturedTopics
from .engine_settings import EngineSettings
from .home import CHECKPOINT, HomeFolder
from .jars import ensure_jars
from .queries import (
    REAL_TIME,
    end_between_batches,
    start_batches,
    start_history,
    start_loop,
    start_tables,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from ..client.transport import Transport
    from .loop import Options

log = logging.getLogger("lakequeue.engine")

QUERY = "lakequeue"
TABLES_INTERVAL_S = 5
HISTORY_INTERVAL_S = 60  # heartbeats are commands too: an idle engine commits seldom
# More batches than Spark retains (`minBatchesToRetain`) must not lie between two snapshots: what
# changed in them would not be known any more, and each would have the whole state.
SNAPSHOTS_INTERVAL_S = 60
LOG_KEPT_S = 3_600.0  # the log of steps, until it is in the tables
END_S_MAX = 60.0


class SparkApplication:
    """Of one engine. loop_stopped: set by who hears that a loop has ended its last batch; progress
    is told what takes time while starting."""

    def __init__(
        self,
        bootstrap: str,
        folder: HomeFolder,
        broker: str,
        vpns: list[str],
        captured: CapturedTopics,
        settings: EngineSettings,
        master: str | None,
        loop_stopped: threading.Event,
        progress: Callable[[str], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._broker = broker
        self._vpns = vpns
        self._captured = captured
        self._settings = settings
        self._master = master
        self._loop_stopped = loop_stopped
        self._progress = progress
        self._real_time = settings.trigger == REAL_TIME
        self._run = ""  # the loop's, as it is named to end it
        self._listener: Callable[[], StreamingQueryListener]
        self._transport: Transport | None = None
        self.spark: SparkSession | None = None
        self.query: StreamingQuery | None = None
        self.tables_query: StreamingQuery | None = None
        self.history_query: StreamingQuery | None = None

    # ------------------------------------------------------------ start

    def start(self, listener: Callable[[], StreamingQueryListener], transport: Transport) -> None:
        """Start Spark and the broker's query. listener: makes one for a session; transport: to
        reach the loop."""
        self._listener, self._transport = listener, transport
        self._start()

    def _start(self) -> None:
        self.spark = self._session()
        self.spark.streams.addListener(self._listener())
        self.start_query()

    def _session(self) -> SparkSession:
        from .spark import is_local, package_zip, spark_session

        jars = ensure_jars(self._progress)
        master = self._master
        if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            # More tasks than cores: most wait for each other. A task whose worker died is tried
            # again three times, which is faster than to start its query again.
            master = "local[4,4]"
        home = self._folder.path
        spark = spark_session(
            "lakequeue",
            master=master,
            jars=jars.spark,
            extra={
                "spark.scheduler.mode": "FAIR",
                # Spark makes this folder, and by default where the process was started.
                "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
                **self._settings.spark,
            },
            ui_port=self._settings.value("ui_port", 4040) or None,
            log_file=home / "spark.log",
        )
        if not is_local(master) or (master or "").startswith("local-cluster"):
            spark.sparkContext.addPyFile(str(package_zip(home)))
        return spark

    def start_query(self) -> None:
        """Start the broker's query, from its checkpoint on."""
        from ..sources.kafka_source import RECORDS_PER_BATCH

        assert self.spark is not None
        home = Home(self._broker, 0, self._folder.epoch)
        checkpoint, given = self._folder.path / CHECKPOINT, self._settings.spark
        if self._real_time:
            self._run = uuid.uuid4().hex
            self._loop_stopped.clear()
            options = self._loop_options(self.spark, home)
            self.query = start_loop(self.spark, options, QUERY, checkpoint / home.name, given)
        else:
            limit = self._settings.value("records_per_batch", RECORDS_PER_BATCH)
            self.query = start_batches(
                self.spark, self._bootstrap, home, self._vpns, self._readable_topics(),
                self._captured.partitions, limit, QUERY, checkpoint, given,
            )  # fmt: skip

    def _loop_options(self, spark: SparkSession, home: Home) -> Options:
        from .loop import Options
        from .version import code_version

        default = Options({}, "", 0, 0, [], [], "", "")
        retained = spark.conf.get("spark.sql.streaming.minBatchesToRetain", None) or "100"
        mb, value = 1_000_000, self._settings.value
        return Options(
            kafka_client(self._bootstrap, f"lakequeue-{home.name}"), home.name, home.number,
            home.epoch, self._vpns, sorted(self._captured.known), code_version(), self._run,
            keep=int(retained) + 3,
            rebuilt=self._folder.rebuilt(home.name),
            log_kept_s=LOG_KEPT_S if self._history_interval_s() else 0.0,
            batch_s=value("batch_s", default.batch_s),
            batch_bytes=value("batch_mb", default.batch_bytes // mb) * mb,
            replay_s=value("replay_s", default.replay_s),
            cache_bytes=value("page_cache_mb", default.cache_bytes // mb) * mb,
            limits=InputLimits(
                value("records_per_step", default.limits.records),
                value("mb_per_step", default.limits.bytes // mb) * mb,
            ),
        )  # fmt: skip

    def _readable_topics(self) -> list[str]:
        """Captured topics and expressions, without those that Kafka's source cannot read: its
        regular expressions are Java's. Publishes by clients still match those."""
        assert self.spark is not None
        pattern = self.spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
        good = []
        for text in sorted(self._captured.known):
            try:
                pattern.compile(text)
                good.append(text)
            except Exception as error:  # py4j's; told to the operator
                why = str(error).splitlines()[0]
                log.error("no plain Kafka topics for %r: Java does not read it (%s)", text, why)
        return good

    def start_tables(self) -> None:
        """Start the query of the Delta tables, if there is to be one."""
        assert self.spark is not None
        interval_s = self._settings.value("tables_interval_s", TABLES_INTERVAL_S)
        if not interval_s:
            return
        if self._real_time:  # what the loop reads, by its own expressions
            captured = captured_topics(self._captured.partitions, self._captured.known)
        else:
            captured = self._readable_topics()
        self.tables_query = start_tables(
            self.spark, self._bootstrap, self._vpns, captured, self._folder.tables,
            self._folder.path / "tables-checkpoint", interval_s,
        )  # fmt: skip

    def start_history(self) -> None:
        """Start the query of what steps took and were, if there is to be one. Micro-batches have no
        log of steps."""
        assert self.spark is not None
        interval_s = self._history_interval_s()
        if not interval_s:
            return
        checkpoints = {self._broker: self._folder.path / CHECKPOINT / self._broker}
        self.history_query = start_history(
            self.spark, self._bootstrap, self._vpns, checkpoints, self._folder.tables,
            self._folder.path / "history-checkpoint", interval_s,
            self._settings.value("snapshots_interval_s", SNAPSHOTS_INTERVAL_S),
        )  # fmt: skip

    def _history_interval_s(self) -> int:
        """0 where there is no such query."""
        value = self._settings.value
        tables = value("tables_interval_s", TABLES_INTERVAL_S) and self._real_time
        return value("history_interval_s", HISTORY_INTERVAL_S) if tables else 0

    def read_more(self) -> None:
        """More topics are captured: the queries that do not find them themselves begin anew."""
        if not self._real_time:
            self._end(self.query, END_S_MAX)
            self.start_query()
        if self.tables_query is not None:
            self._end(self.tables_query, END_S_MAX)
            self.start_tables()

    def start_again(self) -> None:
        """Spark's Java process is gone: a new one, with the queries that were started."""
        from .spark import forget_session

        assert self.spark is not None
        forget_session(self.spark)
        self.query = None
        self._start()
        if self.tables_query is not None:
            self.start_tables()
        if self.history_query is not None:
            self.start_history()

    # ------------------------------------------------------------ stop

    def java_ended(self) -> str:
        """How Spark's Java process ended; empty while it lives, or was never started."""
        from .spark import java_ended

        return java_ended(self.spark, wait_s=2.0) if self.spark is not None else ""

    def stop(self, batch_s: float) -> None:
        """End the queries and Spark in order. batch_s: what the batches that run may take."""
        from .spark import forget_session, java_ended

        assert self.spark is not None
        if java_ended(self.spark):
            forget_session(self.spark)
            return
        until = time.monotonic() + batch_s
        self._end(self.query, batch_s)
        self._end(self.tables_query, until - time.monotonic())
        self._end(self.history_query, until - time.monotonic())
        self.spark.stop()

    def kill(self) -> None:
        """End Spark at once."""
        from .spark import forget_session, kill_java

        assert self.spark is not None
        kill_java()
        forget_session(self.spark)

    def _end(self, query: StreamingQuery | None, wait_s: float) -> None:
        if query is None or not query.isActive:
            return
        if query is self.query and self._real_time:
            self._end_loop(query, wait_s)
            query.stop()
        else:
            end_between_batches(query, wait_s)

    def _end_loop(self, query: StreamingQuery, wait_s: float) -> None:
        """Ask the loop to end its batch, and wait until Spark has it."""
        assert self._transport is not None
        until = time.monotonic() + wait_s
        try:
            require_broker(self._bootstrap, min(1.0, wait_s))
            control = topics.topic(self._broker, topics.CONTROL)
            self._transport.command(control, b"engine", self._run.encode())
        except LakequeueError as error:
            log.warning("the loop is cut off, the next start takes its steps again: %s", error)
            return
        while query.isActive and time.monotonic() < until:
            if self._loop_stopped.wait(0.05):
                return
        log.warning("the last batch did not end, the next start takes its steps again")
