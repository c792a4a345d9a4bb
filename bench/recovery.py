"""The time from a kill until the first message that was sent after it is received.

Traffic is steady throughout. First the Python workers are killed (SIGKILL), three times; Spark
notices and replaces them. Then the whole engine is killed and started again at once, which adds the
start of Spark; `bare_spark` measures Spark's own part. Kafka is not killed.
"""

from __future__ import annotations

import time
from typing import Any

import yaml

from ..protocol.errors import LakequeueError
from .bare_spark import spark_start_ms
from .harness import QUEUE, Say, broker, observed, percentile, running, url
from .os_processes import EngineProcess, workers
from .steady import Traffic
from .subcommands import count

OPTIONS = (
    count("--rate", 200, "Messages a second."),
    count("--seconds", 15, "Traffic before each kill."),
)
BACK_S_MAX = 180.0
BATCH_S_MAX = 40.0
KILLS = 3
_DEFINITION = {
    "name": QUEUE, "message_type": "binary", "max_per_subscription_backlog": 5_000,
}  # fmt: skip


def run(rate: int, seconds: int, say: Say) -> list[dict[str, Any]]:
    """worker_ms (median), worker_max_ms, driver_ms: from a kill to the first message that was sent
    after it. spark_ms: Spark's own part of driver_ms. start_ms: the start of an engine on an empty
    home. replay_ratio: the original time of the replayed steps, with their pauses, over the time to
    replay them. To get the speed under load, give a rate that leaves no pauses."""
    return [{"rate": rate, **_worker(rate, seconds, say), **_driver(rate, seconds, say)}]


def _worker(rate: int, seconds: int, say: Say) -> dict[str, Any]:
    batches: list[dict[str, Any]] = []
    with (
        running(say, queues=[_DEFINITION], on_batch=batches.append) as engine,
        Traffic(url(engine), [QUEUE], rate) as flow,
    ):
        took = [_kill_workers(flow, seconds, say) for _ in range(KILLS)]
        flow.stop()
        # A loop reports at the end of its batch.
        until = time.monotonic() + BATCH_S_MAX
        while replay_ratio(batches) is None and time.monotonic() < until:
            time.sleep(0.2)
    return {
        "worker_ms": percentile(took, 50), "worker_max_ms": max(took),
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
    """How much faster steps were replayed than they originally ran; None without a replay."""
    seen = [observed(batch) for batch in batches]
    took = sum(s.get("replay_ms") or 0 for s in seen)
    lived = sum(s.get("replayed_life_ms") or 0 for s in seen)
    return lived / took if took else None


def _driver(rate: int, seconds: int, say: Say) -> dict[str, Any]:
    with broker() as (kafka, home):
        address = kafka.bootstrap_servers
        config = home / "queues.yaml"
        config.write_text(yaml.safe_dump({"queues": [_DEFINITION]}))
        given = (
            "run", home, config, say, "--bootstrap", address, "--set", "lakequeue.ui_port=0"
        )  # fmt: skip
        begin = time.monotonic()
        engine = EngineProcess(*given)
        try:
            engine.wait_ready()
            start_s = time.monotonic() - begin
            with Traffic(f"kafka://{address}", [QUEUE], rate) as flow:
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
