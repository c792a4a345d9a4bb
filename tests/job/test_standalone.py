"""Four brokers on a standalone cluster of two workers, as it is run in earnest: the engine is
submitted, driver, executors and Python workers are processes of their own. Under traffic an
executor dies, and another is told to leave (a node is drained, a spot instance taken back)."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from job.brokers import BROKERS, CONFIG, define_queues, traffics, workers
from job.output_audit import UNTRIMMED, steps_say
from job.processes import EngineProcess, gone, thaw, until
from job.standalone import Standalone
from job.traffic import Traffic, drain
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SETTINGS = (
    "--set", "lakequeue.tables_interval_s=5",  # as by default; other tests want theirs sooner
    "--set", "lakequeue.batch_s=5", "--set", "spark.decommission.enabled=true",
)  # fmt: skip
SLOTS = 6  # of each executor: room for all brokers, the tables and their history on one
WARM_S = 4.0  # Java compiles, and a batch or two of each broker end
USUAL_S = 2.0
LAST_BREATH_S = 0.5  # a dead executor's workers go on until they notice
BACK_S_MAX = 120.0  # that it comes back at all; how fast is printed (4.5 to 7 s on two quiet cores)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("standalone"), workers=2, slots=SLOTS)
    try:
        yield cluster
    finally:
        cluster.kill()


class SubmittedEngine(EngineProcess):
    """`lakequeue submit` in client mode: the same engine, with spark-submit's Java before its
    Python. It has its jars, and SIGTERM to the command ends the driver in order."""

    def command(self, bootstrap: str) -> list[str]:
        return ["submit", "--bootstrap", bootstrap]


def executor_of(worker: psutil.Process, executors: list[psutil.Process]) -> psutil.Process:
    above = {p.pid for p in worker.parents()}
    return next(e for e in executors if e.pid in above)


def p99(traffics: Iterable[Traffic], begin: float, end: float) -> float:
    """Of all their messages together; nan where there are none, as when all brokers died."""
    took = sorted(ms for traffic in traffics for ms in traffic.took_ms(begin, end))
    return took[min(len(took) - 1, len(took) * 99 // 100)] if took else math.nan


def test_an_executor_dies_and_another_leaves_and_their_brokers_step_on_the_other(
    cluster: Standalone, tmp_path: Path
) -> None:
    """One of its Python workers is frozen before, and goes on when its broker steps elsewhere: two
    attempts of one broker, of which only one is heard."""
    (tmp_path / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        url, home = f"kafka://{kafka.bootstrap_servers}", tmp_path / "home"
        engine = SubmittedEngine(
            kafka.bootstrap_servers, home, tmp_path / "queues.yaml", *cluster.settings(),
            *UNTRIMMED, *SETTINGS,
        )  # fmt: skip
        try:
            engine.wait_ready()
            define_queues(url)
            running = traffics(url)
            for traffic in running.values():
                traffic.goes_on(60, BACK_S_MAX)
            time.sleep(WARM_S)
            moved, victim, zombie = an_executor(cluster)
            begin = time.monotonic()
            time.sleep(USUAL_S)
            assert an_executor(cluster) == (moved, victim, zombie)  # brokers stay where they are
            died = time.monotonic()
            zombie.send_signal(signal.SIGSTOP)
            victim.kill()
            back: dict[str, float] = {}
            while len(back) < len(moved):
                assert time.monotonic() < died + BACK_S_MAX, f"not back: {set(moved) - set(back)}"
                for broker in set(moved) - set(back):
                    if running[broker].took_ms(died + LAST_BREATH_S, time.monotonic()):
                        back[broker] = time.monotonic() - died
                time.sleep(0.02)
            thaw(zombie)
            for traffic in running.values():
                traffic.goes_on(60, BACK_S_MAX)
            calm = time.monotonic()
            time.sleep(USUAL_S)
            others = [running[b] for b in BROKERS if b not in moved]
            ms = [p99(others, at, at + USUAL_S) for at in (begin, died, calm)]
            print(f"back after s: {back}; p99 of others in ms, before, then, and later: {ms}")
            until(lambda: len(cluster.executors()) == 2, 60, "another executor takes its place")
            an_executor_leaves(cluster, engine, running)
            for traffic in running.values():
                traffic.finish_producing()
            for traffic in running.values():
                drain(traffic)
            epoch = json.loads((home / "lakequeue.json").read_text())["epoch"]
            for number, broker in enumerate(BROKERS):  # no step is missing, or stands there twice
                steps_say(kafka.bootstrap_servers, epoch, broker, number)
            assert engine.terminate() == 0
            assert engine.said[-1]["event"] == "goodbye"
            assert "Traceback" not in engine.errors()
        finally:
            engine.kill()


def an_executor_leaves(
    cluster: Standalone, engine: EngineProcess, running: dict[str, Traffic]
) -> None:
    """It is decommissioned: batches that run there end, the next ones begin on the other, and no
    query fails."""

    def failures() -> int:
        """But those of a worker that takes half a minute to begin elsewhere, on a busy machine: it
        is said to hang."""
        ends = [e for e in engine.log.read_text().splitlines() if "is started again" in e]
        return len([end for end in ends if "has taken no step" not in end])

    failed = failures()
    leaves = executor_of(workers(cluster.family())[BROKERS[0]], cluster.executors())
    leaves.send_signal(signal.SIGPWR)
    until(lambda: gone(leaves), 60, "it has left")
    for traffic in running.values():
        traffic.goes_on(120, 60)
    assert failures() == failed


def an_executor(cluster: Standalone) -> tuple[list[str], psutil.Process, psutil.Process]:
    """Which brokers are on the one with fewer, that one, and the Python worker of one of them."""
    executors = cluster.executors()
    assert len(executors) == 2
    places = {b: (w, executor_of(w, executors)) for b, w in workers(cluster.family()).items()}
    assert sorted(places) == list(BROKERS)
    count = {e.pid: sum(e == at for _, at in places.values()) for e in executors}
    _, victim = min(places.values(), key=lambda place: count[place[1].pid])
    moved = [b for b, (_, at) in places.items() if at == victim]
    return moved, victim, places[moved[0]][0]
