"""The engine: one home, one Kafka, one configuration, and all that runs for them.

    home (`home`)         what must outlive the process: checkpoints, tables, who they are
    captured (`captured`) which topics are read
    application           Spark: a query for the broker, one for the tables
    watch (`engine_watch`)  starts again what failed
    heartbeat, ticker, alerts, metrics  what others need to hear of it

It starts them in this order and stops them in the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..client.kafka_library import open_kafka
from ..client.transport import Transport
from ..definitions import Configuration
from ..definitions.as_commands import configure_commands
from ..protocol import LakequeueError, commands, topics
from ..sinks.metrics import Metrics
from .alert_watch import AlertWatch
from .application import QUERY, SparkApplication
from .batch_notes import BatchNotes
from .captured import CapturedTopics
from .engine_settings import EngineSettings
from .engine_watch import EngineWatch
from .heartbeat import EngineHeartbeat
from .home import HomeFolder
from .kafka_answers import KafkaAnswers
from .losses import LossWatch, notices
from .queries import HISTORY_QUERY, MICRO_BATCH, TABLES_QUERY
from .supervision import within
from .tables_lock import TablesLock
from .ticker import Ticker

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

log = logging.getLogger("lakequeue.engine")

# What a stop may take, of the 10 s that a `lakequeue up` has with its Kafka: until the batch that
# runs is done, until Spark has ended in order, and until what is not sent yet is given up. What is
# cut off runs again at the next start.
STOP_BATCH_S, STOP_SPARK_S, STOP_SEND_S = 4.0, 6.0, 1.0


class Engine:
    """The job. settings: Spark settings that win over `conf/spark.conf`; a setting that begins with
    ``lakequeue.`` is ours: ``lakequeue.trigger`` (``real-time`` or ``micro-batch``),
    ``lakequeue.tables_interval_s`` (0: no tables), ``.history_interval_s`` and
    ``.snapshots_interval_s`` (0: no tables that lead back to the past), ``lakequeue.ui_port``,
    ``lakequeue.metrics_port`` (by default the one that this home had before; 0 takes a free one,
    -1 serves none). In real time ``lakequeue.batch_s``, ``.batch_mb``, ``.replay_s``,
    ``.page_cache_mb``, ``.records_per_step``, ``.mb_per_step``; in micro-batches
    ``lakequeue.records_per_batch``.

    Raises ConfigError for a setting that is not allowed. addresses: what is served, by name.
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
        self.addresses: dict[str, str] = {}
        self.metrics = Metrics()
        self._settings = EngineSettings(settings or {})
        self._progress = progress or (lambda text: None)
        self._folder = HomeFolder(self.home)
        self.tables = self._folder.tables
        self._lock_of_tables = TablesLock(self.tables)
        vpns = {*configuration.vpns, *(q.vpn for q in configuration.queues)}
        self._vpns = sorted(vpns)
        self._transport: Transport | None = None
        self._heartbeat = EngineHeartbeat(self._beat, self.home)
        self._ticker = Ticker(self._tick)
        self._alerts = AlertWatch(bootstrap_servers, self._vpns)
        self._answers = KafkaAnswers(bootstrap_servers)
        self._losses = LossWatch(
            bootstrap_servers, lambda loss: self._on_loss(loss.topic, loss.count, loss.query)
        )
        self.captured = CapturedTopics(bootstrap_servers, self._folder, configuration, self._vpns)
        self._notes = BatchNotes(
            self.captured, self.metrics, self._ticker,
            lambda topic, records: self._on_loss(topic, records, QUERY),
        )  # fmt: skip
        self.application = SparkApplication(
            bootstrap_servers, self._folder, configuration.brokers[0], self._vpns, self.captured,
            self._settings, master, self._notes.stopped, self._progress,
        )  # fmt: skip
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self.watch = EngineWatch(
            bootstrap_servers, self.application, self.captured, self._folder, self.trigger,
            self._stopping,
        )  # fmt: skip

    @property
    def trigger(self) -> str:
        """How it steps: ``real-time`` or ``micro-batch``."""
        return self._settings.trigger

    @property
    def epoch(self) -> int:
        """The home's epoch; 0 until it is started."""
        return self._folder.epoch

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Start everything; returns when the queues are defined. Raises LakequeueError."""
        self._folder.open(self.trigger)
        self.captured.open()
        self._lock_of_tables.take()
        self._progress("starting Spark")
        transport = self._transport = open_kafka(self.bootstrap, "lakequeue-engine")
        for vpn, command in configure_commands(self.configuration, self.epoch):
            transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", command)
        for vpn, queue in self._folder.rebuilt_queues():
            command = commands.encode_command(commands.BeginAgain(queue=queue))
            transport.command(topics.topic(vpn, topics.COMMANDS), b"engine", command)
        self._heartbeat.start()
        self._alerts.start()
        self._answers.start()
        with self.watch.java_lives():
            self.application.start(self._listener, transport)
        if self.trigger == MICRO_BATCH:
            self._ticker.start()
        transport.flush(10.0)  # Spark took longer
        self._progress("waiting for the first batch")
        self.watch.wait_until_up()
        self._folder.remember_checkpoints()
        with self.watch.java_lives():
            self.application.start_tables()
            self.application.start_history()
        self._serve()

    def _listener(self) -> StreamingQueryListener:
        from .progress import ProgressListener

        return ProgressListener(QUERY, self._notes, self.metrics.batch, self._losses.batch)

    def _serve(self) -> None:
        self.addresses = {"Kafka": f"kafka://{self.bootstrap}"}
        assert self.application.spark is not None
        if page := self.application.spark.sparkContext.uiWebUrl:
            self.addresses["Spark UI"] = page
        port = self._settings.value("metrics_port", self._folder.port("metrics"))
        if port >= 0:
            self.addresses["metrics"] = self._serve_metrics(port)
        self.addresses["tables"] = str(self.tables)

    def _serve_metrics(self, port: int) -> str:
        try:
            address = self.metrics.serve(port)
        except OSError as error:
            if self._settings.has("metrics_port"):
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
        value = commands.encode_command(commands.Tick())
        try:
            self._say(self._vpns[0], topics.COMMANDS, value)
        except LakequeueError as error:  # Kafka is away; the next tick comes in 2 s
            log.warning("a tick was not sent: %s", error)

    def _beat(self, value: bytes) -> None:
        for vpn in self._vpns:
            self._say(vpn, topics.ENGINE, value)

    def _on_loss(self, topic: str, records: int, query: str) -> None:
        self.metrics.lost(topic, records)
        reader = "tables" if query in (TABLES_QUERY, HISTORY_QUERY) else "engine"
        for vpn, command in notices(topic, records, reader, self._vpns):
            try:
                self._say(vpn, topics.COMMANDS, command)
            except LakequeueError as error:  # Kafka is away; the log and the metric have it
                log.warning("a loss is not told in the events: %s", error)

    def _say(self, vpn: str, kind: str, value: bytes) -> None:
        assert self._transport is not None
        self._transport.command(topics.topic(vpn, kind), b"engine", value)

    def wait(self) -> None:
        """Until stopped; starts again what failed, raises when that does not help."""
        self.watch.watch(self._lock)
        self._stopped.wait(60)

    # ------------------------------------------------------------ stop

    def stop(self) -> None:
        """Finish the batch, stop the queries and Spark, within 8 s. Calling it again does nothing.

        Whatever is away or hangs (Kafka, a batch, Java) is cut off then: nothing is lost, a batch
        that was cut off runs again at the next start.
        """
        first = not self._stopping.is_set()
        self._stopping.set()
        if not first:
            return
        held = self._lock.acquire(timeout=1.0)  # the watch may be in the middle of a restart
        try:
            self._ticker.stop()
            self._heartbeat.stop()
            self._answers.stop()
            self._alerts.stop()
            self._stop_spark()
            if self._transport is not None:
                within(STOP_SEND_S, self._transport.close, "stop-transport")
            self.metrics.stop()
        finally:
            self._lock_of_tables.release()
            self._stopped.set()
            if held:
                self._lock.release()

    def _stop_spark(self) -> None:
        application = self.application
        if application.spark is None:
            return
        if not within(STOP_SPARK_S, lambda: application.stop(STOP_BATCH_S), "stop-spark"):
            log.warning("Spark did not end in time and is cut off; a batch may run again")
            application.kill()
