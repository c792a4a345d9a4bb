"""Three brokers, a queue `orders-<name>` on each, and traffic through two of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil
from job.processes import loop_workers
from job.traffic import Traffic
from lakequeue.streaming.loop.realtime import ENVIRONMENT

SEED = 7
BROKERS = ("a", "b", "c")
BUSY = BROKERS[:2]


def traffics(url: str, per_second: float = 5) -> dict[str, Traffic]:
    """Traffic on the queues of two brokers, each by its own."""
    return {
        broker: Traffic(url, SEED + i, f"orders-{broker}", broker, per_second=per_second)
        for i, broker in enumerate(BUSY)
    }


def workers(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """The process that steps, of each broker."""
    found = {}
    for worker in loop_workers(processes):
        with contextlib.suppress(psutil.Error):  # one that was killed may just have ended
            found[worker.environ()[ENVIRONMENT]] = worker
    return found
