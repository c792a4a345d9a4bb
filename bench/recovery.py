"""Killed in mid-traffic: until a message that was sent after the kill has come.

Beside steady traffic that never stops: Python workers with SIGKILL, three times, which Spark
notices and replaces; and everything of the engine at once, started again at once, which adds the
start of Spark. Beside it stands what Spark alone takes (`bare_spark`). Kafka stays: it is not ours
in production.
"""

from __future__ import annotations

import time
from typing import Any

import yaml

from ..protocol.errors import LakequeueError
from ..sinks.kafka_sink import OBSERVATION
from .bare_spark import spark_start_ms
from .harness import QUEUE, Say, broker, median, running, url
from .os_processes import EngineProcess, workers
from .steady import Traffic, traffic

BACK_S_MAX = 180.0
BATCH_S_MAX = 40.0
KILLS = 3
_DEFINITION = {
    "name": QUEUE, "message_type": "binary", "max_per_subscription_backlog": 5_000,
}  # fmt: skip


def run(rate: int, seconds: int, trigger: str, say: Say) -> list[dict[str, Any]]:
    """worker_ms (median), worker_max_ms, driver_ms: from a kill to the first message that was sent
    after it. spark_ms: Spark's own part of driver_ms; start_ms: of an engine on an empty home,
    until all of it runs. replay_ratio: the time that was lived through again, with this traffic,
    over the time that it took (None in micro-batches: they replay nothing). Waiting is life too:
    for the speed under load give a rate that leaves no time to wait."""
    return [
        {
            "trigger": trigger,
            "rate": rate,
            **_worker(rate, seconds, trigger, say),
            **_driver(rate, seconds, trigger, say),
        }
    ]


def _worker(rate: int, seconds: int, trigger: str, say: Say) -> dict[str, Any]:
    batches: list[dict[str, Any]] = []
    with running(
        say, trigger=trigger, queues=[_DEFINITION], on_batch=batches.append
    ) as engine, traffic(url(engine), QUEUE, rate) as flow:  # fmt: skip
        took = [_kill_workers(flow, seconds, say) for _ in range(KILLS)]
        flow.stop()
        # A loop tells what it did at the end of its batch.
        until = time.monotonic() + (BATCH_S_MAX if trigger == "real-time" else 0)
        while replay_ratio(batches) is None and time.monotonic() < until:
            time.sleep(0.2)
    return {
        "worker_ms": median(took), "worker_max_ms": max(took),
        "replay_ratio": replay_ratio(batches),
    }  # fmt: skip


def _kill_workers(flow: Traffic, seconds: int, say: Say) -> float:
    time.sleep(seconds)
    flow.check()
    victims = workers()
    if not victims:
        raise LakequeueError("There is no Python worker to kill.")
    say("killing the workers")
    moment = time.time()
    for victim in victims:
        victim.kill()
    return flow.first_after(moment, BACK_S_MAX)


def replay_ratio(batches: list[dict[str, Any]]) -> float | None:
    """How much faster than life it was replayed, of batches with kills among them."""
    seen = [b.get("observedMetrics", {}).get(OBSERVATION) or {} for b in batches]
    took = sum(s.get("replay_ms") or 0 for s in seen)
    lived = sum(s.get("replayed_life_ms") or 0 for s in seen)
    return lived / took if took else None


def _driver(rate: int, seconds: int, trigger: str, say: Say) -> dict[str, Any]:
    with broker() as (kafka, home):
        address = kafka.bootstrap_servers
        config = home / "queues.yaml"
        config.write_text(yaml.safe_dump({"queues": [_DEFINITION]}))
        given = ("run", home, config, say, "--bootstrap", address, "--trigger", trigger,
                 "--set", "lakequeue.ui_port=0")  # fmt: skip
        begin = time.monotonic()
        engine = EngineProcess(*given)
        try:
            engine.wait_ready()
            start_s = time.monotonic() - begin
            with traffic(f"kafka://{address}", QUEUE, rate) as flow:
                time.sleep(seconds)
                flow.check()
                say("killing the engine")
                moment = time.time()
                engine.kill()
                engine = EngineProcess(*given)
                driver_ms = flow.first_after(moment, BACK_S_MAX)
        finally:
            engine.stop()
        alone = home / "alone"
        alone.mkdir()
        say("starting Spark alone")
        spark_ms = spark_start_ms(alone)
    return {"driver_ms": driver_ms, "spark_ms": spark_ms, "start_ms": start_s * 1000}
