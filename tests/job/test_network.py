"""A home over four hosts with a network of their own: Kafka, the driver with Spark's master, and
two with an executor each. Links are cut under traffic, on both ways and on one, and slowed.

Whatever is cut, nothing is lost, what comes twice says so, and the log of each broker has every
step once: a worker that was cut off, and whose broker steps elsewhere by then, is fenced and says
nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job.brokers import BROKERS, CONFIG, define_queues, traffics, workers
from job.hosts import Network, NoNetwork
from job.output_audit import UNTRIMMED, steps_say
from job.processes import EngineProcess
from job.standalone import Standalone
from job.traffic import Traffic, drain
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SETTINGS = (
    "--set", "lakequeue.batch_s=3", "--set", "lakequeue.tables_interval_s=0",
    # After so long Spark gives up an executor that it does not hear, and its brokers go elsewhere.
    "--set", "spark.network.timeout=20s", "--set", "spark.network.timeoutInterval=5s",
    "--set", "spark.executor.heartbeatInterval=2s",
)  # fmt: skip
SLOTS = 6  # of each executor: room for all brokers on one
CUT_S = 6.0
BACK_S_MAX = 120.0  # how soon is printed


class SubmittedEngine(EngineProcess):
    """`lakequeue submit` in client mode."""

    def command(self, bootstrap: str) -> list[str]:
        return ["submit", "--bootstrap", bootstrap]


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        network = Network(4).__enter__()
    except NoNetwork as error:
        pytest.skip(f"no network of one's own can be made here: {error}")
    with contextlib.closing(network):
        yield network


def test_links_are_cut_and_slowed_under_traffic(network: Network, tmp_path: Path) -> None:
    kafkas, drivers, first, second = network.hosts
    (tmp_path / "queues.yaml").write_text(CONFIG)
    kafka = EmbeddedKafka(tmp_path / "kafka", host=kafkas.address)
    with kafkas():
        kafka.start()
    cluster = Standalone(tmp_path, 2, SLOTS, [drivers, first, second])
    with drivers():
        engine = SubmittedEngine(
            kafka.bootstrap_servers, tmp_path / "home", tmp_path / "queues.yaml",
            *cluster.settings(), *UNTRIMMED, *SETTINGS,
        )  # fmt: skip
    try:
        engine.wait_ready()
        url = f"kafka://{kafka.bootstrap_servers}"
        define_queues(url)
        running = traffics(url)
        for traffic in running.values():
            traffic.goes_on(60, BACK_S_MAX)
        with first.slow(100):
            back_after("Kafka does not hear an executor", running, second.unheard(kafkas))
        back_after("an executor does not hear Kafka", running, kafkas.unheard(second))
        back_after("the driver does not hear an executor", running, first.unheard(drivers))
        with first.cut_off():
            took = go_on(running)
            print(f"an executor is cut off: its brokers are elsewhere after {took:.1f} s")
        print(f"and is there again: {go_on(running):.1f} s")
        for traffic in running.values():
            traffic.finish_producing()
        for traffic in running.values():
            drain(traffic)
        assert sorted(workers(cluster.family())) == list(BROKERS)
        epoch = json.loads((engine.home / "lakequeue.json").read_text())["epoch"]
        for number, broker in enumerate(BROKERS):  # no step is missing, or stands there twice
            steps_say(kafka.bootstrap_servers, epoch, broker, number)
        assert engine.terminate() == 0
    finally:
        engine.kill()
        cluster.kill()
        kafka.stop()


def go_on(running: dict[str, Traffic]) -> float:
    """Until all traffic does; seconds."""
    begun = time.monotonic()
    for traffic in running.values():
        traffic.goes_on(60, BACK_S_MAX)
    return time.monotonic() - begun


def back_after(
    what: str, running: dict[str, Traffic], fault: contextlib.AbstractContextManager[None]
) -> None:
    """All traffic goes on when a short fault is over."""
    with fault:
        begun = {broker: len(traffic.acked) for broker, traffic in running.items()}
        time.sleep(CUT_S)
        during = [len(running[b].acked) - n for b, n in begun.items()]
    print(f"{what}: {during} messages meanwhile; back after {go_on(running):.1f} s")
