"""Two brokers, a queue `orders-<name>` on each, and traffic through all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import lakequeue
import psutil
from job.processes import loop_workers
from job.traffic import Traffic
from lakequeue.streaming.loop.realtime import ENVIRONMENT

SEED = 7
BROKERS = ("a", "b")


def define_queues(url: str) -> None:
    """A queue on each broker."""
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            connection.admin().define(
                {
                    "name": f"orders-{broker}", "message_type": "text", "type": "LocalQueue",
                    "broker": broker,
                    "max_per_subscription_backlog": 50,
                }
            )  # fmt: skip


def traffics(url: str) -> dict[str, Traffic]:
    """Traffic on each broker's queue."""
    return {
        broker: Traffic(url, SEED + i, f"orders-{broker}", broker, per_second=5)
        for i, broker in enumerate(BROKERS)
    }


def workers(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """The process that steps, of each broker."""
    found = {}
    for worker in loop_workers(processes):
        with contextlib.suppress(psutil.Error):  # one that was killed may just have ended
            found[worker.environ()[ENVIRONMENT]] = worker
    return found
