"""The loop on a real Kafka, without Spark: clean stops, the log, sessions, deleted topics, another
Kafka.

Kills and zombies under traffic: `tests/sim`, and with all real parts `tests/job/test_chaos.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import lakequeue
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from job.processes import SLOWER, until
from lakequeue.client.kafka import open_kafka
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands
from lakequeue.protocol.errors import LakequeueError, LeaseLost, Timeout
from lakequeue.sinks.log_writer import RECENT_S, StepLog
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import Gone, read_steps
from lakequeue.sources.same_topic import TopicsNow
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.broker_query import BrokerQuery
from lakequeue.streaming.captured import CapturedTopics
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.kafka.topics_admin import PARTITIONS, ensure_topics
from loop.on_kafka import LoopOnKafka, answers, tell
from rules.steps import subscribe

pytestmark = pytest.mark.job

QUEUE = {"name": "orders", "message_type": "text", "max_per_subscription_backlog": 50}
STEPS = "broker-0.steps"
SILENT_S = 8.0  # a slow machine may delay a heartbeat by five seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopOnKafka]:
    folder = tmp_path_factory.mktemp("loop")
    place = LoopOnKafka(EmbeddedKafka(folder / "kafka"), folder)
    try:
        place.begin()
        place.start()
        with lakequeue.connect(place.url) as connection:
            until(lambda: answers(connection), 30, "the worker answers")
            connection.admin().define(QUEUE)
        yield place
    finally:
        for worker in place.workers:
            worker.kill()
            worker.wait()
        place.kafka.stop()


def test_a_clean_stop_leaves_nothing_to_replay(place: LoopOnKafka) -> None:
    """The next start, of any version, has nothing to replay."""
    worker = place.workers[-1]
    with lakequeue.connect(place.url) as connection:
        connection.producer().send("orders", b"before")
        begun = time.monotonic()
        said = place.stop(worker)
        assert time.monotonic() - begun < 20 * SLOWER
        assert "stopped:broker-0" in said
        worker = place.start()
        until(lambda: answers(connection), 30, "the next worker answers")
        assert connection.admin().describe("orders")["depth"] == 1
        connection.admin().purge("orders")
        _, replayed, *_ = place.stop(worker).splitlines()[0].split()
    assert replayed == "0"
    place.start()


def test_the_log_is_trimmed_behind_the_oldest_snapshot(place: LoopOnKafka) -> None:
    kafka = kafka_client(place.kafka.bootstrap_servers, "look")
    consumer = Consumer({**kafka, "group.id": "look"})

    def first() -> int:
        return consumer.get_watermark_offsets(TopicPartition(STEPS, 0))[0]

    before = first()
    with lakequeue.connect(place.url) as connection:

        def trimmed() -> bool:
            answers(connection)
            return first() > before

        until(trimmed, 60, "the log begins later")
    assert first() > before
    consumer.close()


def allow(place: LoopOnKafka, topic: str, most: int) -> None:
    """Set the topic's largest record size."""
    entry = ConfigEntry("max.message.bytes", str(most), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(90)
    producer = Producer({"bootstrap.servers": place.kafka.bootstrap_servers})

    def is_taken() -> bool:
        told: list[bool] = []
        producer.produce(
            topic, b"x" * 60_000, partition=0, on_delivery=lambda error, _: told.append(not error)
        )
        producer.flush(90)
        return told == [True]

    until(lambda: is_taken() == (most > 60_000), 30, f"Kafka takes over that {topic} has {most}")


def test_X5_messages_above_a_lowered_topic_limit_become_dead_messages(
    place: LoopOnKafka,
) -> None:
    """Large messages die, with the limit in the reason; smaller ones of the same batch arrive; a
    reply that is too large is replaced by an error."""
    place.running()
    with lakequeue.connect(place.url) as connection:
        until(lambda: answers(connection), 30, "a worker answers")
        admin = connection.admin()
        admin.define({"name": "dead", "message_type": "text"})
        admin.define({
            "name": "heavy", "message_type": "text", "dead_message_queue": "dead",
            "max_per_subscription_backlog": 1_000,
        })  # fmt: skip
        sizes = [70_000 if n in (3, 40) else 2_000 for n in range(60)]
        with connection.producer() as producer:
            for size in sizes:
                producer.send_async("heavy", "x" * size)
            producer.flush()
        allow(place, "default.deliveries", 50_000)
        try:
            with connection.consumer("heavy", ack_mode="individual", max_backlog=1_000) as consumer:
                small = [consumer.receive(120) for _ in range(58)]
                assert all(m is not None and len(m.payload) == 2_000 for m in small)
                for message in small:
                    message.ack()
                until(lambda: admin.describe("heavy")["depth"] == 0, 20, "the others are dead")
            with pytest.raises(LakequeueError, match="allows: ask for less"):
                admin.browse("dead")
        finally:
            allow(place, "default.deliveries", 12_000_000)
        dead = admin.browse("dead")
        assert [len(m.payload) for m in dead] == [70_000, 70_000]
        assert all(
            "bytes for topic 'default.deliveries'" in m.headers["lq-dead-detail"]
            and "its max.message.bytes is 50,000" in m.headers["lq-dead-detail"]
            for m in dead
        )
        events = [e for e in admin.events() if e["event"] == "message_undeliverable"]
        assert {e["topic"] for e in events} == {"default.deliveries"}
        assert sum(e["messages"] for e in events) == 2


def open_log(place: LoopOnKafka, name: str, **options: Any) -> StepLog:
    ensure_topics(place.kafka.bootstrap_servers, [], [], [name])
    kafka = kafka_client(place.kafka.bootstrap_servers, "fence")
    return StepLog(kafka, f"{name}.steps", lambda: False, **options)


def test_the_last_worker_to_open_the_log_writes_it(place: LoopOnKafka) -> None:
    first = open_log(place, "fenced")
    first.begin()
    first.append(b"1")
    assert first.written(30.0) == [0]
    first.mark()  # Kafka took a record just now
    second = open_log(place, "fenced")
    second.fenced()
    first.append(b"2")
    with pytest.raises(Exception, match="_FENCED"):
        first.written(30.0)
    second.begin()
    second.append(b"3")
    (at,) = second.written(30.0)
    assert at > 0
    second.commit()


def test_a_log_shorter_than_the_homes_position_is_refused(place: LoopOnKafka) -> None:
    """The lost steps' outputs were sent: new steps would give their ids to other messages."""
    kafka = kafka_client(place.kafka.bootstrap_servers, "shorter")
    log = open_log(place, "shorter")
    log.fenced()
    log.begin()
    log.commit()
    consumer = Consumer(kafka | {"group.id": "shorter"})
    _, end = consumer.get_watermark_offsets(TopicPartition("shorter.steps", 0), 30)
    consumer.close()
    assert read_steps(kafka, "shorter.steps", end) == []
    with pytest.raises(Gone, match=rf"'shorter.steps' ends at offset {end}.* up to {end + 1}:"):
        read_steps(kafka, "shorter.steps", end + 1)
    assert read_steps(kafka, "shorter.steps", end + 1, shorter=True) == []


def test_a_mark_checks_the_fence_after_an_idle_time(place: LoopOnKafka) -> None:
    """The worker may have been frozen since, while another took over."""
    first = open_log(place, "still")
    first.begin()
    first.append(b"1")
    assert first.written(30.0) == [0]
    time.sleep(RECENT_S + 0.1)
    first.mark()  # a transaction ends, and the next begins
    first.append(b"2")
    assert first.written(30.0) == [2], "the offset is behind the transaction's marker"
    open_log(place, "still").fenced()
    time.sleep(RECENT_S + 0.1)
    with pytest.raises(Exception, match="FENCED"):
        first.mark()


def test_a_busy_log_commits_its_transaction_once_a_batch(place: LoopOnKafka) -> None:
    log = open_log(place, "busy", batch_s=1.0)
    log.begin()
    offsets: list[int] = []
    begun = time.monotonic()
    gaps: list[int] = []
    while (for_s := time.monotonic() - begun) < 2.5 or (not gaps and for_s < 90):
        log.append(b"x")
        offsets += log.written(90.0)
        log.mark()
        time.sleep(0.01)
        gaps = [b - a for a, b in itertools.pairwise(offsets) if b - a > 1]
    most = (time.monotonic() - begun) / 1.0
    assert 1 <= len(gaps) <= most, "a transaction's end is a record of its own"


def lost(connection: lakequeue.Connection) -> int:
    return sum(e["event"] == "session_lost" for e in connection.admin().events())


def test_C3_heartbeats_sent_during_downtime_keep_a_session(place: LoopOnKafka) -> None:
    """A session ends when its client is silent for `heartbeat_timeout`, not when the engine was
    away. A client that died meanwhile loses its session, and its messages go to other consumers."""
    tell(place, commands.Configure(system={"heartbeat_timeout": f"{SILENT_S:g}s"}, vpns={}))
    place.running()
    with lakequeue.connect(place.url, client_name="there") as connection:
        before, describe = lost(connection), connection.admin().describe
        producer = connection.producer()
        silent = subscribe("silent", 1, session="silent")
        tell(place, silent, "default.commands")
        producer.send("orders", b"silent's")
        until(lambda: describe("orders")["leased"] == 1, 30, "the silent one has it")
        producer.send("orders", b"mine")
        with connection.consumer("orders", ack_mode="individual", max_backlog=2) as consumer:
            mine = consumer.receive(120)
            assert mine.payload == b"mine"
            place.workers[-1].kill()
            time.sleep(1.5 * SILENT_S)
            place.start()
            again = consumer.receive(120)
            assert again is not None, "the silent session did not end"
            assert (again.payload, again.redelivered) == (b"silent's", True)
            until(lambda: answers(connection), 30, "the engine answers")
            time.sleep(SILENT_S)
            assert lost(connection) == before + 1, "one was silent, the other was not"
            mine.ack()
            again.ack()
            until(lambda: describe("orders")["depth"] == 0, 30, "both are gone")
            assert consumer.receive(0.5) is None


class Traffic:
    """Two threads: one sends messages one after the other, one consumes them."""

    def __init__(self, connection: lakequeue.Connection, queue: str) -> None:
        self.stored: set[bytes] = set()
        self.taken: dict[bytes, list[bool]] = {}  # per delivery: flagged as repeated?
        self._connection, self._queue = connection, queue
        self._over, self._all_acked = Event(), Event()
        self._sender, self._taker = Thread(target=self._send), Thread(target=self._take)
        self._sender.start()
        self._taker.start()

    def _send(self) -> None:
        with self._connection.producer() as producer:
            for number in itertools.count():
                if self._over.wait(0.01):
                    return
                with contextlib.suppress(Timeout):
                    producer.send(self._queue, b"%d" % number)
                    self.stored.add(b"%d" % number)

    def _take(self) -> None:
        with self._connection.consumer(
            self._queue, ack_mode="individual", max_backlog=20
        ) as consumer:
            while not self._all_acked.is_set():
                message = consumer.receive(1.0)
                if message is not None:
                    self.taken.setdefault(message.payload, []).append(message.redelivered)
                    with contextlib.suppress(LeaseLost):
                        message.ack()

    def goes_on(self) -> None:
        """Wait until a message sent from now on was received."""
        before = set(self.stored)
        until(lambda: (self.stored - before).intersection(self.taken), 90, "traffic goes on")

    def end(self) -> None:
        """Wait until no message is left."""
        self._over.set()
        self._sender.join(90)
        describe = self._connection.admin().describe
        try:
            until(lambda: describe(self._queue)["depth"] == 0, 90, "all is acknowledged")
        finally:
            self._all_acked.set()
            self._taker.join(90)


DELETED = [f"default.{kind}" for kind in PARTITIONS]
DELETED += ["broker-0.instructions", "broker-0.control"]


def test_S1_deleted_topics_are_recreated_and_nothing_is_lost(
    place: LoopOnKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the log of steps, under traffic: clients repeat what was not confirmed. If Kafka's
    client fails on a recreated log, the worker dies and the next one is refused: steps after the
    last snapshot are lost with the log."""
    worker, address = place.running(), place.kafka.bootstrap_servers
    monkeypatch.setattr("lakequeue.sources.discovery.EVERY_S", 0.5)
    folder = HomeFolder(place.folder / "home")
    folder.open()
    engine = CapturedTopics(
        address, folder, parse_configuration({}), ["default"],
        {"broker-0": BrokerQuery("broker-0", 0)},
    )  # fmt: skip
    engine.open()
    kafka = AdminClient(kafka_client(address, "somebody"))
    with lakequeue.connect(place.url, client_name="busy") as connection:
        until(lambda: answers(connection), 30, "a worker answers")
        connection.admin().define({**QUEUE, "name": "busy"})
        traffic = Traffic(connection, "busy")
        try:
            traffic.goes_on()
            for done in kafka.delete_topics(DELETED).values():
                done.result(90)
            until(lambda: kafka.list_topics(timeout=90).topics.keys() >= {*DELETED}, 60, "all")
            traffic.goes_on()
            # Acks may be lost with the old topic, so the clients are told, as the engine does on
            # the worker's report.
            tell(place, commands.RecordsLost("default.commands", 0, event="topic_made_anew"))
        finally:
            traffic.end()
            engine.stop()
        assert traffic.stored <= {*traffic.taken}
        assert all(all(repeats[1:]) for repeats in traffic.taken.values())
    assert worker.poll() is None, "the same worker went on"
    assert "stopped:broker-0" in place.stop(worker), "it reads the new control topic"
    place.start()


def cluster(place: LoopOnKafka) -> str:
    return TopicsNow(kafka_client(place.kafka.bootstrap_servers, "look")).cluster()


def test_another_kafka_is_refused_unless_accepted(place: LoopOnKafka) -> None:
    """The last test on this Kafka. A Kafka is recognised by its cluster id, not its address. The
    state is kept, and the other Kafka's topics are read from the beginning."""
    before = cluster(place)
    with lakequeue.connect(place.url) as connection:
        connection.producer().send("orders", b"kept")
    assert "stopped:broker-0" in place.stop(place.workers[-1])
    port = place.kafka.port
    place.kafka.stop()
    shutil.rmtree(place.kafka.home)
    place.kafka = EmbeddedKafka(place.kafka.home, port)
    place.begin()
    assert cluster(place) not in ("", before)
    refused = place.start()
    assert refused.wait(120) != 0
    assert "ends at offset" in (place.folder / f"stderr-{len(place.workers) - 1}").read_text()
    transport = open_kafka(place.kafka.bootstrap_servers, "before")
    for n in range(5):
        transport.publish("default.publish", b"%d" % n, None, [("lq", b'{"to": "orders"}')])
    transport.flush(90)
    transport.close()
    place.start("accept-other-kafka")
    with (
        lakequeue.connect(place.url) as connection,
        connection.consumer("orders", ack_mode="individual", max_backlog=10) as consumer,
    ):
        found: set[bytes] = set()
        while message := consumer.receive(120 if len(found) < 6 else 0.5):
            # On a busy machine the session may be lost and begin again.
            assert message.redelivered or message.payload not in found
            found.add(message.payload)
        assert found == {b"0", b"1", b"2", b"3", b"4", b"kept"}
