"""`kill -9` in mid-traffic, judged by what clients recorded (after jepsen's total-queue).

Attempted, acknowledged, received, settled: whatever was acknowledged to the producer must have been
received and acknowledged by a consumer, or still stand in the queue. The Delta tables must say
each thing once. Kafka is not killed: it is not ours in production.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import EngineProcess, until
from kafka import KafkaConsumer, TopicPartition
from lakequeue.cli.delta_reader import read_table
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 20_240_607
KILLS = 5
PER_SECOND = 60
CANCELED_SHARE = 0.03
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50, max_cancels: 0}
  - {name: kept, message_type: text, max_per_subscription_backlog: 50}
"""


@dataclass
class Place:
    """Where the engine's processes of this file live, one after the other."""

    kafka: EmbeddedKafka
    folder: Path
    children: list[EngineProcess] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka.bootstrap_servers}"

    @property
    def tables(self) -> Path:
        return self.folder / "home" / "tables"

    def start(self) -> EngineProcess:
        config = self.folder / "queues.yaml"
        config.write_text(CONFIG)
        child = EngineProcess(self.kafka.bootstrap_servers, self.folder / "home", config)
        self.children.append(child)
        return child.wait_ready()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("crash")
    with EmbeddedKafka(folder / "kafka") as kafka:
        place = Place(kafka, folder)
        yield place
        for child in place.children:
            child.kill()


@dataclass(frozen=True)
class Received:
    consumer: int
    payload: bytes
    id: str
    count: int
    redelivered: bool


class Traffic:
    """A producer and two consumers; every one of them writes down what it sees."""

    def __init__(self, url: str, seed: int) -> None:
        self.sent: dict[bytes, Future[lakequeue.client.Receipt]] = {}
        self.received: list[Received] = []
        self.acked: list[bytes] = []
        self.errors: list[BaseException] = []
        self._random = random.Random(seed)
        self._producing, self._consuming = threading.Event(), threading.Event()
        self._producing.set()
        self._consuming.set()
        self.connections = [lakequeue.connect(url, client_name=f"app-{i}") for i in range(3)]
        self.producer = self.connections[0].producer(pub_ack_time="500ms", window=2_000)
        self.consumers = [
            c.consumer("orders", ack_mode="individual", max_backlog=50)
            for c in self.connections[1:]
        ]
        jobs = [(self._produce, ()), (self._consume, (0,)), (self._consume, (1,))]
        self.threads = [threading.Thread(target=self._run, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def _run(self, what: Any, arguments: tuple) -> None:
        try:
            what(*arguments)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        while self._producing.is_set():
            payload = f"message {len(self.sent)}".encode()
            self.sent[payload] = self.producer.send_async("orders", payload)
            time.sleep(self._random.expovariate(PER_SECOND))

    def _consume(self, number: int) -> None:
        choose = random.Random(number)
        while self._consuming.is_set():
            m = self.consumers[number].receive(timeout=0.2)
            if m is None:
                continue
            seen = Received(number, m.payload, m.id, m.delivery_count, m.redelivered)
            self.received.append(seen)
            if choose.random() < CANCELED_SHARE:
                m.cancel()
            else:
                m.ack()
                self.acked.append(m.payload)

    def finish_producing(self) -> None:
        self._producing.clear()
        self.threads[0].join(60)
        self.producer.flush(120)

    def finish_consuming(self) -> None:
        self._consuming.clear()
        for thread in self.threads[1:]:
            thread.join(30)
        for connection in self.connections:
            connection.close()

    def acknowledged(self) -> set[bytes]:
        """What the producer knows to be stored."""
        return {p for p, f in self.sent.items() if f.done() and f.exception() is None}


def judge(traffic: Traffic, left: set[bytes]) -> None:
    """Nothing lost, nothing invented, and whoever gets something again is told so."""
    assert not traffic.errors
    refused = [f.exception() for f in traffic.sent.values() if f.done() and f.exception()]
    assert not refused
    attempted = set(traffic.sent)
    received = {r.payload for r in traffic.received}
    assert not received - attempted, "unexpected"
    lost = traffic.acknowledged() - set(traffic.acked) - left
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:3]}"
    deliveries: dict[bytes, list[Received]] = defaultdict(list)
    for r in traffic.received:
        deliveries[r.payload].append(r)
    for payload, times in deliveries.items():
        assert len({r.id for r in times}) == 1, f"{payload!r} is stored twice: {times}"
        counts = [r.count for r in times]
        assert len(set(counts)) == len(counts), f"the same delivery reached two: {times}"
        assert all(r.redelivered == (r.count > 1) for r in times)
        assert all(r.redelivered for r in times[1:]), f"again, and it does not say so: {times}"
    ids = Counter(r.id for times in deliveries.values() for r in times[:1])
    assert max(ids.values()) == 1, "two messages with one id"


