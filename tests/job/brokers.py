"""Two brokers, a queue `orders-<name>` on each, and traffic through them."""

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
BACK_S_MAX = 180.0  # only a limit; how long it really took is printed


def traffics(url: str, *brokers: str, per_second: float = 5) -> dict[str, Traffic]:
    """Traffic on the queue of each of these brokers, through that broker."""
    return {
        broker: Traffic(url, SEED + i, f"orders-{broker}", broker, per_second=per_second)
        for i, broker in enumerate(brokers)
    }


def workers(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """Each broker's stepping process."""
    found = {}
    for worker in loop_workers(processes):
        with contextlib.suppress(psutil.Error):  # a killed one may just have ended
            found[worker.environ()[ENVIRONMENT]] = worker
    return found


def take(connection: lakequeue.Connection, queue: str, count: int) -> list[lakequeue.Message]:
    """Take so many messages of a queue, acknowledge each, and expect no more."""
    found = []
    with connection.consumer(queue, ack_mode="individual", max_backlog=50) as consumer:
        while len(found) < count:
            message = consumer.receive(timeout=BACK_S_MAX)
            assert message is not None, f"{queue}: {len(found)} of {count}"
            message.ack()
            found.append(message)
        assert consumer.receive(timeout=1) is None
    return found
