"""The worker that steps hangs, as one that waits for ever in a call: Spark would never notice.

The engine is its own: what it says of a query that failed would be a fault elsewhere.
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
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 31
HANGS_S_MAX = 150.0  # 30 s, a look, its end, and a start
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[EngineProcess, str]]:
    (tmp_path / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        address = kafka.bootstrap_servers
        settings = ("--set", "lakequeue.batch_s=3", "--set", "lakequeue.tables_interval_s=0")
        engine = EngineProcess(address, tmp_path / "home", tmp_path / "queues.yaml", *settings)
        try:
            yield engine.wait_ready(), address
        finally:
            engine.kill()


def java_yields(engine: EngineProcess) -> bool:
    """Whether Spark's Java process has a lower priority than its worker, a higher nice value."""
    (worker,) = loop_workers(engine)
    java = worker.parent().parent()
    assert java.name() == "java"
    return bool(java.nice() > worker.nice())


def test_a_worker_that_hangs_is_noticed_and_started_again(
    engine: tuple[EngineProcess, str],
) -> None:
    process, address = engine
    traffic = Traffic(f"kafka://{address}", SEED)
    traffic.goes_on(30, 60)
    (worker,) = loop_workers(process)
    worker.send_signal(signal.SIGSTOP)
    try:
        traffic.goes_on(60, HANGS_S_MAX)
    finally:
        with contextlib.suppress(psutil.Error):  # it was killed
            thaw(worker)
    drain(traffic)
    until(lambda: java_yields(process), 90, "Java yields to who steps, from a mark on")
    assert "broker 'broker-0' hangs" in process.errors()
    with lakequeue.connect(f"kafka://{address}") as connection:
        events = [e["event"] for e in connection.admin().events()]
        assert "broker_stuck" in events
        (broker,) = connection.admin().brokers()
        assert broker["state"] == "running"
