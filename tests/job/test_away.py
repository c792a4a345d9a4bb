"""What the engine needs goes away under traffic, and comes back: Kafka, and room for the state.

A sentence each, no end of the engine, nothing lost, and it goes on by itself. Kafka is frozen, so
that connections stay open and nothing answers. The disk is full for those who write the state:
driver and Java may not let any file grow, as the kernel sees it.

LAKEQUEUE_AWAY_S: how long each is away (10, twice as long as a silent client keeps its session);
more than 40 also outlives the loop's transaction.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from job.processes import EngineProcess, until
from job.traffic import Traffic, judge
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

AWAY_S = float(os.environ.get("LAKEQUEUE_AWAY_S", "10"))
SEED = 29
STEPS = "broker-0.steps"
CONFIG = """
system: {heartbeat_timeout: 5s}
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[tuple[EngineProcess, str]]:
    (folder / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(folder / "kafka") as kafka:
        address = kafka.bootstrap_servers
        batches = ("--set", "lakequeue.batch_s=3")
        engine = EngineProcess(address, folder / "home", folder / "queues.yaml", *batches)
        try:
            yield engine.wait_ready(), address
            assert engine.terminate() == 0
            numbers = [r.step for _, r in read_steps(kafka_client(address, "look"), STEPS, 0)]
            assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        finally:
            engine.kill()


def goes_on(traffic: Traffic, seconds: float) -> None:
    enough = len(traffic.acked) + 60
    until(lambda: len(traffic.acked) >= enough or traffic.errors, seconds, "traffic goes on")


def drained(traffic: Traffic) -> None:
    traffic.finish_producing()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
    traffic.finish_consuming()
    judge(traffic, set())


def said(engine: EngineProcess, sentence: str) -> int:
    return engine.log.read_text(errors="replace").count(sentence)


def test_kafka_is_frozen(engine: tuple[EngineProcess, str], folder: Path) -> None:
    process, address = engine
    kafka = next(  # other tests may have one too
        child for child in psutil.Process().children(recursive=True)
        if "kafka.Kafka" in child.cmdline() and str(folder) in " ".join(child.cmdline())
    )  # fmt: skip
    traffic = Traffic(f"kafka://{address}", SEED)
    goes_on(traffic, 60)
    kafka.suspend()
    try:
        until(lambda: said(process, "nothing is lost"), 15, "the operator is told")
        time.sleep(AWAY_S)
    finally:
        kafka.resume()
    goes_on(traffic, 60)
    until(lambda: said(process, "Kafka answers again"), 15, "the operator is told")
    drained(traffic)
    assert said(process, "nothing is lost") == 1
    assert not said(process, "Traceback")


@contextlib.contextmanager
def full_disk(engine: EngineProcess) -> Iterator[None]:
    """For its driver and its Java process: workers write no files. The driver may still write its
    lines, which are a file here."""
    before: dict[psutil.Process, tuple[int, int]] = {}
    try:
        for process in engine.family():
            driver, java = process.pid == engine.process.pid, process.name() == "java"
            if driver or java:
                before[process] = process.rlimit(resource.RLIMIT_FSIZE)
                room = 0 if java else 500_000
                process.rlimit(resource.RLIMIT_FSIZE, (room, before[process][1]))
        assert len(before) == 2
        yield
    finally:
        for process in engine.family():  # also those that were started meanwhile
            with contextlib.suppress(psutil.Error):
                process.rlimit(resource.RLIMIT_FSIZE, next(iter(before.values())))


def test_the_state_cannot_be_written(engine: tuple[EngineProcess, str]) -> None:
    process, address = engine
    traffic = Traffic(f"kafka://{address}", SEED + 1)
    goes_on(traffic, 60)
    with full_disk(process):
        sentence = "checkpoint cannot be written (File too large)"
        until(lambda: said(process, sentence), 60, "the operator is told")
        time.sleep(AWAY_S)
        assert process.process.poll() is None
    goes_on(traffic, 60)
    drained(traffic)
    assert said(process, sentence) <= 2  # of the broker's query, and of the tables'
    assert not said(process, "Traceback")
