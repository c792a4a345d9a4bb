"""A queue that is deeper than what is live, over a worker's death and a start from the checkpoint;
and a query that ends at a mistake of the engine's own, and goes on. (Mistakes in each phase, and
clocks that jump: `tests/sim`.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, loop_workers, until
from job.traffic import Traffic, drain
from lakequeue.protocol.errors import Rejected
from lakequeue.protocol.steplog import StepRecord
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 29
PLANTED = Path(__file__).parent / "planted"  # see `sitecustomize.py` there
AGAIN_S = 120.0  # a query begins again meanwhile
SETTINGS = ("--set", "lakequeue.batch_s=2", "--set", "lakequeue.tables_interval_s=0")
# More than the live part of a queue holds: rows are spilled, and come back.
MANY = 10_000
CONFIG = """
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: deep, message_type: text, max_per_subscription_backlog: 500}
"""


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
        patch.setenv("PYTHONPATH", str(PLANTED))
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
