"""The application of `celery_day.py`: its tasks write a line for each of their runs."""

from __future__ import annotations

import os
import time
from typing import Any

import lakequeue.tasks  # noqa: F401 - the checkout may have been installed before it had the name
from celery import Celery

app = Celery("celery_app", broker=os.environ["CELERY_TEST_BROKER"])
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=1, worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True, task_default_queue="celery-tasks",
    task_reject_on_worker_lost=True,
    # A retry waits that long for a restarting engine; otherwise Celery rejects the task.
    broker_transport_options={"connect_retries_timeout": 120},
    task_publish_retry_policy={"max_retries": None},
)  # fmt: skip


def note(*words: object) -> None:
    """Write one line in one call."""
    line = " ".join(map(str, (*words, time.time()))) + "\n"
    with open(os.environ["CELERY_TEST_LOG"], "a") as file:
        file.write(line)


@app.task(bind=True, max_retries=5)
def errand(self: Any, n: int, seconds: float, fails: int) -> None:
    """Note the start and the end. The first `fails` attempts fail."""
    again = self.request.delivery_info["redelivered"]
    note(n, self.request.retries, "again" if again else "first")
    time.sleep(seconds)
    if self.request.retries < fails:
        raise self.retry(countdown=1)
    note(n, "done")
