"""An executor is told to leave (a node is drained, a spot instance taken back): the batch that runs
there ends, the next one begins on another executor, and the work goes on."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest
from job.processes import EngineProcess, until
from job.traffic import Traffic, judge
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.realtime import ENVIRONMENT
from lakequeue.streaming.worker_daemon import DAEMON

pytestmark = pytest.mark.job

SEED = 31
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"
SETTINGS = (
    "--master", "local-cluster[2,1,1024]",
    "--set", "lakequeue.batch_s=5",
    "--set", "lakequeue.tables_interval_s=0",
    "--set", "spark.decommission.enabled=true",
)  # fmt: skip


def host(engine: EngineProcess) -> psutil.Process | None:
    """The executor whose worker runs the broker."""
    for process in engine.family():
        with contextlib.suppress(psutil.Error, OSError):
            if "CoarseGrainedExecutorBackend" not in " ".join(process.cmdline()):
                continue
            for child in process.children(recursive=True):
                if DAEMON in child.cmdline() and child.environ().get(ENVIRONMENT):
                    return process
    return None


def test_an_executor_that_is_decommissioned_hands_over(tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        address = kafka.bootstrap_servers
        engine = EngineProcess(address, tmp_path / "home", tmp_path / "queues.yaml", *SETTINGS)
        try:
            engine.wait_ready()
            traffic = Traffic(f"kafka://{address}", SEED)
            until(lambda: len(traffic.acked) > 60 or traffic.errors, 60, "traffic")
            executor = host(engine)
            assert executor is not None
            executor.send_signal(signal.SIGPWR)
            until(lambda: not executor.is_running(), 60, "the executor has left")
            enough = len(traffic.acked) + 120
            begun = time.monotonic()
            until(lambda: len(traffic.acked) > enough or traffic.errors, 60, "it goes on")
            print(f"120 more after {time.monotonic() - begun:.1f} s")
            other = host(engine)
            assert other is not None
            assert other.pid != executor.pid
            traffic.finish_producing()
            admin = traffic.connections[0].admin()
            until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
            traffic.finish_consuming()
            judge(traffic, set())
            assert "is started again" not in engine.errors()  # no query failed
            assert engine.terminate() == 0
        finally:
            engine.kill()
