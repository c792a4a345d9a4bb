"""The engine's Spark application: one session, a query per broker, the tables' queries.

It may end at any time, cleanly or because its Java process died. After a restart the queries
continue from their checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from ..client.kafka.base import require_broker
from ..client.session.transport import Transport
from ..protocol import LakequeueError, topics
from ..sinks.delta_tables import create_tables
from ..sinks.snapshots import SnapshotWriter
from ..sinks.spark_state import check_place
from ..sinks.table_writer import TableWriter, history_writer
from ..sources.kafka_source import (
    RECORDS_PER_BATCH,
    history_topics,
    read_stream,
    tables_topics,
)
from ..sources.live import kafka_client, quiet
from ..sources.live_reader import InputLimits
from ..state import Home
from .broker_query import BrokerQuery, first_of, query_name
from .captured import CapturedTopics
from .engine_settings import REAL_TIME, EngineSettings
from .home.home_folder import HISTORY_CHECKPOINT, TABLES_CHECKPOINT, HomeFolder
from .jars import ensure_jars, object_store_jars, place_settings
from .java import JavaArchive
from .loop.loop_options import Options
from .spark.error_causes import cause_of
from .spark.progress import ProgressListener
from .spark.queries import (
    HISTORY_QUERY,
    TABLES_QUERY,
    end_between_batches,
    start_batches,
    start_every,
    start_loop,
)
from .spark.spark_session import (
    await_java_at_exit,
    check_slots,
    default_master,
    executors,
    forget_session,
    halt_java_at_exit,
    is_local,
    java_ended,
    kill_java,
    package_zip,
    spark_session,
)
from .version import code_version

log = logging.getLogger("lakequeue.engine")

TABLES_INTERVAL_S = 5
TABLES_RECORDS, HISTORY_RECORDS = 25_000, 200_000  # per batch; up to eight messages in each
HISTORY_INTERVAL_S = 60  # heartbeats are commands too: an idle engine commits seldom
# Fewer batches than Spark retains (`minBatchesToRetain`) must lie between two snapshots. Otherwise
# Spark no longer knows which pages changed, and each snapshot has the whole state.
SNAPSHOTS_INTERVAL_S = 60
LOG_KEPT_S = 3_600.0  # the log of steps, until it is in the tables
END_S_MAX = 60.0
TABLES_END_S_MAX = 5.0  # a batch that is cut off is written again, each row once
PLAN_S_MAX = 20.0


class SparkApplication:
    """The Spark application of an engine. brokers: by name. progress: called with a line about each
    slow part of the start. on_back: called with a table query, a topic, and how many records of it
    Kafka lost after the query had read them."""

    def __init__(
        self,
        bootstrap: str,
        folder: HomeFolder,
        brokers: dict[str, BrokerQuery],
        vpns: list[str],
        captured: CapturedTopics,
        settings: EngineSettings,
        master: str | None,
        progress: Callable[[str], None],
        on_back: Callable[[str, str, int], None],
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self.brokers = brokers
        self._vpns = vpns
        self._captured = captured
        self._settings = settings
        self._master = master
        self._progress = progress
        self._on_back = on_back
        self.real_time = settings.trigger == REAL_TIME
        # seconds between two commits; 0: none
        self.tables_interval_s = settings.value("tables_interval_s", TABLES_INTERVAL_S)
        self.history_interval_s = 0  # micro-batches have no log of steps
        if self.tables_interval_s and self.real_time:
            self.history_interval_s = settings.value("history_interval_s", HISTORY_INTERVAL_S)
        self._listener: Callable[[], ProgressListener]
        self._transport: Transport | None = None
        self.spark: SparkSession | None = None
        self.archive = JavaArchive("spark", folder.path / "spark.classes")
        self.table_queries: dict[str, StreamingQuery] = {}  # by name; see `tables_watch`
        self._tables_lock = threading.Lock()
        self._ending_tables = threading.Lock()  # held while one is ended: its name is taken
        self._ended_tables = 0  # how often the tables' queries were ended to start over

    # ------------------------------------------------------------ start

    def start(self, listener: Callable[[], ProgressListener], transport: Transport) -> None:
        """Start Spark and the brokers' queries. listener: makes one for each session; transport:
        sends commands to the loops."""
        self._listener, self._transport = listener, transport
        self._start()

    def _start(self) -> None:
        self.spark = self._session()
        self.spark.streams.addListener(self._listener())
        self.start_queries(broker for broker in self.brokers.values() if not broker.failure)

    def start_queries(self, brokers: Iterable[BrokerQuery]) -> None:
        """Start brokers' queries, one by one."""
        for broker in brokers:
            self.start_query(broker)
            if not self._alone:
                self._wait_planned(broker)

    def _wait_planned(self, broker: BrokerQuery) -> None:
        """Wait until a query's first job has begun, for some seconds at most. To plan a query,
        Spark starts a Python process that must answer within 10 s. On a slow machine several at
        once would take longer."""
        assert self.spark is not None
        assert broker.query is not None
        group = str(broker.query.runId)
        until = time.monotonic() + PLAN_S_MAX
        while broker.is_active and time.monotonic() < until:
            if self.spark.sparkContext.statusTracker().getJobIdsForGroup(group):
                return
            time.sleep(0.1)

    def _session(self) -> SparkSession:
        jars = ensure_jars(self._progress)
        master = self._master
        if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            master = default_master(len(self.brokers))
        check_place(self._folder.checkpoints, is_local(master))
        if master is not None:
            self.check_slots(len(self.brokers), master)
        home, places = self._folder.path, (self._folder.tables, self._folder.checkpoints)
        spark = spark_session(
            "lakequeue",
            master=master,
            jars=[*jars.spark, *object_store_jars(places, self._progress)],
            extra={
                **place_settings(places, self._folder.checkpoints),
                "spark.scheduler.mode": "FAIR",
                # Spark makes this folder; by default it does so in the working directory.
                "spark.sql.warehouse.dir": str(home / "spark-warehouse"),
                **self._settings.spark,
            },
            ui_port=self._settings.value("ui_port", 4040) or None,
            log_file=home / "spark.log",
            log_format=self._settings.log_format,
            archive=self.archive,
        )
        if not is_local(master) or (master or "").startswith("local-cluster"):
            spark.sparkContext.addPyFile(str(package_zip(home)))
        return spark

    def check_slots(self, brokers: int, master: str | None = None) -> None:
        """Raise LakequeueError if a master has too few task slots for this many brokers. master:
        by default that of the running Spark."""
        if master is None:
            assert self.spark is not None
            master = self.spark.sparkContext.master
        check_slots(str(master), brokers, self.tables_interval_s > 0)

    def start_query(self, broker: BrokerQuery) -> None:
        """Start a broker's query, from its checkpoint on."""
        assert self.spark is not None
        home = Home(broker.name, broker.number, self._folder.epoch, self._folder.secret)
        name = query_name(broker.name, self._alone)
        checkpoint, given = self._folder.checkpoint, self._settings.spark
        if self.real_time:
            broker.begin()
            options = self._loop_options(self.spark, home, broker.run, broker.resting)
            broker.query = start_loop(self.spark, options, name, checkpoint / home.name, given)
        else:
            limit = self._settings.value("records_per_batch", RECORDS_PER_BATCH)
            broker.query = start_batches(
                self.spark, self._bootstrap, home, self._vpns, self._captured.reads,
                self._captured.partitions, self._captured.low_limits(), limit, name, checkpoint,
                given,
            )  # fmt: skip

    @property
    def _alone(self) -> bool:
        return len(self.brokers) == 1

    def _loop_options(self, spark: SparkSession, home: Home, run: str, resting: bool) -> Options:
        default = Options({}, "", 0, 0, [], "", "")
        retained = spark.conf.get("spark.sql.streaming.minBatchesToRetain", None) or "100"
        mb, value = 1_000_000, self._settings.value
        # The first broker gets the records that were sent to removed ones.
        is_first = first_of(self.brokers).number == home.number
        removed = list(self._folder.removed().values()) if is_first else []
        return Options(
            kafka_client(self._bootstrap, f"lakequeue-{home.name}"), home.name, home.number,
            home.epoch, self._vpns, code_version(), run,
            alone=self._alone,
            secret=home.secret,
            keep=int(retained) + 3,
            rebuilt=self._folder.rebuilt(home.name),
            log_kept_s=LOG_KEPT_S if self.history_interval_s else 0.0,
            batch_s=value("batch_s", default.batch_s),
            batch_bytes=value("batch_mb", default.batch_bytes // mb) * mb,
            replay_s=value("replay_s", default.replay_s),
            resting=resting,
            removed=[n for n, _ in removed],
            read={(topic, at): offset for _, read in removed for topic, at, offset in read},
            accepts_other_kafka=self._settings.accepts_other_kafka,
            cache_bytes=value("page_cache_mb", default.cache_bytes // mb) * mb,
            limits=InputLimits(
                value("records_per_step", default.limits.records),
                value("mb_per_step", default.limits.bytes // mb) * mb,
            ),
        )  # fmt: skip

    def start_tables(self) -> None:
        """Start the query of `messages` and `journal`. Any thread may call it."""

        def start(spark: SparkSession) -> StreamingQuery:
            tables, kafka = self._folder.tables, kafka_client(self._bootstrap, TABLES_QUERY)
            create_tables(spark, tables)
            names = tables_topics(self._vpns, self._captured.reads)
            stream = read_stream(spark, self._bootstrap, names, TABLES_RECORDS, committed=True)
            on_back = partial(self._on_back, TABLES_QUERY)
            writer = TableWriter(spark, tables, TABLES_QUERY, kafka, on_back)
            checkpoint = self._folder.checkpoints / TABLES_CHECKPOINT
            return start_every(self.tables_interval_s, stream, writer, TABLES_QUERY, checkpoint)

        self._start_of_tables(TABLES_QUERY, start)

    def _start_of_tables(self, name: str, start: Callable[[SparkSession], StreamingQuery]) -> None:
        """Start a query of tables. If `_end_tables` was called meanwhile, stop it again;
        `tables_watch` then starts it once more."""
        assert self.spark is not None
        with self._ending_tables:
            ended = self._ended_tables
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")
        query = start(self.spark)
        with self._tables_lock:
            is_current = ended == self._ended_tables
            if is_current:
                self.table_queries[name] = query
        if not is_current:
            query.stop()

    def start_history(self) -> None:
        """Start the query of commands, steps and snapshots. Any thread may call it."""

        def start(spark: SparkSession) -> StreamingQuery:
            checkpoint = self._folder.checkpoints / HISTORY_CHECKPOINT
            # Without its checkpoint, the tables may have been repaired or restored from a backup.
            snapshots = self._snapshots(spark, anew=not any(checkpoint.glob("commits/[0-9]*")))
            names = history_topics(self._vpns, self._historic(), self._captured.peer_topics())
            stream = read_stream(spark, self._bootstrap, names, HISTORY_RECORDS)
            tables, kafka = self._folder.tables, kafka_client(self._bootstrap, HISTORY_QUERY)
            on_back = partial(self._on_back, HISTORY_QUERY)
            writer = history_writer(spark, tables, HISTORY_QUERY, kafka, on_back, snapshots)
            return start_every(self.history_interval_s, stream, writer, HISTORY_QUERY, checkpoint)

        self._start_of_tables(HISTORY_QUERY, start)

    def _historic(self) -> list[str]:
        """All brokers, including removed ones, whose history may not be in the tables yet."""
        return [*self.brokers, *self._folder.removed()]

    def _snapshots(self, spark: SparkSession, anew: bool = False) -> SnapshotWriter | None:
        """The writer of the brokers' states; None if snapshots are switched off."""
        interval_s = self._settings.value("snapshots_interval_s", SNAPSHOTS_INTERVAL_S)
        if not interval_s:
            return None
        checkpoints = {b: self._folder.checkpoint / b for b in self._historic()}
        begins = {b: Path(file) for b in self.brokers if (file := self._folder.rebuilt(b))}
        return SnapshotWriter(spark, self._folder.tables, checkpoints, interval_s, begins, anew)

    def begin_history_anew(self) -> None:
        """After a change of brokers: write their new states before another change replaces the
        files, and end the history query; `tables_watch` starts it anew."""
        if self.spark is not None and self.history_interval_s:
            try:
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")
                if (snapshots := self._snapshots(self.spark)) is not None:
                    snapshots.write_states()
            except Exception as error:  # Spark's or Delta's: the history query tries it again
                log.warning("the brokers' states are not in the tables yet: %s", cause_of(error))
        self._end_tables(HISTORY_QUERY)

    def _end_tables(self, name: str) -> None:
        """End a query of tables, if possible between two batches; `tables_watch` starts it anew."""
        with self._ending_tables:
            with self._tables_lock:
                self._ended_tables += 1
                query = self.table_queries.pop(name, None)
            end_between_batches(query, TABLES_END_S_MAX)

    def read_more(self) -> None:
        """Restart the queries that do not find new topics themselves."""
        if not self.real_time:
            for broker in self.brokers.values():
                end_between_batches(broker.query, END_S_MAX)
                self.start_query(broker)
        self._end_tables(TABLES_QUERY)
        self._end_tables(HISTORY_QUERY)

    def start_again(self) -> None:
        """Replace Spark's dead Java process, and restart its queries."""
        assert self.spark is not None
        forget_session(self.spark)
        for broker in self.brokers.values():
            broker.query = None
        with self._tables_lock:
            self._ended_tables += 1
            self.table_queries.clear()  # `tables_watch` starts them
        self._start()

    # ------------------------------------------------------------ stop

    def executors(self) -> list[str]:
        """The executors on which brokers may run; empty without Java, or with a local master."""
        if self.spark is None or str(self.spark.sparkContext.master).startswith("local["):
            return []
        try:
            return executors(self.spark)
        except (Py4JError, OSError):  # Java is ending: `query_watch` handles that
            return []

    def java_ended(self) -> str:
        """How Spark's Java process ended; empty while it runs, or if it was never started."""
        return java_ended(wait_s=2.0) if self.spark is not None else ""

    def stop(self, batch_s: float) -> None:
        """Stop the queries and Spark cleanly. batch_s: the time that running batches may take."""
        assert self.spark is not None
        if java_ended():
            forget_session(self.spark)
            return
        await_java_at_exit()
        until = time.monotonic() + batch_s
        self.end(self.brokers.values(), batch_s)
        for query in list(self.table_queries.values()):
            end_between_batches(query, until - time.monotonic())
        self.spark.stop()

    def kill(self) -> None:
        """End Spark at once."""
        assert self.spark is not None
        if kill_java():
            forget_session(self.spark)
        else:
            halt_java_at_exit()

    def end(self, brokers: Iterable[BrokerQuery], wait_s: float) -> None:
        """End brokers' queries together, if possible between two batches."""
        live = [broker for broker in brokers if broker.is_active]
        if not self.real_time:
            for broker in live:
                end_between_batches(broker.query, wait_s)
        elif live:
            self._end_loops(live, wait_s)
            with ThreadPoolExecutor(len(live)) as pool:
                list(pool.map(lambda broker: broker.query.stop(), live))

    def quiet(self, brokers: Iterable[BrokerQuery]) -> None:
        """Ask the loops to read no more messages, before `end`. Without Kafka they read none
        anyway."""
        live = [broker for broker in brokers if broker.is_active]
        with contextlib.suppress(LakequeueError):
            self._tell_loops(live, lambda broker: quiet(broker.run.encode()), 1.0)

    def _tell_loops(
        self, brokers: Iterable[BrokerQuery], what: Callable[[BrokerQuery], bytes], wait_s: float
    ) -> None:
        assert self._transport is not None
        require_broker(self._bootstrap, min(1.0, wait_s))
        for broker in brokers:
            control = topics.topic(broker.name, topics.CONTROL)
            self._transport.command(control, b"engine", what(broker))

    def _end_loops(self, brokers: list[BrokerQuery], wait_s: float) -> None:
        """Ask the loops to end their batches, and wait until Spark has committed them."""
        until = time.monotonic() + wait_s
        try:
            self._tell_loops(brokers, lambda broker: broker.run.encode(), wait_s)
        except LakequeueError as error:
            log.warning("the loops are cut off; the next start replays their steps: %s", error)
            return
        for broker in brokers:
            while broker.is_active and time.monotonic() < until:
                if broker.ended.wait(0.05):
                    break
            if broker.is_active and not broker.ended.is_set():
                log.warning(
                    "the last batch of broker %r did not end; the next start replays its steps",
                    broker.name,
                )
