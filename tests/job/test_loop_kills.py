"""The loop in Spark: its worker is killed, and frozen while everything around it is killed.

Many kills of the loop alone are in `tests/loop/test_on_kafka.py`; the driver's are in
`test_crash.py`. Here Spark is what notices and begins again.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from job.processes import EngineProcess, loop_workers, thaw
from job.traffic import Traffic, drain
from lakequeue.sources.live import kafka_client
from lakequeue.sources.log_reader import read_steps
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 13
KILLS = 4
BACK_S_MAX = 30.0  # four kills in one batch end the query, and it is started again
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, Path]]:
    folder = tmp_path_factory.mktemp("kills")
    (folder / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(folder / "kafka") as kafka:
        yield kafka, folder


def start(place: tuple[EmbeddedKafka, Path]) -> EngineProcess:
    kafka, folder = place
    batches = ("--set", "lakequeue.batch_s=5")
    config = folder / "queues.yaml"
    return EngineProcess(kafka.bootstrap_servers, folder / "home", config, *batches)


def test_a_killed_worker_is_replaced_and_loses_nothing(
    place: tuple[EmbeddedKafka, Path],
) -> None:
    chance = random.Random(SEED)
    engine = start(place)
    try:
        engine.wait_ready()
        traffic = Traffic(f"kafka://{place[0].bootstrap_servers}", SEED)
        traffic.goes_on(30, 60)
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 3.0))
            workers = loop_workers(engine)
            assert workers, "no worker of the loop was found"
            for worker in workers:
                worker.kill()
            assert traffic.goes_on(60, 60) < BACK_S_MAX
        drain(traffic)
        assert engine.terminate() == 0
        assert "Traceback" not in engine.errors()
        logged = read_steps(kafka_client(place[0].bootstrap_servers, "look"), "broker-0.steps", 0)
        numbers = [r.step for _, r in logged]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    finally:
        engine.kill()


def test_a_frozen_worker_outlives_its_engine_and_says_nothing(
    place: tuple[EmbeddedKafka, Path],
) -> None:
    """The driver is frozen too, and never comes back: a parent in the session keeps the kernel
    from ending the worker."""
    engine = start(place)
    successor = None
    zombies: list[psutil.Process] = []
    try:
        engine.wait_ready()
        traffic = Traffic(f"kafka://{place[0].bootstrap_servers}", SEED + 1)
        traffic.goes_on(30, 60)
        zombies = loop_workers(engine)
        frozen = [*zombies, psutil.Process(engine.process.pid)]
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        for process in engine.family():
            if process not in frozen:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        successor = start(place).wait_ready()
        traffic.goes_on(60, 60)
        for worker in zombies:
            thaw(worker)
        drain(traffic)
        assert successor.terminate() == 0
    finally:
        engine.kill()
        if successor is not None:
            successor.kill()
