"""What it costs a producer that a topic's matches lie on two brokers: the time of a receipt.

Two topics with two queues each, at two brokers: `near` has both where the producer is, `far` one of
them at the other broker. The producer sends to them by turns, one message after the other, so both
see the same machine. Nobody is asked before a receipt, so the two should be alike.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from ..client import Producer, connect
from .harness import PAYLOAD, Say, percentile, running, url
from .scale import names

WARM_UP = 200
QUEUES = {"near": (0, 0), "far": (0, 1)}  # of each topic, the brokers of its queues


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """A row for each topic; `vs_near` is its median beside that of the other."""
    brokers = names(2)
    with running(say, queues=[], brokers=brokers) as engine:
        with connect(url(engine), client_name="bench-spread", broker=brokers[0]) as connection:
            for topic, places in QUEUES.items():
                for number, place in enumerate(places):
                    connection.admin().define(
                        {
                            "name": f"{topic}-{number}", "type": "LocalQueue",
                            "broker": brokers[place], "message_type": "binary",
                            "subscriptions": [topic],
                        }
                    )  # fmt: skip
            say("one message after the other, by turns")
            with connection.producer() as producer:
                _times(producer, WARM_UP)
                found = _times(producer, messages)
    near = statistics.median(found["near"])
    return [
        {
            "topic": topic,
            "messages": len(times),
            "receipt_p50_ms": statistics.median(times),
            "receipt_p99_ms": percentile(times, 99),
            "vs_near": statistics.median(times) / near,
        }
        for topic, times in found.items()
    ]


def _times(producer: Producer, messages: int) -> dict[str, list[float]]:
    """How long receipts took, ms, by topic."""
    found: dict[str, list[float]] = {topic: [] for topic in QUEUES}
    for _ in range(messages // len(QUEUES)):
        for topic, times in found.items():
            begin = time.perf_counter()
            producer.send(topic, PAYLOAD)
            times.append(1e3 * (time.perf_counter() - begin))
    return found
