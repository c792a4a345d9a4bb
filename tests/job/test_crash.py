"""`kill -9` and SIGTERM in mid-traffic, judged by what clients recorded (after jepsen's
total-queue).

Attempted, acknowledged, received, settled: whatever was acknowledged to the producer must have been
received and acknowledged by a consumer, or still stand in the queue. The Delta tables must say
each thing once. Kafka is not killed: it is not ours in production.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, until
from job.tables import check_tables
from job.traffic import Traffic, judge
from lakequeue.cli.delta_reader import read_table
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 20_240_607
KILLS = 1
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50, max_cancels: 0}
  - {name: durable, message_type: text}
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


class DurableSender(threading.Thread):
    """Sends one message after the other with `durability="delta"`, and looks into the table at each
    receipt. early: whose receipt came before."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self._place, self._stopping = place, threading.Event()
        self.sent, self.early = 0, list[bytes]()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """The thread."""
        try:
            self._send()
        except BaseException as error:
            self.failure = error

    def _send(self) -> None:
        with (
            lakequeue.connect(self._place.url) as connection,
            connection.producer(durability="delta") as producer,
        ):
            while not self._stopping.is_set():
                payload = f"durable {self.sent}".encode()
                producer.send("durable", payload, timeout=300)
                found = read_table(self._place.tables / "messages", ["payload"])["payload"]
                if payload not in found.to_pylist():
                    self.early.append(payload)
                self.sent += 1

    def finish(self) -> None:
        """Wait for the receipt of the last one."""
        self._stopping.set()
        self.join(120)
        assert not self.is_alive(), "a receipt never came"
        if self.failure is not None:
            raise self.failure


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("crash")
    with EmbeddedKafka(folder / "kafka") as kafka:
        place = Place(kafka, folder)
        yield place
        for child in place.children:
            child.kill()


def test_kill_9_and_sigterm_in_mid_traffic(place: Place) -> None:
    """The last end is in good order, and leaves no process."""
    chance = random.Random(SEED)
    engine = place.start()
    traffic, durable = Traffic(place.url, SEED), DurableSender(place)
    durable.start()
    for at in range(KILLS + 1):
        enough = len(traffic.acked) + 30
        time.sleep(chance.uniform(0.0, 3.0))
        until(lambda goal=enough: len(traffic.acked) >= goal or traffic.errors, 60, "traffic")
        time.sleep(chance.uniform(0.0, 1.0))
        if at < KILLS:
            engine.kill()
        else:
            assert engine.terminate() == 0
            assert engine.said[-1]["event"] == "goodbye"
            assert engine.errors().count("Traceback") == 0
            until(lambda old=engine: not old.family(), 30, "something of it is still running")
        engine = place.start()
    time.sleep(chance.uniform(1.0, 3.0))
    traffic.finish_producing()
    durable.finish()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
    left = {m.payload for m in admin.browse("orders", limit=10_000)}
    counters = admin.describe("orders")
    stored = admin.describe("durable")["counters"]["spooled"]
    lost_sessions = [e for e in admin.events() if e["event"] == "session_lost"]
    traffic.finish_consuming()
    judge(traffic, left)
    assert len(traffic.acked) == len(set(traffic.acked)), "acknowledged, and delivered again"
    assert counters["spooled"] == counters["acknowledged"] == len(traffic.sent)
    assert not lost_sessions, "consumers that were alive lost their sessions"
    assert not durable.early, "a receipt came before the message was in the table"
    assert stored == durable.sent > 0, "stored once each"
    kafka = place.kafka.bootstrap_servers
    check_tables(place.tables, kafka, {f.result().message_id for f in traffic.sent.values()})
    assert "Traceback" not in engine.errors()
    assert engine.terminate() == 0
