"""Kombu on the real job. (Celery, whose workers are processes and die: `test_chaos.py`. The
promises to tasks, and Dramatiq: `tests/tasks`.)"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from job.conftest import Job

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


def test_a_program_that_exits_has_sent_everything_and_leaves_no_queue(
    job: Job, connection: Any
) -> None:
    """It must not need anything that Python shuts down first."""
    program = [sys.executable, "-c", SENDS_AND_ENDS, f"lakequeue+{job.url}"]
    assert subprocess.run(program, timeout=60).returncode == 0
    admin = connection.admin()
    assert admin.describe("unconfirmed")["depth"] == 500
    assert "replies" not in {queue["name"] for queue in admin.queues()}
