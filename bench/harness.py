"""Shared by the benchmarks: an engine in a temporary folder, producers and consumers in their own
processes, and polling."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ..client import connect
from ..definitions import parse_configuration
from ..protocol.errors import LakequeueError, Timeout
from ..sinks.kafka_sink import OBSERVATION
from ..streaming import EmbeddedKafka, Engine
from .subcommands import TRIGGERS

QUEUE = "bench"
PAYLOAD = b"x" * 1000
BACKLOG = 200_000
Say = Callable[[str], None]


@contextmanager
def broker() -> Iterator[tuple[EmbeddedKafka, Path]]:
    """A Kafka broker in a temporary home, removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="lakequeue-bench-", ignore_cleanup_errors=True) as home,
        EmbeddedKafka(Path(home) / "kafka") as kafka,
    ):
        yield kafka, Path(home)


@contextmanager
def running(
    say: Say,
    settings: dict[str, str] | None = None,
    trigger: str | None = None,
    queues: list[dict[str, Any]] | None = None,
    on_batch: Callable[[dict[str, Any]], None] | None = None,
    brokers: list[str] | None = None,
) -> Iterator[Engine]:
    """A Kafka broker and an engine with one queue, removed afterwards.

    queues: these queues instead of the one; on_batch: gets Spark's progress of each batch; brokers:
    names.
    """
    definitions = [roomy_queue(QUEUE)] if queues is None else queues
    configuration = parse_configuration({"queues": definitions, "brokers": brokers})
    quiet = {"lakequeue.ui_port": "0", **(settings or {})}
    if trigger is not None:
        quiet["lakequeue.trigger"] = trigger
    with broker() as (kafka, home):
        engine = Engine(kafka.bootstrap_servers, home, configuration, settings=quiet, progress=say)
        if on_batch is not None:
            also_call(engine, on_batch)
        try:
            engine.start()
            threading.Thread(target=_supervise, args=(engine, say), daemon=True).start()
            yield engine
        finally:
            engine.stop()


def roomy_queue(name: str) -> dict[str, Any]:
    """The definition of a queue whose limits are not reached."""
    return {
        "name": name, "message_type": "binary", "max_per_subscription_backlog": BACKLOG,
        "max_delivered_unacked_per_flow": BACKLOG, "max_spool_usage": "50GB",
    }  # fmt: skip


def _supervise(engine: Engine, say: Say) -> None:
    """Restart failed parts, as `lakequeue up` does."""
    try:
        engine.wait()
    except LakequeueError as error:
        say(str(error))


def also_call(engine: Engine, on_batch: Callable[[dict[str, Any]], None]) -> None:
    """Call a function with Spark's progress of each batch, besides the engine's metrics."""
    metrics_batch = engine.metrics.batch

    def batch(progress: dict[str, Any]) -> None:
        metrics_batch(progress)
        on_batch(progress)

    setattr(engine.metrics, "batch", batch)  # noqa: B010


def observed(progress: dict[str, Any]) -> dict[str, Any]:
    """A loop's figures in a batch's progress; empty if there are none."""
    return progress.get("observedMetrics", {}).get(OBSERVATION) or {}


def triggers(chosen: str) -> tuple[str, ...]:
    """The triggers that `--trigger` names: one, or `both`."""
    return TRIGGERS if chosen == "both" else (chosen,)


def cpu_s() -> float:
    """CPU seconds of this process and of all that it started, including those that have ended:
    Kafka, Java, workers, producers, consumers."""
    me = psutil.Process()
    total = 0.0
    for p in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            total += sum(p.cpu_times()[:4])  # and of its children that have ended
    return total


def percentile(values: list[float], percent: float) -> float:
    """A percentile of the values. Raises LakequeueError if there are none."""
    if not values:
        raise LakequeueError("Nothing was measured: no message arrived. Try again with less load.")
    found = sorted(values)
    return found[min(int(len(found) * percent / 100), len(found) - 1)]


def url(engine: Engine) -> str:
    """The address for `lakequeue.connect`."""
    return f"kafka://{engine.bootstrap}"


def publish(address: str, count: int, payload: Callable[[], bytes] = lambda: PAYLOAD) -> None:
    """Publish ``count`` messages of 1 KB and wait until all are stored."""
    with connect(address, client_name="bench-producer") as connection:
        with connection.producer(window=50_000) as producer:
            for _ in range(count):
                producer.send_async(QUEUE, payload())
            producer.flush(600)


def consume(address: str, count: int, idle_s: float = 30.0) -> int:
    """Receive and acknowledge until ``count`` messages arrived or none arrived for a while."""
    with connect(address, client_name="bench-consumer") as connection:
        consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=BACKLOG)
        received = 0
        while received < count:
            message = consumer.receive(idle_s)
            if message is None:
                break
            message.ack()
            received += 1
        consumer.close()
    return received


spawn = multiprocessing.get_context("spawn")


def process(target: Callable[..., Any], *args: Any) -> Any:
    """Run a function in another process."""
    child = spawn.Process(target=target, args=args, daemon=True)
    child.start()
    return child


def ready_processes(target: Callable[..., None], *arguments: tuple[Any, ...]) -> tuple[list, Any]:
    """Start a process for each of these arguments, and wait until all are ready; returns them and
    the queue of their results, which each gets as its last argument. The first object that a
    process puts there means that it is ready."""
    results = spawn.Queue()
    children = [process(target, *given, results) for given in arguments]
    for _ in children:
        results.get(timeout=60)
    return children, results


def in_a_process(target: Callable[..., Any], *args: Any, timeout_s: float) -> None:
    """Run a function in another process, to its end. Raises LakequeueError if it fails."""
    child = process(target, *args)
    child.join(timeout_s)
    if child.exitcode != 0:
        raise LakequeueError(f"The process of {target.__name__!r} ended with {child.exitcode}.")


def wait_for(
    condition: Callable[[], bool],
    timeout_s: float,
    what: str,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Poll until a condition is true; ``check`` raises if waiting is useless."""
    until = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() > until:
            raise Timeout(f"{what} took longer than {timeout_s:.0f} s")
        time.sleep(0.2)
