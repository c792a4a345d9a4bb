"""A shop's background work, as a Celery application; docs/how-to/celery.md runs it.

Only the broker's address is lakequeue's; SHOP_BROKER names another one.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

app = Celery(
    "lakequeue.examples.celery_shop",  # as a worker imports it: `python -m` sends such names too
    broker=os.environ.get("SHOP_BROKER", "lakequeue+kafka://localhost:9092"),
)
app.conf.update(
    task_acks_late=True,  # a task is acknowledged when it is done, however long that takes
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_default_queue="shop",
    broker_transport_options={
        "queues": {"max_deliveries": 5, "dead_message_queue": "shop-dead"},
    },
)


@app.task(bind=True, max_retries=5)
def charge(self: Any, order: int) -> str:
    """Charge a card. The bank fails at the first attempt; the broker delays the second."""
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    return f"order {order} is paid"


@app.task
def send_reminder(order: int) -> str:
    """Write to a customer, some time later."""
    return f"order {order}: how do you like it?"


@app.task
def make_report(seconds: float) -> str:
    """A long task."""
    time.sleep(seconds)
    return "the report is ready"


def main() -> None:
    """Send one of each task; the urgent one overtakes the others."""
    make_report.apply_async((5,), priority=1)
    charge.apply_async((1,), priority=9)
    send_reminder.apply_async((1,), countdown=10)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit("usage: SHOP_BROKER=URL python -m lakequeue.examples.celery_shop")
    try:
        main()
    except OperationalError as error:  # such as a Kafka that does not answer
        sys.exit(str(error))