def in_kafka(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    """How many records each partition has."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        numbers = consumer.partitions_for_topic(topic) or set()
        ends = consumer.end_offsets([TopicPartition(topic, n) for n in numbers])
        return {(p.topic, p.partition): offset for p, offset in ends.items()}
    finally:
        consumer.close()


def check_tables(place: Place, ids: set[str]) -> None:
    """Each message once in `messages`, spooled once and acknowledged once in `journal`."""

    def journal(event: str) -> Counter[str]:
        rows = read_table(place.tables / "journal", ["event", "queue", "message_id"]).to_pylist()
        found = [r for r in rows if r["event"] == event and r["queue"] == "orders"]
        return Counter(r["message_id"] for r in found)

    def offsets() -> set[tuple[str, int, int]]:
        """Records of the table."""
        names = ["topic", "partition", "offset", "item"]
        rows = read_table(place.tables / "messages", names).to_pylist()
        whole = Counter(tuple(r[name] for name in names) for r in rows)
        assert set(whole.values()) <= {1}, "a message stands twice in `messages`"
        return {where[:3] for where in whole}

    ends = in_kafka(place.kafka.bootstrap_servers, "default.publish")
    wanted = {(*where, i) for where, end in ends.items() for i in range(end)}
    until(lambda: ids <= set(journal("acknowledged")), 60, "the journal's acknowledgments")
    until(lambda: wanted <= offsets(), 60, "the table `messages`")
    for event in ("spooled", "acknowledged"):
        counted = journal(event)
        assert set(counted) == ids, event
        assert set(counted.values()) == {1}, f"{event} more than once"
    assert offsets() == wanted


def test_kill_9_in_mid_traffic(place: Place) -> None:
    chance = random.Random(SEED)
    engine = place.start()
    traffic = Traffic(place.url, SEED)
    for _ in range(KILLS):
        enough = len(traffic.acked) + 30
        time.sleep(chance.uniform(0.0, 3.0))
        until(lambda goal=enough: len(traffic.acked) >= goal or traffic.errors, 60, "traffic")
        time.sleep(chance.uniform(0.0, 1.0))
        engine.kill()
        engine = place.start()
    time.sleep(chance.uniform(1.0, 3.0))
    traffic.finish_producing()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
    left = {m.payload for m in admin.browse("orders", limit=10_000)}
    counters = admin.describe("orders")
    lost_sessions = [e for e in admin.events() if e["event"] == "session_lost"]
    traffic.finish_consuming()
    judge(traffic, left)
    assert len(traffic.acked) == len(set(traffic.acked)), "acknowledged, and delivered again"
    assert counters["spooled"] == counters["acknowledged"] == len(traffic.sent)
    assert not lost_sessions, "consumers that were alive lost their sessions"
    check_tables(place, {f.result().message_id for f in traffic.sent.values()})
    assert engine.terminate() == 0
    assert "Traceback" not in engine.errors()


def test_sigterm_ends_in_good_order_and_the_next_start_continues(place: Place) -> None:
    engine = place.start()
    with lakequeue.connect(place.url) as connection:
        before = connection.admin().describe("kept")["depth"]
        producer = connection.producer(window=1_000)
        futures = [producer.send_async("kept", f"{i}") for i in range(300)]
        until(lambda: any(f.done() for f in futures), 60, "the first receipt")
        assert engine.terminate() == 0
        assert engine.said[-1]["event"] == "goodbye"
        assert engine.errors().count("Traceback") == 0
        until(lambda: not engine.family(), 30, "something of it is still running")
        engine = place.start()
        producer.flush(60)
        ids = [f.result().message_id for f in futures]
        assert len(set(ids)) == 300
        seen = connection.admin().describe("kept")
        assert seen["depth"] == before + 300
        assert [m.id for m in connection.admin().browse("kept", limit=1_000)][-300:] == ids
    assert engine.terminate() == 0
