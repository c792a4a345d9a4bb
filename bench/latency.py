"""Publish to receive, at a steady rate. Each payload has the time at which it was sent."""

from __future__ import annotations

import time
from typing import Any

from ..client import connect
from . import raw_kafka
from .harness import QUEUE, Say, cpu_s, percentile, ready_processes, running, triggers, url
from .steady import at_rate, made_at
from .subcommands import count, trigger

OPTIONS = (
    count("--rate", 1000, "Messages a second."), count("--seconds", 20), trigger(),
)  # fmt: skip
CONSUMERS = 2
IDLE_S = 15.0
WARM_UP_S = 15  # Java's compilation and the first batches do not count


def _consume(address: str, results: Any) -> None:
    with connect(address, client_name="bench-consumer") as connection:
        consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=5_000)
        results.put("ready")
        times: list[tuple[float, float]] = []
        while (message := consumer.receive(IDLE_S)) is not None:
            sent = made_at(message.payload)
            times.append((sent, time.time() - sent))
            message.ack()
        results.put(times)


def run(rate: int, seconds: int, trigger: str, say: Say) -> list[dict[str, Any]]:
    """Percentiles over all messages after a warm-up, with each trigger; compared with Kafka's
    own."""
    kafka = raw_kafka.latency(rate, seconds, say)
    return [_measure(rate, seconds, name, say) | kafka for name in triggers(trigger)]


def _measure(rate: int, seconds: int, trigger: str, say: Say) -> dict[str, Any]:
    say(trigger)
    with running(say, trigger=trigger) as engine:
        address = url(engine)
        consumers, results = ready_processes(_consume, *[(address,)] * CONSUMERS)
        with connect(address, client_name="bench-producer") as connection:
            with connection.producer(window=max(rate * 10, 1_000)) as producer:

                def send(payload: bytes) -> None:
                    producer.send_async(QUEUE, payload)

                at_rate(send, rate, WARM_UP_S)
                cpu = cpu_s()
                start = at_rate(send, rate, seconds)
                cpu = cpu_s() - cpu
                producer.flush(60)
        times: list[tuple[float, float]] = []
        for _ in consumers:
            times += results.get(timeout=120)
    taken = [t * 1000 for sent, t in times if sent >= start]
    return {
        "trigger": trigger,
        "rate": rate,
        "messages": len(taken),
        "p50_ms": percentile(taken, 50),
        "p99_ms": percentile(taken, 99),
        "max_ms": percentile(taken, 100),
        "cpu_us_per_msg": cpu / (rate * seconds) * 1e6,
    }
