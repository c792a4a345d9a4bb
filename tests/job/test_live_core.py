"""What the engine makes of its own mistakes, of a wall clock that is set, and of a queue that is
deeper than what is live, over a worker's death and a start from the checkpoint. What a queue
promises is in `test_scenarios_on_the_job.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, loop_workers, until
from job.traffic import Traffic, drain
from lakequeue.protocol import commands
from lakequeue.protocol.errors import LakequeueError, Rejected
from lakequeue.protocol.steplog import StepRecord
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 29
PLANTED = Path(__file__).parent / "planted"  # see `sitecustomize.py` there
AGAIN_S = 120.0  # a query begins again meanwhile
YEARS_S = 10 * 365 * 86_400
SETTINGS = ("--set", "lakequeue.batch_s=2", "--set", "lakequeue.tables_interval_s=0")
# More than the live part of a queue holds: rows are spilled, and come back.
MANY = 10_000
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: dead, message_type: text, max_per_subscription_backlog: 50}
  - {name: short, message_type: text, lease_period: 1s, max_deliveries: 2, dead_message_queue: dead}
  - {name: deep, message_type: text, max_per_subscription_backlog: 500}
  - {name: fails, message_type: text}
  - {name: individual, message_type: text}
"""


class Place:
    """A Kafka, and the engine of this file."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.clock = folder / "clock"
        self.bootstrap, self.url = kafka.bootstrap_servers, f"kafka://{kafka.bootstrap_servers}"
        (folder / "queues.yaml").write_text(CONFIG)
        self.engine = EngineProcess(
            self.bootstrap, folder / "home", folder / "queues.yaml", *SETTINGS
        ).wait_ready()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch, EmbeddedKafka(folder / "kafka") as kafka:
        patch.setenv("PYTHONPATH", str(PLANTED))
        patch.setenv("LAKEQUEUE_PLANTED", str(folder))
        place = Place(kafka, folder)
        yield place
        place.engine.kill()


def logged(place: Place, start: int = 0) -> list[tuple[int, StepRecord]]:
    return read_steps(kafka_client(place.bootstrap, "look"), "broker-0.steps", start)


@pytest.fixture
def connection(place: Place) -> Iterator[lakequeue.Connection]:
    with lakequeue.connect(place.url) as connection:
        yield connection


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
    before = logged(place)[-1][1].step
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
    numbers = [r.step for _, r in logged(place)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] > before


# ---------------------------------------------------------------- steps that fail


def left_out(place: Place, start: int) -> list[tuple[int, int]]:
    """Of each record since that says what failed, how many records and queues it leaves out."""
    since = [r for at, r in logged(place, start) if at >= start]
    return [(len(r.skipped), len(r.faulted)) for r in since if r.skipped or r.faulted]


def end_of_log(place: Place) -> int:
    return logged(place)[-1][0] + 1


def test_a_message_that_fails_is_put_aside(place: Place, connection: lakequeue.Connection) -> None:
    """Each record of it costs one replay: its producer may have sent it again meanwhile."""
    start = end_of_log(place)
    producer = connection.producer()
    producer.send("orders", b"before")  # each in a record of its own
    with pytest.raises(Rejected, match="planted"):
        producer.send("orders", b"fails alone", timeout=AGAIN_S)
    producer.send("orders", b"behind")
    with connection.consumer("orders", ack_mode="auto") as consumer:
        received = [consumer.receive(timeout=AGAIN_S) for _ in range(2)]
    assert [m.payload for m in received if m] == [b"before", b"behind"]
    places = [one[:3] for at, r in logged(place, start) if at >= start for one in r.skipped]
    assert len(left_out(place, start)) == len(places) == len(set(places))


def test_a_command_that_fails_is_refused(place: Place, connection: lakequeue.Connection) -> None:
    start = end_of_log(place)
    bad = commands.Cancel(queue="orders", subscription="nobody", ids="1", delay_ms=13)
    with pytest.raises(LakequeueError, match="planted"):
        connection.request(bad, AGAIN_S)
    assert left_out(place, start) == [(1, 0)]
    assert connection.admin().describe("orders")["leased"] == 0


def test_a_queue_that_fails_is_left_alone(place: Place, connection: lakequeue.Connection) -> None:
    """In delivery; in the other phases: `tests/state/test_failing_steps.py`."""
    start, name = end_of_log(place), "fails"
    producer = connection.producer()
    with (
        connection.consumer(name, ack_mode="auto"),
        connection.consumer("orders", ack_mode="auto") as other,
    ):
        producer.send_async(name, b"{}", ttl="1s")
        producer.send_async("orders", b"good")
        producer.flush(AGAIN_S)
        message = other.receive(timeout=AGAIN_S)
        assert message is not None
        assert message.payload == b"good"
        admin = connection.admin()
        until(lambda: admin.describe(name)["faulted"], AGAIN_S, f"{name} is left alone")
    assert admin.describe(name)["faulted"] == "RuntimeError: planted"
    assert left_out(place, start) == [(0, 1)]


# ---------------------------------------------------------------- the wall clock


@pytest.mark.parametrize("said", ["-3600", f"+{YEARS_S}"], ids=["an hour back", "once ahead"])
def test_L12_a_wall_clock_that_is_set_moves_no_deadline(
    place: Place, connection: lakequeue.Connection, said: str
) -> None:
    """A delay and a lease end when they should, neither at once nor an hour late."""
    producer = connection.producer()
    producer.send("short", b"leased")
    try:
        with connection.consumer("short", ack_mode="individual", max_backlog=1) as consumer:
            assert consumer.receive(timeout=20) is not None
            place.clock.write_text(said)
            begun = time.monotonic()
            producer.send("individual", b"later", delay="3s")
            again = consumer.receive(timeout=10)
            assert again is not None
            assert again.redelivered
            again.ack()
        with connection.consumer("individual", ack_mode="individual") as consumer:
            message = consumer.receive(timeout=20)
            assert message is not None
            assert 2.8 <= time.monotonic() - begun <= 8
            message.ack()
        assert place.clock.exists() == (said[0] == "-"), "somebody has read it"
    finally:
        place.clock.unlink(missing_ok=True)
