"""Kombu and Dramatiq on the real job. (Celery, whose workers are processes and die:
`test_chaos.py`. What tasks are promised: `tests/tasks`.)"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import dramatiq
import pytest
from job.conftest import Job
from lakequeue.tasks.dramatiq_broker import LakequeueBroker

pytestmark = pytest.mark.job

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


def test_a_program_that_just_ends_has_sent_everything_and_leaves_no_queue(
    job: Job, connection: Any
) -> None:
    """Nothing that Python ends before may be needed for that."""
    program = [sys.executable, "-c", SENDS_AND_ENDS, f"lakequeue+{job.url}"]
    assert subprocess.run(program, timeout=60).returncode == 0
    admin = connection.admin()
    assert admin.describe("unconfirmed")["depth"] == 500
    assert "replies" not in {queue["name"] for queue in admin.queues()}


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
