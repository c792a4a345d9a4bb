"""Queues that nobody uses: an engine with few queues, and one with many of which as few are used.

Each engine is started on an empty home, which defines its queues, and stopped. Then a process of
its own starts it again on that home (``start_s``: Spark's Java process included), and the same
traffic goes through the same number of queues. What a queue costs by being there shows in both.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..client import connect
from ..definitions import parse_configuration
from ..protocol.errors import LakequeueError
from ..sinks.kafka_sink import OBSERVATION
from ..streaming import Engine
from .harness import Say, _both, _spawn, broker, cpu_s, percentile, process
from .os_processes import EngineProcess
from .steady import at_rate, made_at

BATCH_S = 5  # figures come at the end of a batch
WARM_UP_S = 5
MEASURE_S_MAX = 600.0


def definitions(count: int) -> list[dict[str, Any]]:
    """The plainest definitions of so many queues."""
    return [{"name": f"queue-{n}", "message_type": "binary"} for n in range(count)]


def run(counts: list[int], used: int, rate: int, seconds: int, say: Say) -> list[dict[str, Any]]:
    """A row for each number of queues. define_s: the first start, on an empty home; start_s: of an
    engine on that home; start_cpu_s: the processor time in it, of driver, Java and worker; step_ms:
    the core's part of a step on average; steps: how many; p50_ms: publish to received."""
    return [_measure(count, min(used, count), rate, seconds, say) for count in counts]


def _measure(count: int, used: int, rate: int, seconds: int, say: Say) -> dict[str, Any]:
    with broker() as (kafka, home):
        config = home / "queues.yaml"
        config.write_text(json.dumps({"queues": definitions(count)}))
        say(f"{count} queues are defined")
        given = ("--bootstrap", kafka.bootstrap_servers, "--set", "lakequeue.ui_port=0")
        begin = time.monotonic()
        engine = EngineProcess("run", home, config, say, *given)
        try:
            engine.wait_ready()
            define_s = time.monotonic() - begin
        finally:
            engine.stop()
        say("the engine starts again")
        results = _spawn.Queue()
        child = process(
            _in_a_process, kafka.bootstrap_servers, str(home), count, used, rate, seconds, results
        )
        found = results.get(timeout=MEASURE_S_MAX)
        child.join(60)
    if isinstance(found, str):
        raise LakequeueError(found)
    return {"queues": count, "used": used, "rate": rate, "define_s": define_s, **found}


def _in_a_process(
    bootstrap: str, home: str, count: int, used: int, rate: int, seconds: int, results: Any
) -> None:
    try:
        results.put(_started(bootstrap, Path(home), count, used, rate, seconds))
    except Exception as error:  # goes to the waiting parent
        results.put(f"The engine with {count} queues was not measured: {error}")


def _started(
    bootstrap: str, home: Path, count: int, used: int, rate: int, seconds: int
) -> dict[str, Any]:
    begin = time.monotonic()
    configuration = parse_configuration({"queues": definitions(count)})
    settings = {"lakequeue.ui_port": "0", "lakequeue.batch_s": str(BATCH_S)}
    engine = Engine(bootstrap, home, configuration, settings=settings)
    batches: list[tuple[float, dict[str, Any]]] = []
    heard = _both(engine.metrics.batch, lambda p: batches.append((time.time(), p)))
    setattr(engine.metrics, "batch", heard)  # noqa: B010
    try:
        engine.start()
        start_s, start_cpu_s = time.monotonic() - begin, cpu_s()
        names = [f"queue-{n * (count // used)}" for n in range(used)]
        since, taken = _traffic(f"kafka://{bootstrap}", names, rate, seconds)
        time.sleep(2 * BATCH_S)
        return {
            "start_s": start_s, "start_cpu_s": start_cpu_s, **step_figures(batches, since),
            "p50_ms": percentile(taken, 50),
        }  # fmt: skip
    finally:
        engine.stop()


def step_figures(batches: list[tuple[float, dict[str, Any]]], since: float) -> dict[str, Any]:
    """Steps, and what one took on average, of batches that ended later than a batch's length after
    the traffic's begin: these saw nothing else."""
    seen = [
        p.get("observedMetrics", {}).get(OBSERVATION) or {}
        for at, p in batches if at >= since + BATCH_S
    ]  # fmt: skip
    steps = sum(s.get("steps") or 0 for s in seen)
    if not steps:
        raise LakequeueError("Nothing was measured: no batch ended. Try again with more seconds.")
    return {"step_ms": sum(s.get("step_ms") or 0 for s in seen) / steps, "steps": steps}


def _traffic(address: str, names: list[str], rate: int, seconds: int) -> tuple[float, list[float]]:
    """Send to all queues in turn, each with a consumer. Returns when it began, after a warm-up, and
    the times from then on, ms."""
    taken: list[tuple[float, float]] = []
    done = threading.Event()

    def receive(consumer: Any) -> None:
        while not done.is_set():
            message = consumer.receive(0.5)
            if message is not None:
                sent = made_at(message.payload)
                taken.append((sent, (time.time() - sent) * 1000))
                message.ack()

    with ExitStack() as stack:
        connection = stack.enter_context(connect(address, client_name="bench-idle-queues"))
        consumers = [connection.consumer(name, ack_mode="individual") for name in names]
        threads = [threading.Thread(target=receive, args=(c,), daemon=True) for c in consumers]
        for thread in threads:
            thread.start()
        producer = stack.enter_context(connection.producer(window=10_000))
        turn = 0

        def send(payload: bytes) -> None:
            nonlocal turn
            producer.send_async(names[turn % len(names)], payload)
            turn += 1

        at_rate(send, rate, WARM_UP_S)
        since = at_rate(send, rate, seconds)
        producer.flush(60)
        time.sleep(1.0)
        done.set()
        for thread in threads:
            thread.join(5)
    return since, [ms for sent, ms in taken if sent >= since]
