"""Producers and two consumers at once; then a backlog first and consumers after."""

from __future__ import annotations

import time
from typing import Any

import psutil

from ..client import connect
from .harness import QUEUE, Say, _spawn, consume, process, publish, running, url, wait_for

CONSUMERS = 2
WARM_UP = 20_000


def _consumer(address: str, results: Any) -> None:
    results.put("ready")
    results.put(consume(address, 1 << 40, idle_s=10.0))


def _until_empty(address: str, target: int) -> None:
    with connect(address, client_name="bench-look") as connection:
        admin = connection.admin()

        def settled() -> bool:
            seen = admin.describe(QUEUE)
            return seen["spooled"] >= target and seen["depth"] == 0

        wait_for(settled, 600, "draining")


def _cpu_s() -> float:
    me = psutil.Process()
    total = 0.0
    for p in [me, *me.children(recursive=True)]:
        if p.is_running():
            total += sum(p.cpu_times()[:2])
    return total


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """Rates until every message was acknowledged; CPU seconds of all processes together."""
    with running(say) as engine:
        address = url(engine)
        results = _spawn.Queue()

        def consumers() -> list[Any]:
            made = [process(_consumer, address, results) for _ in range(CONSUMERS)]
            for _ in made:
                results.get(timeout=60)
            return made

        say("warming up")
        made = consumers()
        publish(address, WARM_UP)
        _until_empty(address, WARM_UP)
        say("producers and consumers at once")
        cpu, begin = _cpu_s(), time.perf_counter()
        publish(address, messages)
        _until_empty(address, WARM_UP + messages)
        together_s = time.perf_counter() - begin
        cpu_s = _cpu_s() - cpu
        for child in made:
            child.join(60)
        say("a backlog, then consumers")
        publish(address, messages)
        begin = time.perf_counter()
        made = consumers()
        _until_empty(address, WARM_UP + 2 * messages)
        drain_s = time.perf_counter() - begin
        for child in made:
            child.join(60)
    return [
        {
            "messages": messages,
            "e2e_msgs_s": messages / together_s,
            "drain_msgs_s": messages / drain_s,
            "cpu_s": cpu_s,
        }
    ]
