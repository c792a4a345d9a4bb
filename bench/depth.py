"""The same traffic at growing depth: a batch costs what changes, not what is stored."""

from __future__ import annotations

import time
from typing import Any

import psutil

from ..client import connect
from ..streaming import Engine
from .harness import PAYLOAD, QUEUE, Say, median, running, url, wait_for

STEP = 1_000


def run(depths: list[int], rounds: int, say: Say) -> list[dict[str, Any]]:
    """Per depth: median time of a batch that takes in 1,000 and acknowledges 1,000."""
    rows = []
    with running(say, {"lakequeue.tables_interval_s": "0"}) as engine:
        with connect(url(engine), client_name="bench") as connection:
            producer = connection.producer(window=40_000)
            admin = connection.admin()
            for depth in depths:
                say(f"filling to {depth:,}")
                for _ in range(depth - admin.describe(QUEUE)["depth"]):
                    producer.send_async(QUEUE, PAYLOAD)
                producer.flush(900)
                time.sleep(3)
                say(f"measuring at {depth:,}")
                rows.append(_measure(engine, connection, producer, depth, rounds))
    first = rows[0]["batch_ms"]
    return [{**r, "over_first": r["batch_ms"] / first} for r in rows]


def _measure(
    engine: Engine, connection: Any, producer: Any, depth: int, rounds: int
) -> dict[str, Any]:
    consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=STEP)
    batches: list[float] = []
    for _ in range(rounds + 5):
        held = [consumer.receive(30) for _ in range(STEP)]
        assert None not in held, "a message is missing"
        for message in held:
            message.ack()
        # With a key each message is a record of its own: the rows of a batch can be counted.
        sent = [producer.send_async(QUEUE, PAYLOAD, key=b"k") for _ in range(STEP)]
        before = len(engine.metrics.batches)
        wait_for(lambda s=sent: all(f.done() for f in s), 60, "a round")  # type: ignore[misc]
        time.sleep(0.15)
        batches += [ms for n, ms in engine.metrics.batches[before:] if n > STEP]
    consumer.close()
    time.sleep(0.5)
    return {"depth": depth, "batch_ms": median(batches[5:]), "worker_rss_mb": worker_rss_mb()}


def worker_rss_mb() -> float:
    """Resident memory of the largest Python worker, MB."""
    children = psutil.Process().children(recursive=True)
    sizes = [
        c.memory_info().rss for c in children
        if c.is_running() and "pyspark.daemon" in " ".join(c.cmdline())
    ]  # fmt: skip
    return max(sizes, default=0) / 1e6


