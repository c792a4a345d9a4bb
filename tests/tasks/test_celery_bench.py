"""The counts of `lakequeue bench celery`, with an engine in the process."""

from __future__ import annotations

from pathlib import Path

import lakequeue
import pytest
from celery.contrib.testing.worker import start_worker
from lakequeue.bench import celery as bench

NAME = "celery-bench"


def test_every_task_runs_once_and_is_counted(tmp_path: Path, quick_drains: None) -> None:
    broker, log = f"lakequeue+memory://{NAME}", tmp_path / "runs"
    with lakequeue.connect(f"memory://{NAME}") as engine:
        worker = bench.application(broker, log)
        with start_worker(worker, pool="threads", concurrency=2, perform_ping_check=False):
            row = bench.measure(broker, log, tasks=30, rate=20, seconds=1)
        assert engine.admin().describe("celery")["depth"] == 0
        worker.close()
    runs = bench.runs(log)
    assert len(runs) == 1 + 2 * 20 + 30
    assert all(began >= sent for sent, began in runs)
    assert row["tasks"] == 30
    assert row["p50_ms"] > 0
    assert row["tasks_s"] > 0


def test_a_broker_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(bench.BROKERS, "lakequeue")
    monkeypatch.setenv("PATH", "/nowhere")
    assert bench.run(1, print) == []
    assert capsys.readouterr().out.splitlines() == [
        "Redis is skipped: redis-server is not installed.",
        "RabbitMQ is skipped: rabbitmq-server is not installed.",
    ]
