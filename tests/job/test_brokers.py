"""Several brokers in one job: each has a query, a worker and a log of its own, and dies alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import lakequeue
import pytest
from job.brokers import BROKERS, CONFIG, define_queues, traffics, workers
from job.processes import EngineProcess
from job.traffic import drain
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

BACK_S_MAX = 30.0


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
            define_queues(url)
            yield engine, url
            assert engine.terminate() == 0
            assert "Traceback" not in engine.errors()
        finally:
            engine.kill()


def test_each_broker_steps_by_itself(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    assert sorted(workers(process.family())) == list(BROKERS)
    for traffic in running.values():
        drain(traffic)
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            assert [q["name"] for q in connection.admin().queues()] == [f"orders-{broker}"]


def test_a_brokers_worker_dies_and_the_others_go_on(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    before = workers(process.family())
    victim = BROKERS[1]
    before[victim].kill()
    begun = time.monotonic()
    for broker in BROKERS:
        if broker != victim:  # they do not even stop
            running[broker].goes_on(60, 10)
    running[victim].goes_on(60, BACK_S_MAX - (time.monotonic() - begun))
    after = workers(process.family())
    assert {b for b in BROKERS if before[b] != after[b]} == {victim}
    for traffic in running.values():
        drain(traffic)
