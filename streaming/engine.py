"""The supervisor: starts the queries, keeps time, restarts what failed, stops in good order.

A home folder (`home.py`) holds all that must outlive the process: the checkpoints of the two
queries, the Delta tables, and what says who they are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..client.kafka_base import require_broker
from ..client.kafka_library import open_kafka
from ..definitions import Configuration, is_regex
from ..definitions.as_commands import configure_commands
from ..protocol import (
    ConfigError,
    LakequeueError,
    NotConnected,
    Problem,
    Timeout,
    commands,
    topics,
)
from ..sinks.metrics import Metrics
from ..sources.discovery import captured_topics
from ..sources.live import kafka_client
from ..state import Home
from .heartbeat import EngineHeartbeat
from .home import CHECKPOINT, HomeFolder
from .jars import ensure_jars
from .losses import LossWatch
from .queries import MICRO_BATCH, REAL_TIME, TRIGGERS, start_batches, start_loop
from .supervision import Restarts, passes, within
from .ticker import Ticker
from .topics_admin import ensure_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from .loop import Options

log = logging.getLogger("lakequeue.engine")

QUERY, TABLES_QUERY = "lakequeue", "lakequeue-tables"
TABLES_INTERVAL_S = 5
TABLES_RECORDS = 25_000  # up to eight messages in each
# What the loop says when it must not go on, as it stands in Spark's error; and the last line of a
# worker's traceback.
_REFUSED = re.compile(r"(?:Refused|Gone): (.+)")
_PYTHON_ERROR = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception|Stopping)(?:: .*)?)$", re.MULTILINE)
BATCH_S_MAX = 600  # a transaction of Kafka is open as long, at most 15 minutes by default
START_TIMEOUT_S = 120.0
ASK_TIMEOUT_S = 30.0
# What a stop may take, of the 10 s that a `lakequeue up` has with its Kafka: until the batch that
# runs is done, until Spark has ended in order, and until what is not sent yet is given up. What is
# cut off runs again at the next start.
STOP_BATCH_S, STOP_SPARK_S, STOP_SEND_S = 4.0, 6.0, 1.0


class Engine:
    """The job. settings: Spark settings that win over `conf/spark.conf`; a setting that begins with
    ``lakequeue.`` is ours: ``lakequeue.trigger`` (``real-time`` or ``micro-batch``),
    ``lakequeue.tables_interval_s`` (0: no tables query), ``lakequeue.ui_port``,
    ``lakequeue.metrics_port`` (by default the one that this home had before; 0 takes a free one,
    -1 serves none). In real time ``lakequeue.batch_s``, ``.batch_mb``, ``.replay_s``,
    ``.page_cache_mb``, ``.records_per_step``, ``.mb_per_step``; in micro-batches
    ``lakequeue.records_per_batch``.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        home: Path | str,
        configuration: Configuration,
        *,
        master: str | None = None,
        settings: dict[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.bootstrap = bootstrap_servers
        self.home = Path(home).resolve()
        self.configuration = configuration
        self._master = master
        self._settings = {
            k: v for k, v in (settings or {}).items() if not k.startswith("lakequeue.")
        }
        self._own = {k: v for k, v in (settings or {}).items() if k.startswith("lakequeue.")}
        self._progress = progress or (lambda text: None)
        self.addresses: dict[str, str] = {}
        self._folder = HomeFolder(self.home)
        self.tables = self._folder.tables
        self.metrics = Metrics()
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._tables_query: StreamingQuery | None = None
        self._ticker = Ticker(self._tick)
        self._heartbeat = EngineHeartbeat(self._beat, self.home)
        self._captured: set[str] = set()
        self._more: set[str] = set()
        self._more_topics = False
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._unasked: set[str] = set()  # VPNs whose queues may capture more than is read
        self._losses = LossWatch(
            bootstrap_servers, lambda loss: self.metrics.lost(loss.topic, loss.count)
        )
        self._restarts = Restarts(self._stopping)
        self.trigger = self._setting("trigger", REAL_TIME)
        if self.trigger not in TRIGGERS:
            allowed = f"one of {', '.join(TRIGGERS)}"
            raise ConfigError([Problem("", "lakequeue.trigger", self.trigger, allowed)])
        batch_s = self._setting("batch_s", 30.0)
        if not 0 < batch_s <= BATCH_S_MAX:
            allowed = f"must be seconds, more than 0 and at most {BATCH_S_MAX}"
            raise ConfigError([Problem("", "lakequeue.batch_s", batch_s, allowed)])
        self._away = False
        self._run = ""  # the loop's, as it is named to end it
        self._loop_stopped = threading.Event()

    @property
    def epoch(self) -> int:
        """The home's epoch; 0 until it is started."""
        return self._folder.epoch

    def _setting(self, name: str, default: Any) -> Any:
        return type(default)(self._own.get(f"lakequeue.{name}", default))

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Start everything; returns when the queues are defined. Raises LakequeueError."""
        self._folder.open(self.trigger)
        named = [q.underlying_topic for q in self.configuration.queues]
        self._captured = self._folder.captured() | set(named)
        self._ensure_topics()
        self._folder.remember_captured(self._captured)
        self._progress("starting Spark")
        self._transport = open_kafka(self.bootstrap, "lakequeue-engine")
        for vpn, command in configure_commands(self.configuration, self.epoch):
            self._transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", command)
        self._transport.flush(10.0)
        self._heartbeat.start()
        with self._java_lives():
            self._start_spark()
        if self.trigger == MICRO_BATCH:
            self._ticker.start()
        self._progress("waiting for the first batch")
        self._wait_until_up()
        self._folder.remember_checkpoints()
        if self._setting("tables_interval_s", TABLES_INTERVAL_S):
            with self._java_lives():
                self._start_tables()
        self._serve()

    def _start_spark(self) -> None:
        self._spark = self._session()
        self._listen()
        self._start_query()

    @contextlib.contextmanager
    def _java_lives(self) -> Iterator[None]:
        """While starting: what fails because Spark's Java process ended is told as that."""
        try:
            yield
        except Exception as error:
            ended = self._java_ended()
            if not ended:
                raise
            raise LakequeueError(
                f"Spark's Java process ended {ended} while starting: see {self.home}/spark.log"
            ) from error

    def _ensure_topics(self) -> None:
        require_broker(self.bootstrap)
        named = [t for t in self._captured if not is_regex(t)]
        self._partitions = ensure_topics(
            self.bootstrap, self._vpns(), named, self.configuration.brokers
        )

    def _vpns(self) -> list[str]:
        return sorted({*self.configuration.vpns, *(q.vpn for q in self.configuration.queues)})

    def _session(self) -> SparkSession:
        from .spark import is_local, package_zip, spark_session

        jars = ensure_jars(self._progress)
        master = self._master
        if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            # More tasks than cores: most wait for each other. A task whose worker died is tried
            # again three times, which is faster than to start its query again.
            master = "local[4,4]"
        port = self._setting("ui_port", 4040)
        spark = spark_session(
            "lakequeue",
            master=master,
            jars=jars.spark,
            extra={
                "spark.scheduler.mode": "FAIR",
                # Spark makes this folder, and by default where the process was started.
                "spark.sql.warehouse.dir": str(self.home / "spark-warehouse"),
                **self._settings,
            },
            ui_port=port or None,
            log_file=self.home / "spark.log",
        )
        if not is_local(master) or (master or "").startswith("local-cluster"):
            spark.sparkContext.addPyFile(str(package_zip(self.home)))
        return spark

    def _listen(self) -> None:
        from .progress import ProgressListener

        assert self._spark is not None
        self._spark.streams.addListener(
            ProgressListener(QUERY, self._on_note, self.metrics.batch, self._losses.batch)
        )

    def _homes(self) -> list[Home]:
        names = self.configuration.brokers
        return [Home(name, number, self.epoch) for number, name in enumerate(names)]

    def _start_query(self) -> None:
        from ..sources.kafka_source import RECORDS_PER_BATCH

        spark = self._spark
        assert spark is not None
        home = self._homes()[0]
        checkpoint = self.home / CHECKPOINT
        if self.trigger == REAL_TIME:
            self._run = uuid.uuid4().hex
            self._loop_stopped.clear()
            options = self._loop_options(home)
            self._query = start_loop(spark, options, QUERY, checkpoint / home.name, self._settings)
        else:
            limit = self._setting("records_per_batch", RECORDS_PER_BATCH)
            self._query = start_batches(
                spark, self.bootstrap, home, self._vpns(), self._readable_topics(),
                self._partitions, limit, QUERY, checkpoint, self._settings,
            )  # fmt: skip

    def _loop_options(self, home: Home) -> Options:
        from ..sources.live import InputLimits
        from .loop import Options
        from .version import code_version

        assert self._spark is not None
        default = Options({}, "", 0, 0, [], [], "", "")
        retained = self._spark.conf.get("spark.sql.streaming.minBatchesToRetain", None) or "100"
        mb = 1_000_000
        return Options(
            kafka_client(self.bootstrap, f"lakequeue-{home.name}"), home.name, home.number,
            home.epoch, self._vpns(), sorted(self._captured), code_version(), self._run,
            keep=int(retained) + 3,
            batch_s=self._setting("batch_s", default.batch_s),
            batch_bytes=self._setting("batch_mb", default.batch_bytes // mb) * mb,
            replay_s=self._setting("replay_s", default.replay_s),
            cache_bytes=self._setting("page_cache_mb", default.cache_bytes // mb) * mb,
            limits=InputLimits(
                self._setting("records_per_step", default.limits.records),
                self._setting("mb_per_step", default.limits.bytes // mb) * mb,
            ),
        )  # fmt: skip

    def _readable_topics(self) -> list[str]:
        """Captured topics and expressions, without those that Kafka's source cannot read: its
        regular expressions are Java's. Publishes by clients still match those."""
        assert self._spark is not None
        pattern = self._spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
        good = []
        for text in sorted(self._captured):
            try:
                pattern.compile(text)
                good.append(text)
            except Exception as error:  # py4j's; told to the operator
                why = str(error).splitlines()[0]
                log.error("no plain Kafka topics for %r: Java does not read it (%s)", text, why)
        return good

    def _start_tables(self) -> None:
        from ..sinks.delta import TableWriter, create_tables
        from ..sources import kafka_source as source

        spark = self._spark
        assert spark is not None
        vpns = self._vpns()
        create_tables(spark, self.tables)
        if self.trigger == REAL_TIME:  # what the loop reads, by its own expressions
            captured = captured_topics(self._partitions, self._captured)
        else:
            captured = self._readable_topics()
        where = source.tables_topics(vpns, captured)
        stream = source.read_stream(spark, self.bootstrap, where, TABLES_RECORDS)
        interval = self._setting("tables_interval_s", TABLES_INTERVAL_S)
        self._tables_query = (
            stream.writeStream.foreachBatch(TableWriter(spark, self.tables))
            .queryName(TABLES_QUERY)
            .option("checkpointLocation", str(self.home / "tables-checkpoint"))
            .trigger(processingTime=f"{interval} seconds")
            .start()
        )

    def _wait_until_up(self) -> None:
        """The engine answers: its definitions have been read."""
        deadline = time.monotonic() + START_TIMEOUT_S
        self._unasked = set(self._vpns())
        while self._unasked:
            self._restart_if_passing()
            try:
                self._ask_what_is_captured(2.0)
            except Timeout as error:
                if time.monotonic() > deadline:
                    raise LakequeueError(
                        f"the first batch did not end within {START_TIMEOUT_S:.0f} s: "
                        f"see {self.home / 'spark.log'}"
                    ) from error

    def _ask_what_is_captured(self, timeout_s: float) -> None:
        """Captured topics come with the progress of a batch, and a driver that died before it
        heard of one never would. The state knows: the engine is asked at each start."""
        from ..client.connection import Connection

        for vpn in sorted(self._unasked):
            transport = open_kafka(self.bootstrap, "lakequeue-start")
            connection = Connection(transport, vpn, "lakequeue-start")
            try:
                for queue in connection.request(commands.Queues(), timeout=timeout_s):
                    self._more.add(queue["definition"]["underlying_topic"])
            finally:
                connection.close()
            self._unasked.discard(vpn)
        self._more -= self._captured

    def _serve(self) -> None:
        assert self._spark is not None
        self.addresses = {"Kafka": f"kafka://{self.bootstrap}"}
        if self._spark.sparkContext.uiWebUrl:
            self.addresses["Spark UI"] = self._spark.sparkContext.uiWebUrl
        port = self._setting("metrics_port", self._folder.port("metrics"))
        if port >= 0:
            self.addresses["metrics"] = self._serve_metrics(port)
        self.addresses["tables"] = str(self.tables)

    def _serve_metrics(self, port: int) -> str:
        try:
            address = self.metrics.serve(port)
        except OSError as error:
            if "lakequeue.metrics_port" in self._own:
                raise LakequeueError(
                    f"lakequeue.metrics_port: {port} cannot be served "
                    f"({error.strerror or error}): choose another, or 0 for a free one"
                ) from error
            log.warning("the metrics' port %d is taken by another program: another is used", port)
            address = self.metrics.serve(0)
        self._folder.remember_port("metrics", urlsplit(address).port or 0)
        return address

    # ------------------------------------------------------------ while it runs

    def _tick(self) -> None:
        vpn = self._vpns()[0]
        value = commands.encode_command(commands.Tick())
        try:
            self._transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", value)
        except LakequeueError as error:  # Kafka is away; the next tick comes in 2 s
            log.warning("a tick was not sent: %s", error)

    def _beat(self, value: bytes) -> None:
        for vpn in self._vpns():
            self._transport.command(topics.topic(vpn, topics.ENGINE), b"engine", value)

    def _on_note(self, note: str) -> None:
        kind, _, rest = note.partition(":")
        if kind == "deadline":
            broker, _, at = rest.rpartition(":")
            self._ticker.set(broker, int(at))
        elif kind == "alert":
            log.warning("%s", rest)
        elif kind == "capture" and rest not in self._captured:
            self._more.add(rest)
        elif kind == "topic" and rest not in self._partitions:
            self._more_topics = True
        elif kind == "lost":
            topic, _, count = rest.rpartition(":")
            log.error("%s records of topic %r are gone before they were read: Kafka's retention is "
                      "shorter than the engine's rest", count, topic)  # fmt: skip
            self.metrics.lost(topic, int(count))
        elif kind == "refused":
            log.error("Kafka does not take records for %s", rest)
        elif kind == "stopped":
            self._loop_stopped.set()
        elif kind == "malformed":
            vpn, _, count = rest.rpartition(":")
            self.metrics.malformed(vpn, int(count))

    def wait(self) -> None:
        """Until stopped; starts again what failed, raises when that does not help."""
        while not self._stopping.wait(0.25):
            with self._lock:
                if self._stopping.is_set():
                    break
                try:
                    self._look_after()
                except Exception:
                    if self._stopping.is_set():
                        break
                    if not self._java_ended():
                        raise
                    self._restart_spark()
        self._stopped.wait(60)

    def _look_after(self) -> None:
        try:
            if self._unasked:
                self._ask_what_is_captured(ASK_TIMEOUT_S)
            if self._more or self._more_topics:
                self._capture_more()
        except (NotConnected, Timeout) as error:  # Kafka or the query is away: the next time
            log.warning("captured topics are not known yet: %s", error)
            self._stopping.wait(1.0)
        for restart, query in (
            (self._start_query, self._query),
            (self._start_tables, self._tables_query),
        ):
            if query is not None and not query.isActive:
                self._recover(query, restart)

    def _capture_more(self) -> None:
        """A queue captures a topic that is not read yet: read it from now on."""
        more = set(self._more)
        self._captured |= more
        self._folder.remember_captured(self._captured)
        self._ensure_topics()
        self._more -= more
        self._more_topics = False
        if self.trigger == MICRO_BATCH:  # a loop finds them itself
            self._end(self._query)
            self._start_query()
        if self._tables_query is not None:
            self._end(self._tables_query)
            self._start_tables()

    def _recover(self, query: StreamingQuery, restart: Callable[[], None]) -> None:
        refused = _REFUSED.search(str(query.exception()))
        if refused:
            raise LakequeueError(refused[1])
        try:
            require_broker(self.bootstrap)
        except NotConnected as error:  # no fault of the query's: wait, however long it takes
            log.log(logging.DEBUG if self._away else logging.ERROR, "%s ended: %s; it goes on when "
                    "Kafka answers", query.name, error)  # fmt: skip
            self._away = True
            self._stopping.wait(0.5)
            return
        self._away = False
        self._restarts.again(
            f"the query {query.name!r}", _reason(query), f"{self.home / 'spark.log'}"
        )
        if not self._stopping.is_set():
            restart()
            self._unasked = set(self._vpns())

    def _java_ended(self) -> str:
        from .spark import java_ended

        return java_ended(self._spark, wait_s=2.0) if self._spark is not None else ""

    def _restart_spark(self) -> None:
        """Spark's Java process is gone: what it had committed stands in the checkpoint."""
        from .spark import forget_session

        tables = self._tables_query is not None
        while ended := self._java_ended():
            self._restarts.again(
                "Spark's Java process", ended, f"{self.home / 'spark.log'}"
            )
            if self._stopping.is_set():
                return
            assert self._spark is not None
            forget_session(self._spark)
            self._query = self._tables_query = None
            try:
                self._start_spark()
                if tables:
                    self._start_tables()
                log.warning("Spark runs again")
                break
            except Exception:
                if not self._java_ended():
                    raise
        self._unasked = set(self._vpns())

    def _restart_if_passing(self) -> None:
        """While starting: a cause that passes is no reason to end, any other is."""
        with self._java_lives():
            query = self._query
            if query is None or query.isActive:
                return
            reason = _reason(query)
            refused = _REFUSED.search(str(query.exception()))
            if refused:
                raise LakequeueError(refused[1])
            if not passes(reason):
                raise LakequeueError(
                    f"the engine's query failed: {reason}; see {self.home}/spark.log"
                )
            self._recover(query, self._start_query)

    # ------------------------------------------------------------ stop

    def _end(self, query: StreamingQuery | None, wait_s: float = 60.0) -> None:
        """Stop a query between two batches; in the middle of one that takes longer."""
        if query is None or not query.isActive:
            return
        if query is self._query and self.trigger == REAL_TIME:
            self._end_loop(wait_s)
            query.stop()
            return
        until = time.monotonic() + wait_s
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(0.01)
        query.stop()

    def _end_loop(self, wait_s: float) -> None:
        """Ask the loop to end its batch, and wait until Spark has it."""
        topic = topics.topic(self.configuration.brokers[0], topics.CONTROL)
        until = time.monotonic() + wait_s
        try:
            require_broker(self.bootstrap, min(1.0, wait_s))
            self._transport.command(topic, b"engine", self._run.encode())
        except LakequeueError as error:
            log.warning("the loop is cut off, the next start takes its steps again: %s", error)
            return
        while self._query is not None and self._query.isActive and time.monotonic() < until:
            if self._loop_stopped.wait(0.05):
                return
        log.warning("the last batch did not end, the next start takes its steps again")

    def stop(self) -> None:
        """Finish the batch, stop the queries and Spark, within 8 s. Calling it again does nothing.

        Whatever is away or hangs (Kafka, a batch, Java) is cut off then: nothing is lost, a batch
        that was cut off runs again at the next start.
        """
        first = not self._stopping.is_set()
        self._stopping.set()
        if not first:
            return
        held = self._lock.acquire(timeout=1.0)  # the supervisor may be in the middle of a restart
        try:
            self._ticker.stop()
            self._heartbeat.stop()
            if self._spark is not None and not within(STOP_SPARK_S, self._stop_spark, "stop-spark"):
                log.warning("Spark did not end in time and is cut off; a batch may run again")
                self._kill_spark()
            if hasattr(self, "_transport"):
                within(STOP_SEND_S, self._transport.close, "stop-transport")
            self.metrics.stop()
        finally:
            self._stopped.set()
            if held:
                self._lock.release()

    def _stop_spark(self) -> None:
        from .spark import forget_session, java_ended

        assert self._spark is not None
        if java_ended(self._spark):
            forget_session(self._spark)
            return
        until = time.monotonic() + STOP_BATCH_S
        self._end(self._query, STOP_BATCH_S)
        self._end(self._tables_query, until - time.monotonic())
        self._spark.stop()

    def _kill_spark(self) -> None:
        from .spark import forget_session, kill_java

        assert self._spark is not None
        kill_java()
        forget_session(self._spark)


def _reason(query: StreamingQuery) -> str:
    """What a query failed with: of an error in a Python worker its own line."""
    error = str(query.exception() or "no reason given").strip()
    in_worker = _PYTHON_ERROR.findall(error)
    return in_worker[-1] if in_worker else error.splitlines()[0]
