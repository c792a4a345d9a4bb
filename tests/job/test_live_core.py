"""The live core in the engine, on real Kafka and Spark: what a queue promises, a worker that is
killed under traffic, and a start from the checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, loop_workers, until
from job.traffic import Traffic, drain
from lakequeue.sources.live import kafka_client
from lakequeue.sources.log_reader import read_steps
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.loop_options import LIVE, LIVE_VARIABLE

pytestmark = pytest.mark.job

SEED = 29
SETTINGS = ("--set", "lakequeue.batch_s=2", "--set", "lakequeue.tables_interval_s=0")
MODES = ("auto", "client", "individual", "dups_ok", "pre_ack", "no_ack")
# More than the live part of a queue holds: rows are spilled, and come back.
MANY = 10_000
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: dead, message_type: text, max_per_subscription_backlog: 50}
  - {name: short, message_type: text, lease_period: 1s, max_deliveries: 2, dead_message_queue: dead}
  - {name: deep, message_type: text, max_per_subscription_backlog: 500}
""" + "".join(
    f"  - {{name: {mode}, message_type: text, max_per_subscription_backlog: 10}}\n"
    for mode in MODES
)


class Place:
    """A Kafka, and the engine of this file."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.bootstrap, self.url = kafka.bootstrap_servers, f"kafka://{kafka.bootstrap_servers}"
        (folder / "queues.yaml").write_text(CONFIG)
        self.engine = EngineProcess(
            self.bootstrap, folder / "home", folder / "queues.yaml", *SETTINGS
        ).wait_ready()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch, EmbeddedKafka(folder / "kafka") as kafka:
        patch.setenv(LIVE_VARIABLE, LIVE)
        place = Place(kafka, folder)
        yield place
        place.engine.kill()


@pytest.fixture
def connection(place: Place) -> Iterator[lakequeue.Connection]:
    with lakequeue.connect(place.url) as connection:
        yield connection


def test_it_is_the_live_core_that_steps(place: Place) -> None:
    logged = read_steps(kafka_client(place.bootstrap, "look"), "broker-0.steps", 0)
    assert any(r.inputs for _, r in logged), "only its driver says what a step took"


@pytest.mark.parametrize("mode", MODES)
def test_C3_a_message_is_gone_when_it_was_acknowledged(
    connection: lakequeue.Connection, mode: str
) -> None:
    producer = connection.producer()
    sent = [f"{mode} {n}".encode() for n in range(20)]
    for payload in sent:
        producer.send_async(mode, payload)
    producer.flush(30)
    with connection.consumer(mode, ack_mode=mode, max_backlog=10) as consumer:
        received = []
        for _ in sent:
            message = consumer.receive(timeout=20)
            assert message is not None
            received.append(message.payload)
            if mode in ("client", "individual"):
                message.ack()
    assert received == sent
    until(lambda: connection.admin().describe(mode)["depth"] == 0, 20, "all are acknowledged")


def test_L4_L5_X5_a_lease_ends_and_the_second_time_it_is_dead(
    connection: lakequeue.Connection,
) -> None:
    connection.producer().send("short", b"slow")
    with connection.consumer("short", ack_mode="individual", max_backlog=1) as slow:
        counts = []
        for _ in range(2):
            message = slow.receive(timeout=20)
            assert message is not None
            counts.append((message.delivery_count, message.redelivered))
        assert counts == [(1, False), (2, True)]
        with connection.consumer("dead", ack_mode="individual") as consumer:
            dead = consumer.receive(timeout=20)
            assert dead is not None
            assert dead.payload == b"slow"
            dead.ack()


def test_L6_what_is_canceled_comes_again(connection: lakequeue.Connection) -> None:
    connection.producer().send("individual", b"not now")
    with connection.consumer("individual", ack_mode="individual") as consumer:
        first = consumer.receive(timeout=20)
        assert first is not None
        first.cancel()
        again = consumer.receive(timeout=20)
        assert again is not None
        assert (again.id, again.redelivered) == (first.id, True)
        again.ack()


def test_L12_a_scheduled_message_waits(connection: lakequeue.Connection) -> None:
    begun = time.monotonic()
    connection.producer().send("individual", b"later", delay="1.5s")
    with connection.consumer("individual", ack_mode="individual") as consumer:
        message = consumer.receive(timeout=20)
        assert message is not None
        assert time.monotonic() - begun >= 1.4
        message.ack()


def test_a_deep_queue_outlives_its_worker_and_the_engine(
    place: Place, connection: lakequeue.Connection
) -> None:
    """Traffic goes on over a kill; a stop in good order leaves nothing to take again, and all that
    waits is read from the checkpoint."""
    producer = connection.producer(window=5_000)
    for n in range(MANY):
        producer.send_async("deep", b"%d" % n)
    producer.flush(60)
    traffic = Traffic(place.url, SEED)
    traffic.goes_on(30, 60)
    for worker in loop_workers(place.engine):
        worker.kill()
    traffic.goes_on(60, 60)
    drain(traffic)
    assert "Traceback" not in place.engine.errors()
    assert place.engine.terminate() == 0
    before = read_steps(kafka_client(place.bootstrap, "look"), "broker-0.steps", 0)[-1][1].step
    place.engine.start().wait_ready()
    assert "steps again" not in place.engine.errors()
    with connection.consumer("deep", ack_mode="client", max_backlog=500) as consumer:
        for n in range(MANY):
            message = consumer.receive(timeout=30)
            assert message is not None, f"{n} is missing"
            assert message.payload == b"%d" % n
            if n % 100 == 99:
                message.ack()
    until(lambda: connection.admin().describe("deep")["depth"] == 0, 30, "it is empty")
    numbers = [
        r.step for _, r in read_steps(kafka_client(place.bootstrap, "look"), "broker-0.steps", 0)
    ]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] > before
