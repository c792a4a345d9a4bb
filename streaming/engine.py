"""The engine runs the queues of one home, on one Kafka and with one configuration.

    home_folder                            everything that must outlive the process
    captured                               the topics that queues capture
    application                            Spark: a query per broker, and those of the tables
    query_watch                            restarts failed queries
    heartbeat, ticker, alerts, metrics     reports to clients and operators

It starts them in this order and stops them in the reverse order.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from confluent_kafka import KafkaException

from ..client.kafka import open_kafka
from ..client.session.transport import Transport
from ..conf.client_keys import clients_command
from ..definitions import DEFAULT_BROKER, Configuration
from ..definitions.configuration import configure_commands
from ..protocol import ConfigError, LakequeueError, NotConnected, commands, topics, wire
from ..protocol.duties import do_every
from ..protocol.home_places import TABLES
from ..sinks.metrics import Metrics
from ..sources.live import kafka_client
from ..sources.same_topic import TopicsNow
from .application import SparkApplication
from .bridges.bridge_watch import BridgeWatch
from .broker_query import STARTING, BrokerQuery, BrokerRecords, broker_of, first_of
from .brokers.change_requests import ChangeRequests, await_partition
from .brokers.engine_rehoming import EngineRehoming
from .captured import CapturedTopics
from .engine_settings import MICRO_BATCH, REAL_TIME, EngineSettings, engine_conf
from .home.home_folder import HomeFolder
from .kafka.kafka_watch import KafkaAnswers
from .restarts import within
from .spark.progress import ProgressListener
from .spark.queries import HISTORY_QUERY, TABLES_QUERY
from .tables.table_care import TableCare, rules_of, upkeep_s
from .tables.table_repair import TablesLock
from .tables.tables_watch import TablesMarks, TablesWatch
from .watch.batch_notes import (
    LOST,
    BatchNotes,
    LossWatch,
    notes_of_broker,
    notes_of_topics,
    notices,
)
from .watch.heartbeat import EngineHeartbeat, Ticker
from .watch.journal_watch import AlertWatch, EventLines
from .watch.query_watch import EngineWatch
from .watch.queue_watch import QueueWatch
from .watch.step_watch import StepWatch

log = logging.getLogger("lakequeue.engine")

# `lakequeue up` has 10 s to stop itself and its Kafka. Of these, the engine may use so many seconds
# for the running batch, for Spark's end, and for unsent records. A batch that is cut off runs again
# at the next start.
STOP_BATCH_S, STOP_SPARK_S, STOP_SEND_S = 4.0, 6.0, 1.0


class Engine:
    """One engine. settings: Spark settings, which override `conf/spark.conf`, and the engine's own,
    which begin with ``lakequeue.``: ``lakequeue.trigger`` (``real-time`` or ``micro-batch``),
    ``lakequeue.tables_interval_s`` (0: no tables), ``.history_interval_s`` and
    ``.snapshots_interval_s`` (0: no tables for `lakequeue at`), ``.retention_days``,
    ``.upkeep_hours``, ``.vacuum_hours`` (see `table_care`), ``lakequeue.tables`` and
    ``.checkpoints`` (paths or URIs, by default in the home), ``lakequeue.ui_port``,
    ``lakequeue.log_format`` (``text`` or ``json``),
    ``lakequeue.metrics_port`` (by default the home's last one; 0 takes a free one, -1 serves
    none). In real time ``lakequeue.batch_s``, ``.batch_mb``, ``.replay_s``,
    ``.page_cache_mb``, ``.records_per_step``, ``.mb_per_step``; in micro-batches
    ``lakequeue.records_per_batch``.

    Raises ConfigError for a setting that is not allowed. addresses: where the engine's services
    are, by name.
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
        self._settings = EngineSettings({**engine_conf(), **(settings or {})})
        self._progress = progress or (lambda text: None)
        self._folder = HomeFolder(self.home, *self._settings.places)
        self.tables = self._folder.tables
        self._lock_of_tables = TablesLock(self.home / TABLES)
        self._vpns = sorted(configuration.vpns)
        self._transport: Transport | None = None
        # Numbered in this order until `_number_brokers` reads the home.
        self.brokers = {b: BrokerQuery(b, i) for i, b in enumerate(configuration.brokers)}
        self._records = BrokerRecords(self._put_record)
        self._heartbeat = EngineHeartbeat(self._beat, self.home)
        self._ticker = Ticker(self._tick)
        self._event_lines = EventLines()
        self._alerts = AlertWatch(
            bootstrap_servers, self._vpns, self._on_events, idle=self._event_lines.idle
        )
        self._queue_watch = QueueWatch(
            bootstrap_servers, self._vpns, self.metrics.queues,
            credentials=lambda: self._folder.credentials,
        )  # fmt: skip
        self.metrics.wanted = self._queue_watch.wanted
        self._answers = KafkaAnswers(bootstrap_servers)
        self._losses = LossWatch(
            bootstrap_servers,
            lambda loss: self._on_loss("", loss.topic, loss.count, LOST, loss.query),
        )
        self.captured = CapturedTopics(
            bootstrap_servers, self._folder, configuration, self._vpns, self.brokers,
            self._begin_command,
        )  # fmt: skip
        self._marks = TablesMarks(self.brokers, self._tell_broker)
        self._notes = BatchNotes(
            self.captured, self.metrics, self._ticker, self._on_loss, self._on_report
        )
        self.application = SparkApplication(
            bootstrap_servers, self._folder, self.brokers, self._vpns, self.captured,
            self._settings, master, self._progress, self._notes.of_tables,
        )  # fmt: skip
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.RLock()
        self._make_watches()
        self._refuse_in_batches()

    def _make_watches(self) -> None:
        """Make the watches of the running parts, without starting them."""
        self._tables_watch = TablesWatch(
            self.application, self._folder, self.metrics, self._tell_all_vpns,
            self._lock_of_tables.take,
        )  # fmt: skip
        self.watch = EngineWatch(
            self.bootstrap, self.application, self.captured, self._folder, self.trigger,
            self._stopping, self._records.state, self._tables_watch.look, self._tell_brokers,
        )  # fmt: skip
        self._steps = StepWatch(
            self.bootstrap, self.brokers, self._tell_broker, self._on_stuck,
            self.application.executors,
        )  # fmt: skip
        self._care = TableCare(
            self._folder.tables, self.home / TABLES, rules_of(self._settings),
            upkeep_s(self._settings), lambda: self.application.spark, self._queue_watch.look,
            self.metrics,
        )  # fmt: skip
        self.rehoming = EngineRehoming(
            self.bootstrap, self.application, self.captured, self._folder, self._vpns, self._lock,
            self._begin, self._tell_peers, self._records.gone, self._send_last_records,
        )  # fmt: skip
        self._requests = ChangeRequests(self.bootstrap, self._vpns, self.rehoming, self._put_record)
        self.bridges = BridgeWatch(self.bootstrap, self._vpns)

    @property
    def trigger(self) -> str:
        """The trigger: ``real-time`` or ``micro-batch``."""
        return self._settings.trigger

    @property
    def log_format(self) -> str:
        """The format of log lines: ``text`` or ``json``."""
        return self._settings.log_format

    @property
    def epoch(self) -> int:
        """The home's epoch; 0 until it is started."""
        return self._folder.epoch

    def _refuse_in_batches(self) -> None:
        found = [b.name for b in self.configuration.bridges if b.leaves or b.expects_home]
        what = "serves no bridge to another Kafka"
        if (n := len(self.brokers)) > 1:
            what, found = f"runs one broker, but there are {n}", list(self.brokers)
        if found and self.trigger == MICRO_BATCH:
            names = ", ".join(map(repr, found))
            raise ConfigError(f"the trigger {MICRO_BATCH!r} {what}: {names}")

    # ------------------------------------------------------------ start

    def start(self) -> None:
        """Start everything; returns when the queues are defined. Raises LakequeueError."""
        self._folder.open(self.trigger)
        self._number_brokers()
        transport = self._require_its_kafka()
        self.captured.open()
        # an engine without tables may replace a frozen one
        if self.application.tables_interval_s:
            with contextlib.suppress(OSError):  # no rights, no room: the tables' watch reports it
                self._lock_of_tables.take()
        self._folder.mend()
        numbers, groups = self._numbers_and_groups()
        self._folder.remember_brokers(numbers, groups)
        for name in self._folder.removed():  # an engine that died may not have sent them
            self._records.gone(name)
        self._progress("Starting Spark …")
        for broker in self.brokers.values():
            self._begin(broker)
            for vpn, queue in self._folder.rebuilt_queues():
                self._tell(vpn, broker, commands.encode_command(commands.BeginAgain(queue=queue)))
        transport.flush(10.0)  # a loop reads no client's command before these instructions
        self._heartbeat.start()
        self._alerts.start()
        self._answers.start()
        with self.watch.java_lives():
            self.application.start(lambda: ProgressListener(self._on_batch), transport)
        if self.trigger == MICRO_BATCH:
            self._ticker.start()
        transport.flush(10.0)  # Spark took longer
        self._progress("Waiting for the first batch …")
        self.watch.wait_until_up()
        self._folder.remember_checkpoints()
        self._send_last_records()
        with self.watch.java_lives():
            self._tables_watch.begin()
        if self.application.tables_interval_s:
            self._care.start()
        self._requests.open(transport.newest, self._folder)
        if self.trigger == REAL_TIME:  # micro-batches do not read records of other homes
            self.bridges.open(self.epoch)
            self._steps.start()
        self._serve()

    def _require_its_kafka(self) -> Transport:
        """Refuse a Kafka that is not the home's: the home's offsets mean nothing there, even at the
        same address. Connecting first shows whether Kafka is down or refuses the credentials."""
        transport = self._transport = open_kafka(self.bootstrap, "lakequeue-engine")
        try:
            cluster = TopicsNow(kafka_client(self.bootstrap, "lakequeue-engine")).cluster()
        except KafkaException as error:
            raise NotConnected(
                f"Kafka at {self.bootstrap} does not report its cluster id: {error}"
            ) from error
        self._folder.require_kafka(cluster, self.bootstrap, self._settings.accepts_other_kafka)
        return transport

    def _number_brokers(self) -> None:
        """Number the brokers of this home and those in the configuration."""
        named = set(self.brokers) - {DEFAULT_BROKER}  # the default of a configuration without names
        for name in sorted(named & set(self._folder.removed())):
            log.warning(
                "broker %r was removed from this home and is not started: remove its name from "
                "the configuration", name,
            )  # fmt: skip
        numbers = self._folder.brokers(self.brokers)
        self._folder.require_brokers(numbers)
        groups = self._folder.groups(self.configuration.groups, numbers)
        self.brokers.clear()  # the same mapping: other objects share it
        for name, number in numbers.items():
            self.brokers[name] = BrokerQuery(name, number, group=groups.get(name, ""))
        self._refuse_in_batches()

    def _numbers_and_groups(self) -> tuple[dict[str, int], dict[str, str]]:
        brokers = self.brokers.values()
        return {b.name: b.number for b in brokers}, {b.name: b.group for b in brokers if b.group}

    def _begin(self, broker: BrokerQuery) -> None:
        """Send a broker its instructions before its query starts."""
        assert self._transport is not None
        if own := topics.commands_partition(broker.number):  # it may just have been made
            for vpn in self._vpns:
                await_partition(self._transport, topics.topic(vpn, topics.COMMANDS), own)
        numbers, groups = self._numbers_and_groups()
        config = msgspec.structs.replace(self.configuration, brokers=tuple(numbers), groups=groups)
        instructions = configure_commands(config, broker.name, numbers)
        # it may not know yet that it is the only one
        if len(numbers) == 1 and self._folder.removed():
            instructions.insert(0, (self._vpns[0], self._peers()))
        begin, clients = self._begin_command(), clients_command(config, self._folder.secret)
        first = [(self._vpns[0], told) for told in (begin, clients, self.captured.existing())]
        for vpn, command in [*first, *instructions]:
            self._tell(vpn, broker, command)
        for vpn in self._vpns:
            self._transport.command(
                topics.topic(vpn, topics.COMMANDS), b"engine", begin,
                topics.commands_partition(broker.number),
            )  # fmt: skip
        self._marks.begin(broker, self.application.tables_interval_s > 0)
        self._records.epoch = self.epoch
        self._records.state(broker, STARTING)

    def _begin_command(self) -> bytes:
        joins = self.trigger == REAL_TIME
        return commands.encode_command(commands.Begin(epoch=self.epoch, joins_homes=joins))

    def _peers(self) -> bytes:
        numbers, groups = self._numbers_and_groups()
        return commands.encode_command(commands.Peers(brokers=numbers, groups=groups))

    def _tell_peers(self) -> None:
        self._tell_brokers(self._peers())
        assert self._transport is not None
        self._transport.flush(10.0)  # as at the start: before its loop reads

    def _send_last_records(self) -> None:
        journals = self._folder.last_records()
        assert self._transport is not None
        for record in wire.encode([*journals]):
            headers = wire.headers_list(record.headers)
            self._transport.publish(
                record.topic, record.value, record.key, headers, record.partition
            )
        if journals and self._transport.flush(10.0):
            self._folder.forget_last_records()

    def _on_batch(self, progress: dict[str, Any]) -> None:
        query = str(progress.get("name"))
        self._losses.batch(progress)
        for note in notes_of_topics(progress):
            self._notes("", note)
        self.metrics.query(progress)
        self._marks.batch(progress)
        self._tables_watch.batch(query)
        name = broker_of(query, self.brokers)
        if name is None:
            return
        for note in notes_of_broker(progress):
            self._notes(name, note)
        self.metrics.batch(progress)
        if (broker := self.brokers.get(name)) is not None:
            self._records.batch(broker, progress)

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
            log.warning("another program uses the metrics' port %d, so another port is used", port)
            address = self.metrics.serve(0)
        self._folder.remember_port("metrics", urlsplit(address).port or 0)
        return address

    # ------------------------------------------------------------ while it runs

    def _tick(self) -> None:
        try:
            self._tell_brokers(commands.encode_command(commands.Tick()))
        except LakequeueError as error:  # `KafkaAnswers` reports it; the next tick comes in 2 s
            log.debug("a tick was not sent: %s", error)

    def _beat(self, value: bytes) -> None:
        assert self._transport is not None
        command, kind = self._transport.command, topics.ENGINE
        do_every(partial(command, topics.topic(v, kind), b"engine", value) for v in self._vpns)

    def _put_record(self, key: bytes, value: bytes | None) -> None:
        if self._transport is None:  # it has not started yet
            return
        publish, kind = self._transport.publish, topics.DIRECTORY
        do_every(partial(publish, topics.topic(v, kind), value, key, [], 0) for v in self._vpns)

    def _on_events(self, broker: str, events: pa.Table) -> None:
        self.metrics.times.journal(broker, events)
        self._event_lines.heard(broker, events)

    def _on_report(self, broker: str, kind: str, rest: str) -> None:
        if broker in self.brokers:
            if kind == "stopped":
                self.brokers[broker].ended.set()
            else:
                self._records.worker(self.brokers[broker], rest)

    def _on_loss(self, broker: str, topic: str, records: int, event: str, query: str = "") -> None:
        """Count and report lost records. broker: the one whose loop lost them; empty: another
        reader did, and the first broker gets the event."""
        if event == LOST:
            self.metrics.count("lost_records", topic, by=records)
        reader = "tables" if query in (TABLES_QUERY, HISTORY_QUERY) else "engine"
        reporter = self.brokers.get(broker) or first_of(self.brokers)
        for vpn, command in notices(topic, records, reader, self._vpns, event):
            try:
                self._tell(vpn, reporter, command)
            except LakequeueError as error:  # Kafka is away; the log and the metric have it
                log.warning("no event reports the loss: %s", error)

    def _on_stuck(self, broker: BrokerQuery, why: str) -> None:
        self.metrics.count("stuck_brokers", broker.name)
        broker.hangs = why  # the watch restarts it

    def _tell_all_vpns(self, value: bytes) -> None:
        first = first_of(self.brokers)
        do_every(partial(self._tell, vpn, first, value) for vpn in self._vpns)

    def _tell_brokers(self, value: bytes) -> None:
        do_every(partial(self._tell_broker, broker, value) for broker in [*self.brokers.values()])

    def _tell_broker(self, broker: BrokerQuery, value: bytes) -> None:
        self._tell(self._vpns[0], broker, value)

    def _tell(self, vpn: str, broker: BrokerQuery, value: bytes) -> None:
        """Write a command for this VPN to the broker's instructions topic, where no client may
        write."""
        assert self._transport is not None
        instructions = topics.topic(broker.name, topics.INSTRUCTIONS)
        self._transport.command(instructions, vpn.encode(), value)

    def wait(self) -> None:
        """Wait until the engine is stopped. Restarts failed parts; raises if that does not help."""
        self.watch.watch(self._lock)
        self._stopped.wait(60)

    # ------------------------------------------------------------ stop

    def stop(self) -> None:
        """Finish the batch, stop the queries and Spark, within 8 s. Calling it again does nothing.

        It cuts off parts that do not answer in time (Kafka, a batch, Java). Nothing is lost: a
        batch that was cut off runs again at the next start.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        held = self._lock.acquire(timeout=1.0)  # the watch may be in the middle of a restart
        try:
            for part in (
                self._ticker, self._heartbeat, self._answers, self._steps, self._alerts,
                self._care, self._requests, self.bridges, self.captured, self._queue_watch,
            ):  # fmt: skip
                part.stop()
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
