"""Celery and Dramatiq on the real job: workers that are processes, some of which are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from job.celery_day import HERE, QUEUE, Application
from job.conftest import Job, in_real_time
from job.processes import until
from lakequeue.tasks.dramatiq_broker import LakequeueBroker


@pytest.fixture
def application(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    monkeypatch.syspath_prepend(str(HERE))
    application = Application(job.url, tmp_path)
    yield application
    application.tasks.app.close()
    sys.modules.pop("celery_app")


@pytest.mark.job
@in_real_time
def test_priorities_times_and_retries_are_the_brokers(
    application: Application, connection: Any
) -> None:
    tasks, admin = application.tasks, connection.admin()
    sent = time.time()
    tasks.run.apply_async(("later",), countdown=12)
    for priority in (1, 9, 5):
        tasks.run.apply_async((f"p{priority}",), priority=priority)
    tasks.flaky.delay("flaky")
    described = admin.describe(QUEUE)
    assert (described["delayed"], described["ready"]) == (1, 4)
    with application.worker("-P", "prefork", "-c", "1", "-n", "third@%h"):
        until(lambda: application.names().count("flaky") == 3, 90, "retries")
        assert application.names()[:4] == ["p9", "p5", "p1", "flaky"]
        assert [w[1] for w in application.ran() if w[0] == "flaky"] == ["0", "1", "2"]
        (alive,) = tasks.app.control.ping(timeout=5)
        assert list(alive.values()) == [{"ok": "pong"}]
        until(lambda: "later" in application.names(), 60, "its time comes")
        until(lambda: not admin.describe(QUEUE)["depth"], 30, "they are acknowledged")
    (later,) = [float(words[-1]) for words in application.ran() if words[0] == "later"]
    assert later - sent >= 12
    assert len(application.ran()) == 7


SENDS_AND_ENDS = """
import sys
import lakequeue.tasks
from kombu import Connection, Consumer, Producer, Queue

connection = Connection(sys.argv[1], transport_options={"confirm_publish": False})
replies = Queue("replies", routing_key="replies", auto_delete=True)
Consumer(connection.channel(), [replies], callbacks=[print]).consume()
producer = Producer(connection.channel())
for n in range(500):
    producer.publish(n, routing_key="unconfirmed", declare=[Queue("unconfirmed")])
"""


@pytest.mark.job
@in_real_time
def test_a_program_that_just_ends_has_sent_everything_and_leaves_no_queue(
    job: Job, connection: Any
) -> None:
    """Nothing that Python ends before may be needed for that."""
    program = [sys.executable, "-c", SENDS_AND_ENDS, f"lakequeue+{job.url}"]
    assert subprocess.run(program, timeout=60).returncode == 0
    admin = connection.admin()
    assert admin.describe("unconfirmed")["depth"] == 500
    assert "replies" not in {queue["name"] for queue in admin.queues()}


@pytest.mark.job
@in_real_time
def test_dramatiq_on_the_real_job(job: Job, connection: Any) -> None:
    broker = LakequeueBroker(job.url, {"dead_message_queue": "dramatiq-dead"})
    ran: list[tuple[int, float]] = []

    def run(n: int) -> None:
        ran.append((n, time.time()))
        if n == 0:
            raise RuntimeError("no")

    task = dramatiq.actor(
        run, broker=broker, queue_name="dramatiq", max_retries=1, min_backoff=100, max_backoff=200
    )
    sent = time.time()
    task.send_with_options(args=(99,), delay=4_000)
    for n in range(30):
        task.send(n)
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    worker.start()
    broker.join("dramatiq", timeout=60_000)
    worker.stop()
    broker.close()
    assert sorted(n for n, _ in ran) == [0, 0, *range(1, 30), 99]
    assert dict(ran)[99] - sent >= 4
    assert connection.admin().describe("dramatiq-dead")["depth"] == 1
