"""Producers and two consumers at once; then first a backlog and consumers after it."""

from __future__ import annotations

import time
from typing import Any

from ..client import connect
from . import raw_kafka
from .harness import (
    QUEUE,
    Say,
    consume,
    cpu_s,
    publish,
    ready_processes,
    running,
    spawn,
    triggers,
    url,
    wait_for,
)
from .subcommands import messages, trigger

OPTIONS = (messages(100_000), trigger())
CONSUMERS = 2
WARM_UP = 20_000


def _consumer(address: str, begin: Any, results: Any) -> None:
    results.put("ready")
    begin.wait()
    results.put(consume(address, 1 << 40, idle_s=10.0))


def await_empty(address: str, target: int) -> None:
    """Wait until this many messages were stored, and all are acknowledged."""
    with connect(address, client_name="bench-look") as connection:
        admin = connection.admin()

        def settled() -> bool:
            seen = admin.describe(QUEUE)
            return seen["spooled"] >= target and seen["depth"] == 0

        wait_for(settled, 600, "draining")


def run(messages: int, trigger: str, say: Say) -> list[dict[str, Any]]:
    """Rates until every message was acknowledged, with each trigger; compared with Kafka's own."""
    kafka = raw_kafka.throughput(messages, say)
    return [_measure(messages, name, say) | kafka for name in triggers(trigger)]


def consumers(address: str) -> list[Any]:
    """Two processes that begin to consume now, at the same time; they end when no more messages
    arrive."""
    begin = spawn.Event()
    made, _ = ready_processes(_consumer, *[(address, begin)] * CONSUMERS)
    begin.set()
    return made


def _measure(messages: int, trigger: str, say: Say) -> dict[str, Any]:
    say(trigger)
    with running(say, trigger=trigger) as engine:
        address = url(engine)
        say("warming up")
        made = consumers(address)
        publish(address, WARM_UP)
        await_empty(address, WARM_UP)
        say("producers and consumers at once")
        cpu, begin = cpu_s(), time.perf_counter()
        publish(address, messages)
        await_empty(address, WARM_UP + messages)
        together_s = time.perf_counter() - begin
        cpu = cpu_s() - cpu
        for child in made:
            child.join(60)
        say("a backlog, then consumers")
        publish(address, messages)
        made = consumers(address)
        begin = time.perf_counter()
        await_empty(address, WARM_UP + 2 * messages)
        drain_s = time.perf_counter() - begin
        for child in made:
            child.join(60)
    return {
        "trigger": trigger,
        "messages": messages,
        "e2e_msgs_s": messages / together_s,
        "drain_msgs_s": messages / drain_s,
        "cpu_s": cpu,
        "cpu_us_per_msg": cpu / messages * 1e6,
    }
