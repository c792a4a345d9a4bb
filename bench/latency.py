"""Publish → received at a steady rate: the time stands in the payload."""

from __future__ import annotations

import struct
import time
from typing import Any

from ..client import connect
from .harness import QUEUE, Say, _spawn, process, running, url

CONSUMERS = 2
WARM_UP_S = 5


def _consume(address: str, results: Any, idle_s: float) -> None:
    with connect(address, client_name="bench-consumer") as connection:
        consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=5_000)
        results.put("ready")
        times: list[tuple[float, float]] = []
        while (message := consumer.receive(idle_s)) is not None:
            (sent,) = struct.unpack_from("d", message.payload)
            times.append((sent, time.time() - sent))
            message.ack()
        results.put(times)


def run(rate: int, seconds: int, say: Say) -> list[dict[str, Any]]:
    """Percentiles over all messages after a warm-up."""
    with running(say) as engine:
        address = url(engine)
        results = _spawn.Queue()
        consumers = [process(_consume, address, results, 15.0) for _ in range(CONSUMERS)]
        for _ in consumers:
            results.get(timeout=60)
        start = _publish(address, rate, seconds)
        times: list[tuple[float, float]] = []
        for _ in consumers:
            times += results.get(timeout=120)
    taken = sorted(t * 1000 for sent, t in times if sent >= start)
    n = len(taken)
    return [
        {
            "rate": rate,
            "messages": n,
            "p50_ms": taken[n // 2],
            "p99_ms": taken[min(n * 99 // 100, n - 1)],
            "max_ms": taken[-1],
        }
    ]


def _publish(address: str, rate: int, seconds: int) -> float:
    """Publish at a steady rate; returns when the measured part began."""
    rest = b"x" * 992
    with connect(address, client_name="bench-producer") as connection:
        with connection.producer(window=rate * 10) as producer:
            begin = time.time()
            total = rate * (seconds + WARM_UP_S)
            for i in range(total):
                ahead = begin + i / rate - time.time()
                if ahead > 0.001:
                    time.sleep(ahead)
                producer.send_async(QUEUE, struct.pack("d", time.time()) + rest)
            producer.flush(60)
    return begin + WARM_UP_S
