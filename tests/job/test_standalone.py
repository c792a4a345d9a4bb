"""Two brokers on a standalone cluster of two workers, as it is run in earnest: the engine is
submitted; driver, executors and Python workers are processes of their own. Where one may make them,
Kafka, the driver and each worker are on hosts of their own, with links that are cut and slowed.

Under traffic links are cut on one way and on both, an executor is lost, and another is told to
leave (a node is drained, a spot instance taken back). Nothing is lost, what comes twice says so,
and the log of each broker has every step once: a worker that was cut off or frozen, and whose
broker steps elsewhere by then, is fenced and says nothing.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from job.brokers import BROKERS, CONFIG, define_queues, traffics, workers
from job.hosts import Host, Network, NoNetwork
from job.output_audit import UNTRIMMED, steps_say
from job.processes import EngineProcess, gone, thaw, until
from job.standalone import Standalone
from job.traffic import Traffic, drain
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SETTINGS = (
    "--set", "lakequeue.batch_s=5", "--set", "spark.decommission.enabled=true",
    "--set", "lakequeue.tables_interval_s=10", "--set", "lakequeue.history_interval_s=0",
    # After so long Spark gives up an executor that it does not hear, and its brokers go elsewhere.
    "--set", "spark.network.timeout=20s", "--set", "spark.network.timeoutInterval=5s",
    "--set", "spark.executor.heartbeatInterval=2s",
)  # fmt: skip
SLOTS = 4  # of each executor: room for all brokers and the tables on one
CUT_S = 4.0
BACK_S_MAX = 120.0  # how soon is printed

Running = dict[str, Traffic]


class SubmittedEngine(EngineProcess):
    """`lakequeue submit` in client mode: the same engine, with spark-submit's Java before its
    Python. It has its jars, and SIGTERM to the command ends the driver in order."""

    def command(self, bootstrap: str) -> list[str]:
        return ["submit", "--bootstrap", bootstrap]


class Home:
    """Kafka, the cluster and the engine. hosts: of Kafka, of the driver, and of each worker; by
    default all are on this one."""

    def __init__(self, folder: Path, hosts: list[Host]) -> None:
        (folder / "queues.yaml").write_text(CONFIG)
        on = [host() for host in hosts[:2]] or [contextlib.nullcontext()] * 2
        address = hosts[0].address if hosts else "127.0.0.1"
        self.kafka = EmbeddedKafka(folder / "kafka", host=address)
        with on[0]:
            self.kafka.start()
        self.cluster = Standalone(folder, 2, SLOTS, hosts[1:])
        with on[1]:
            self.engine = SubmittedEngine(
                self.kafka.bootstrap_servers, folder / "home", folder / "queues.yaml",
                *self.cluster.settings(), *UNTRIMMED, *SETTINGS,
            )  # fmt: skip

    def kill(self) -> None:
        """All of it."""
        self.engine.kill()
        self.cluster.kill()
        self.kafka.stop()


@pytest.fixture
def hosts() -> Iterator[list[Host] | str]:
    """Or why there are none."""
    with contextlib.ExitStack() as stack:
        try:
            found: list[Host] | str = stack.enter_context(Network(4)).hosts
        except NoNetwork as error:
            found = f"no network of one's own can be made here: {error}"
        yield found


def test_links_are_cut_an_executor_is_lost_and_another_leaves(
    hosts: list[Host] | str, tmp_path: Path
) -> None:
    home = Home(tmp_path, [] if isinstance(hosts, str) else hosts)
    try:
        home.engine.wait_ready()
        url = f"kafka://{home.kafka.bootstrap_servers}"
        define_queues(url)
        running = traffics(url)
        go_on(running)
        if isinstance(hosts, str):
            an_executor_dies(home.cluster, running)
        else:
            links_are_cut(hosts, running)
        until(lambda: len(home.cluster.executors()) == 2, 60, "another executor takes its place")
        an_executor_leaves(home, running)
        for traffic in running.values():
            traffic.finish_producing()
        for traffic in running.values():
            drain(traffic)
        epoch = json.loads((home.engine.home / "lakequeue.json").read_text())["epoch"]
        for number, broker in enumerate(BROKERS):  # no step is missing, or stands there twice
            steps_say(home.kafka.bootstrap_servers, epoch, broker, number)
        assert home.engine.terminate() == 0
        assert home.engine.said[-1]["event"] == "goodbye"
        assert "Traceback" not in home.engine.errors()
    finally:
        home.kill()
    if isinstance(hosts, str):
        pytest.skip(f"an executor died and another left, but no link was cut: {hosts}")


def go_on(running: Running) -> float:
    """Until all traffic does; seconds."""
    begun = time.monotonic()
    for traffic in running.values():
        traffic.goes_on(60, BACK_S_MAX)
    return time.monotonic() - begun


def links_are_cut(hosts: list[Host], running: Running) -> None:
    """For a moment each; then one executor for as long as its brokers need to be elsewhere."""
    kafkas, drivers, first, second = hosts
    with first.slow(100):
        back_after("Kafka does not hear an executor", running, second.unheard(kafkas))
    back_after("an executor does not hear Kafka", running, kafkas.unheard(second))
    back_after("the driver does not hear an executor", running, first.unheard(drivers))
    with first.cut_off():
        print(f"an executor is cut off: its brokers are elsewhere after {go_on(running):.1f} s")
    print(f"and is there again: {go_on(running):.1f} s")


def back_after(what: str, running: Running, fault: contextlib.AbstractContextManager[None]) -> None:
    """All traffic goes on when a short fault is over."""
    with fault:
        begun = {broker: len(traffic.acked) for broker, traffic in running.items()}
        time.sleep(CUT_S)
        during = [len(running[b].acked) - n for b, n in begun.items()]
    print(f"{what}: {during} messages meanwhile; back after {go_on(running):.1f} s")


def executor_of(worker: psutil.Process, executors: list[psutil.Process]) -> psutil.Process:
    above = {p.pid for p in worker.parents()}
    return next(e for e in executors if e.pid in above)


def an_executor_dies(cluster: Standalone, running: Running) -> None:
    """One of its Python workers is frozen before, and goes on when its broker steps elsewhere: two
    attempts of one broker, of which only one is heard."""
    zombie = workers(cluster.family())[BROKERS[0]]
    zombie.send_signal(signal.SIGSTOP)
    executor_of(zombie, cluster.executors()).kill()
    print(f"an executor died: back after {go_on(running):.1f} s")
    thaw(zombie)


def an_executor_leaves(home: Home, running: Running) -> None:
    """It is decommissioned: batches that run there end, the next ones begin on the other, and no
    query fails."""

    def failures() -> int:
        """But those of a worker that takes half a minute to begin elsewhere, on a busy machine: it
        is said to hang."""
        ends = [e for e in home.engine.log.read_text().splitlines() if "is started again" in e]
        return len([end for end in ends if "has taken no step" not in end])

    failed = failures()
    leaves = executor_of(workers(home.cluster.family())[BROKERS[0]], home.cluster.executors())
    leaves.send_signal(signal.SIGPWR)
    until(lambda: gone(leaves), 60, "it has left")
    go_on(running)
    assert failures() == failed
