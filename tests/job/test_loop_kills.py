"""The loop in Spark: its worker hangs, or is frozen while everything around it is killed.

Its kills are in `test_chaos.py`, many of the loop alone in `tests/loop/test_on_kafka.py`; the
driver's are in `test_crash.py`. Here Spark is what notices and begins again.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import psutil
import pytest
from job.processes import EngineProcess, loop_workers, thaw, until
from job.traffic import Traffic, drain
from lakequeue.sources.live import kafka_client
from lakequeue.sources.log_reader import read_steps
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 13
HANGS_S_MAX = 150.0  # 30 s, a look, its end, and a start
SETTINGS = ("--set", "lakequeue.batch_s=5", "--set", "lakequeue.tables_interval_s=0")
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


class Place:
    """Where the engines of this file live, one after the other."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.bootstrap, self._folder = kafka.bootstrap_servers, folder
        (folder / "queues.yaml").write_text(CONFIG)
        self.engines: list[EngineProcess] = []

    def start(self) -> EngineProcess:
        config, home = self._folder / "queues.yaml", self._folder / "home"
        engine = EngineProcess(self.bootstrap, home, config, *SETTINGS)
        self.engines.append(engine)
        return engine.wait_ready()

    def running(self) -> EngineProcess:
        """The one that the test before left to this one; else one that is started."""
        left = [engine for engine in self.engines if engine.process.poll() is None]
        return left[-1] if left else self.start()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("kills")
    with EmbeddedKafka(folder / "kafka") as kafka:
        place = Place(kafka, folder)
        yield place
        for engine in place.engines:
            engine.kill()


def java_yields(engine: EngineProcess) -> bool:
    """Whether Spark's Java process has a lower priority than its worker, a higher nice value."""
    (worker,) = loop_workers(engine)
    java = worker.parent().parent()
    assert java.name() == "java"
    return bool(java.nice() > worker.nice())


def test_a_worker_that_hangs_is_noticed_and_started_again(place: Place) -> None:
    """Frozen for good, as one that waits for ever in a call: Spark itself would never notice."""
    engine = place.running()
    traffic = Traffic(f"kafka://{place.bootstrap}", SEED + 2)
    traffic.goes_on(30, 60)
    (worker,) = loop_workers(engine)
    worker.send_signal(signal.SIGSTOP)
    try:
        traffic.goes_on(60, HANGS_S_MAX)
    finally:
        with contextlib.suppress(psutil.Error):  # it was killed
            thaw(worker)
    drain(traffic)
    until(lambda: java_yields(engine), 90, "Java yields to who steps, from a mark on")
    assert "broker 'broker-0' hangs" in engine.errors()
    with lakequeue.connect(f"kafka://{place.bootstrap}") as connection:
        events = [e["event"] for e in connection.admin().events()]
        assert "broker_stuck" in events
        (broker,) = connection.admin().brokers()
        assert broker["state"] == "running"
    logged = read_steps(kafka_client(place.bootstrap, "look"), "broker-0.steps", 0)
    numbers = [r.step for _, r in logged]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_frozen_worker_outlives_its_engine_and_says_nothing(place: Place) -> None:
    """The driver is frozen too, and never comes back: a parent in the session keeps the kernel
    from ending the worker."""
    engine = place.running()
    traffic = Traffic(f"kafka://{place.bootstrap}", SEED + 1)
    traffic.goes_on(30, 60)
    zombies = loop_workers(engine)
    frozen = [*zombies, psutil.Process(engine.process.pid)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    for process in engine.family():
        if process not in frozen:
            with contextlib.suppress(psutil.Error):
                process.kill()
    successor = place.start()
    traffic.goes_on(60, 60)
    for worker in zombies:
        thaw(worker)
    drain(traffic)
    engine.kill()  # no later test takes it for one that runs
    assert successor.terminate() == 0
