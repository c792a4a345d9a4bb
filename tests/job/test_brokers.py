"""Several brokers in one job: each has a query, a worker and a log of its own, and dies alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, loop_workers, thaw, until
from job.traffic import Traffic, drain, judge
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.realtime import ENVIRONMENT

pytestmark = pytest.mark.job

SEED = 7
BROKERS = ("a", "b", "c", "d")
CONFIG = f"brokers: [{', '.join(BROKERS)}]\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, str]]:
    """Four brokers, and on each a queue `orders-<name>`."""
    folder = tmp_path_factory.mktemp("brokers")
    (folder / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(folder / "kafka") as kafka:
        url = f"kafka://{kafka.bootstrap_servers}"
        batches = ("--set", "lakequeue.batch_s=5")
        engine = EngineProcess(
            kafka.bootstrap_servers, folder / "home", folder / "queues.yaml", *batches
        )
        try:
            engine.wait_ready()
            for broker in BROKERS:
                define(url, broker)
            yield engine, url
            assert engine.terminate() == 0
            assert "Traceback" not in engine.errors()
        finally:
            engine.kill()


def define(url: str, broker: str) -> None:
    """A queue on a broker."""
    with lakequeue.connect(url, broker=broker) as connection:
        connection.admin().define(
            {
                "name": f"orders-{broker}", "message_type": "text",
                "max_per_subscription_backlog": 50, "underlying_topic": f"orders-{broker}",
            }
        )  # fmt: skip


def traffics(url: str) -> dict[str, Traffic]:
    return {
        broker: Traffic(url, SEED + i, f"orders-{broker}", broker)
        for i, broker in enumerate(BROKERS)
    }


def workers(engine: EngineProcess) -> dict[str, int]:
    """The process that steps, of each broker."""
    return {w.environ()[ENVIRONMENT]: w.pid for w in loop_workers(engine)}


def test_each_broker_steps_by_itself(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    assert sorted(workers(process)) == list(BROKERS)
    for traffic in running.values():
        drain(traffic)
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            assert [q["name"] for q in connection.admin().queues()] == [f"orders-{broker}"]
