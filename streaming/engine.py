"""The supervisor: starts the queries, keeps time, restarts what failed, stops in good order.

A home folder holds all that must outlive the process: the checkpoints of the two queries, the Delta
tables, the list of captured topics, and the version of the state's layout.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.kafka import open_kafka
from ..client.kafka_base import require_broker
from ..definitions import Configuration, is_regex
from ..definitions.as_commands import configure_commands
from ..protocol import LakequeueError, commands, topics
from ..sinks.metrics import Metrics
from ..state import FORMAT
from .jars import ensure_jars
from .planning import QUERY_SETTINGS
from .ticker import Ticker
from .topics_admin import ensure_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

log = logging.getLogger("lakequeue.engine")

QUERY, TABLES_QUERY = "lakequeue", "lakequeue-tables"
RESTARTS_MAX = 5
RESTART_WINDOW_S = 300.0
TABLES_INTERVAL_S = 5
TABLES_RECORDS = 25_000  # up to eight messages in each
START_TIMEOUT_S = 120.0


class Engine:
    """The job. settings: Spark settings that win over `conf/spark.conf`; a setting that begins with
    ``lakequeue.`` is ours: ``lakequeue.records_per_batch``, ``lakequeue.tables_interval_s``
    (0: no tables query), ``lakequeue.ui_port``, ``lakequeue.metrics_port``.
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
        self.tables = self.home / "tables"
        self.metrics = Metrics()
        self._spark: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._tables_query: StreamingQuery | None = None
        self._ticker = Ticker(self._tick)
        self._captured: set[str] = set()
        self._more: set[str] = set()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._restarts: list[float] = []

    def _setting(self, name: str, default: Any) -> Any:
        return type(default)(self._own.get(f"lakequeue.{name}", default))

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Start everything; returns when the queues are defined. Raises LakequeueError."""
        self._check_home()
        named = [q.underlying_topic for q in self.configuration.queues]
        self._captured = self._remembered() | set(named)
        require_broker(self.bootstrap)
        self._remember()
        self._ensure_topics()
        self._progress("starting Spark")
        self._spark = self._session()
        self._transport = open_kafka(self.bootstrap, "lakequeue-engine")
        for vpn, command in configure_commands(self.configuration):
            self._transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", command)
        self._transport.flush(10.0)
        self._listen()
        self._start_query()
        self._ticker.start()
        self._progress("waiting for the first batch")
        self._wait_until_up()
        if self._setting("tables_interval_s", TABLES_INTERVAL_S):
            self._start_tables()
        self._serve()

    def _ensure_topics(self) -> None:
        named = [t for t in self._captured if not is_regex(t)]
        self._partitions = ensure_topics(self.bootstrap, self._vpns(), named)

    def _vpns(self) -> list[str]:
        return sorted({*self.configuration.vpns, *(q.vpn for q in self.configuration.queues)})

    def _check_home(self) -> None:
        """The home is ours, and of this version."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self.tables.mkdir(exist_ok=True)
            about = self.home / "lakequeue.json"
            if about.exists():
                found = json.loads(about.read_text())["format"]
                if found != FORMAT:
                    raise LakequeueError(
                        f"{self.home} was written by a version with state format {found}; this "
                        f"version reads {FORMAT}: use that version, or another --home"
                    )
            else:
                _write(about, {"format": FORMAT})
        except (OSError, ValueError, KeyError) as error:
            raise LakequeueError(f"home {self.home} cannot be used: {error}") from error

    def _remembered(self) -> set[str]:
        file = self.home / "captured.json"
        try:
            return set(json.loads(file.read_text())) if file.exists() else set()
        except ValueError as error:
            raise LakequeueError(
                f"{file} is damaged ({error}): write a JSON list of the topics that queues "
                f"capture, or remove it if the configuration names them all"
            ) from error

    def _remember(self) -> None:
        _write(self.home / "captured.json", sorted(self._captured))

    def _session(self) -> SparkSession:
        from .session import is_local, package_zip, spark_session

        jars = ensure_jars(self._progress)
        master = self._master
        if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
            master = "local[4]"  # more tasks than cores: most of them wait for each other
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
            ProgressListener(QUERY, self._on_note, self.metrics.batch)
        )

    def _numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.configuration.brokers)}

    def _start_query(self) -> None:
        from ..sinks.kafka import OUTPUT_SCHEMA, write_kafka
        from ..sources import kafka as source
        from .processor import BrokerProcessor
        from .session import settings_set

        spark = self._spark
        assert spark is not None
        vpns, broker = self._vpns(), self.configuration.brokers[0]
        captured = self._readable_topics()
        limit = self._setting("records_per_batch", source.RECORDS_PER_BATCH)
        commands_in = source.read_stream(spark, self.bootstrap, source.commands_topics(vpns))
        publishes = source.read_stream(
            spark, self.bootstrap, source.publish_topics(vpns, captured), limit
        )
        rows = source.input_rows(commands_in, publishes, broker)
        outputs = rows.coalesce(1).groupBy("broker").transformWithStateInPandas(
            BrokerProcessor(self._numbers(), self._partitions), OUTPUT_SCHEMA, "append", "None"
        )
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "engine")
        query = (
            write_kafka(outputs, self.bootstrap)
            .queryName(QUERY)
            .option("checkpointLocation", str(self.home / "checkpoint"))
        )
        own = {k: v for k, v in QUERY_SETTINGS.items() if k not in self._settings}
        with settings_set(spark, own):
            self._query = query.start()
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")

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
        from ..sources import kafka as source

        spark = self._spark
        assert spark is not None
        vpns = self._vpns()
        create_tables(spark, self.tables)
        where = source.tables_topics(vpns, self._readable_topics())
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
        from ..client.connection import Connection

        deadline = time.monotonic() + START_TIMEOUT_S
        transport = open_kafka(self.bootstrap, "lakequeue-start")
        connection = Connection(transport, self._vpns()[0], "lakequeue-start")
        try:
            while True:
                self._raise_if_failed()
                try:
                    connection.request(commands.Queues(), timeout=2.0)
                    return
                except LakequeueError as error:
                    if time.monotonic() > deadline:
                        raise LakequeueError(
                            f"the first batch did not end within {START_TIMEOUT_S:.0f} s: "
                            f"see {self.home / 'spark.log'}"
                        ) from error
        finally:
            connection.close()

    def _serve(self) -> None:
        assert self._spark is not None
        port = self._setting("metrics_port", 0)
        self.addresses = {"Kafka": self.bootstrap}
        if self._spark.sparkContext.uiWebUrl:
            self.addresses["Spark UI"] = self._spark.sparkContext.uiWebUrl
        if port >= 0:
            self.addresses["metrics"] = self.metrics.serve(port)
        self.addresses["tables"] = str(self.tables)

    # ------------------------------------------------------------ while it runs

    def _tick(self) -> None:
        vpn = self._vpns()[0]
        value = commands.encode_command(commands.Tick())
        self._transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", value)

    def _on_note(self, note: str) -> None:
        kind, _, rest = note.partition(":")
        if kind == "deadline":
            broker, _, at = rest.rpartition(":")
            self._ticker.set(broker, int(at))
        elif kind == "alert":
            log.warning("%s", rest)
        elif kind == "capture" and rest not in self._captured:
            self._more.add(rest)
        elif kind == "malformed":
            vpn, _, count = rest.rpartition(":")
            self.metrics.malformed(vpn, int(count))

    def wait(self) -> None:
        """Until stopped; restarts a query that failed, raises when that does not help."""
        while not self._stopping.wait(0.25):
            with self._lock:
                if self._stopping.is_set():
                    break
                if self._more:
                    self._capture_more()
                for restart, query in (
                    (self._start_query, self._query),
                    (self._start_tables, self._tables_query),
                ):
                    if query is not None and not query.isActive:
                        self._recover(query, restart)
        self._stopped.wait(60)

    def _capture_more(self) -> None:
        """A queue captures a topic that is not read yet: read it from now on."""
        more, self._more = self._more, set()
        self._captured |= more
        self._remember()
        self._ensure_topics()
        self._end(self._query)
        self._start_query()
        if self._tables_query is not None:
            self._end(self._tables_query)
            self._start_tables()

    def _recover(self, query: StreamingQuery, restart: Callable[[], None]) -> None:
        now = time.monotonic()
        self._restarts = [t for t in self._restarts if now - t < RESTART_WINDOW_S] + [now]
        error = query.exception()
        first_line = str(error).strip().splitlines()[0] if error else "no reason given"
        log.error("query %s failed: %s", query.name, first_line)
        if len(self._restarts) > RESTARTS_MAX:
            raise LakequeueError(
                f"query {query.name!r} failed {len(self._restarts)} times within "
                f"{RESTART_WINDOW_S:.0f} s, last: {first_line} (see {self.home / 'spark.log'})"
            )
        time.sleep(min(2.0 ** len(self._restarts) / 2, 10))
        restart()

    def _raise_if_failed(self) -> None:
        query = self._query
        if query is not None and not query.isActive:
            error = query.exception()
            text = str(error).strip().splitlines()[0] if error else "no reason given"
            raise LakequeueError(f"the engine's query failed: {text}; see {self.home}/spark.log")

    # ------------------------------------------------------------ stop

    def _end(self, query: StreamingQuery | None) -> None:
        """Stop a query between two batches."""
        if query is None or not query.isActive:
            return
        until = time.monotonic() + 60
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(0.01)
        query.stop()

    def stop(self) -> None:
        """Finish the batch, stop the queries and Spark. Calling it again does nothing."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
            try:
                self._ticker.stop()
                self._end(self._query)
                self._end(self._tables_query)
                if self._spark is not None:
                    self._spark.stop()
                if hasattr(self, "_transport"):
                    self._transport.close()
                self.metrics.stop()
            finally:
                self._stopped.set()


def _write(file: Path, value: Any) -> None:
    """Write JSON whole or not at all: a crash must not leave half a file."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(value))
    draft.replace(file)
