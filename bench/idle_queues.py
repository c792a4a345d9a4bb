"""The cost of unused queues: an engine with few queues, and one with many unused ones.

Each engine is started on an empty home, which defines its queues, and stopped. Then another process
starts it again on that home (``start_s``, with Spark's Java process). The same traffic goes through
the same number of queues.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ..definitions import parse_configuration
from ..protocol.errors import LakequeueError
from ..streaming import Engine
from .harness import Say, also_call, broker, cpu_s, observed, percentile, process, spawn
from .os_processes import EngineProcess
from .steady import Traffic
from .subcommands import count, numbers

OPTIONS = (
    numbers("--counts", "10,10000", "Queues, in each run."),
    count("--used", 10, "Number of queues with traffic."),
    count("--rate", 200, "Messages a second, in all."),
    count("--seconds", 20),
)
BATCH_S = 5  # figures come at the end of a batch
WARM_UP_S = 5
MEASURE_S_MAX = 600.0


def definitions(count: int) -> list[dict[str, Any]]:
    """Minimal definitions of this many queues. With the default backlog of 1, each message would
    cost a round trip."""
    own = {"message_type": "binary", "max_per_subscription_backlog": 100}
    return [{"name": f"queue-{n}", **own} for n in range(count)]


def run(counts: list[int], used: int, rate: int, seconds: int, say: Say) -> list[dict[str, Any]]:
    """A row for each number of queues. define_s: the first start, on an empty home; start_s: a
    start on that home; start_cpu_s: its processor time, of driver, Java and worker; step_ms: the
    core's part of a step on average; steps: their number; p50_ms: publish to received."""
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
        results = spawn.Queue()
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
    also_call(engine, lambda progress: batches.append((time.time(), progress)))
    try:
        engine.start()
        start_s, start_cpu_s = time.monotonic() - begin, cpu_s()
        names = [f"queue-{n * (count // used)}" for n in range(used)]
        with Traffic(f"kafka://{bootstrap}", names, rate) as flow:
            time.sleep(WARM_UP_S)
            since = time.time()
            time.sleep(seconds)
            taken = flow.between(since, time.time())
            flow.check()
        time.sleep(2 * BATCH_S)
        return {
            "start_s": start_s, "start_cpu_s": start_cpu_s, **step_figures(batches, since),
            "p50_ms": percentile(taken, 50),
        }  # fmt: skip
    finally:
        engine.stop()


def step_figures(batches: list[tuple[float, dict[str, Any]]], since: float) -> dict[str, Any]:
    """The number of steps and their mean time, of batches that began after the traffic did: those
    that ended at least a batch's length later."""
    seen = [observed(progress) for at, progress in batches if at >= since + BATCH_S]
    steps = sum(s.get("steps") or 0 for s in seen)
    if not steps:
        raise LakequeueError("Nothing was measured: no batch ended. Try again with more seconds.")
    return {"step_ms": sum(s.get("step_ms") or 0 for s in seen) / steps, "steps": steps}
