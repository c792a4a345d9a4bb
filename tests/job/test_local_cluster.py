"""The same job where driver and executors are different processes: one may die alone, and one may
be told to leave (a node is drained, a spot instance taken back)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import lakequeue
import psutil
import pytest
from job.heard import UNTRIMMED, judge_what_was_said
from job.processes import EngineProcess, gone, loop_workers, until
from job.traffic import Traffic, drain
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.spark import package_zip

pytestmark = pytest.mark.job

SEED = 2
SETTINGS = (
    "--master", "local-cluster[2,1,1024]", "--set", "lakequeue.batch_s=5",
    "--set", "spark.decommission.enabled=true",
)  # fmt: skip
CONFIG = """
queues:
  - {name: orders, message_type: json, max_per_subscription_backlog: 100}
"""


FROM_ZIP = """
import lakequeue
assert ".zip" in lakequeue.__file__, lakequeue.__file__
from lakequeue.expressions import compile_program
assert compile_program(("/n > 1",)).run(b'{"n": 2}', 4, None)
"""


def test_the_zip_for_executors_reads_expressions(tmp_path: Path) -> None:
    """What is cheap to see without a cluster: then a queue above may have a filter."""
    done = subprocess.run(
        [sys.executable, "-c", FROM_ZIP], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package_zip(tmp_path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_two_executors_run_the_same_job_and_one_dies_and_one_leaves(tmp_path: Path) -> None:
    """Killed under traffic: the worker that steps, then the executor that has its next one. Then
    the executor that steps is decommissioned: the batch that runs there ends, the next one begins
    on the other, and no query fails."""
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        bootstrap = kafka.bootstrap_servers
        engine = EngineProcess(bootstrap, tmp_path / "home", config, *SETTINGS, *UNTRIMMED)
        try:
            engine.wait_ready()
            with lakequeue.connect(f"kafka://{bootstrap}") as connection:
                roundtrip(connection)
            assert len(executors(engine)) == 2
            traffic = Traffic(f"kafka://{bootstrap}", SEED)
            traffic.goes_on(30, 60)
            for find in (the_worker, the_executor):
                victim = find(engine)
                victim.kill()
                until(lambda dead=victim: gone(dead), 20, "it is dead")
                traffic.goes_on(60, 60)
            until(lambda: len(executors(engine)) == 2, 30, "another executor takes its place")
            failed = engine.log.read_text().count("is started again")
            leaves = the_executor(engine)
            leaves.send_signal(signal.SIGPWR)
            until(lambda: gone(leaves), 60, "it has left")
            traffic.goes_on(120, 60)
            assert the_executor(engine) != leaves
            drain(traffic)
            assert engine.log.read_text().count("is started again") == failed
            judge_what_was_said(bootstrap, tmp_path / "home")
            assert engine.terminate() == 0
            assert engine.said[-1]["event"] == "goodbye"
            assert "Traceback" not in engine.errors()
            until(lambda: not engine.family(), 30, "something of it is still running")
        finally:
            engine.kill()


def executors(engine: EngineProcess) -> list[psutil.Process]:
    """Java processes that run tasks."""
    found = []
    for process in engine.family():
        with contextlib.suppress(psutil.Error):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found


def the_worker(engine: EngineProcess) -> psutil.Process:
    """The Python process that steps."""
    (worker,) = loop_workers(engine)
    return worker


def the_executor(engine: EngineProcess) -> psutil.Process:
    """The executor whose Python process steps, once there is one: that of a dead one goes on for a
    moment."""

    def look() -> psutil.Process | None:
        with contextlib.suppress(psutil.Error, ValueError):
            ours = {parent.pid for parent in the_worker(engine).parents()}
            (executor,) = [e for e in executors(engine) if e.pid in ours]
            return executor
        return None

    found: psutil.Process = until(look, 60, "an executor steps")
    return found


def roundtrip(connection: lakequeue.Connection) -> None:
    producer = connection.producer()
    futures = [producer.send_async("orders", f'{{"n": {i}}}') for i in range(200)]
    producer.flush(90)
    assert len({f.result().message_id for f in futures}) == 200
    found: list[bytes] = []
    with connection.consumer("orders", ack_mode="individual", max_backlog=100) as consumer:
        while len(found) < 200:
            message = until(lambda: consumer.receive(1.0), 60, f"message {len(found) + 1} of 200")
            found.append(message.payload)
            message.ack()
        until(lambda: connection.admin().describe("orders")["depth"] == 0, 60, "all is acked")
    assert found == [f'{{"n": {i}}}'.encode() for i in range(200)]
