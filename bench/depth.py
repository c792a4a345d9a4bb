"""The same traffic at growing depth: a step's cost depends on what changes, not on what is stored.

A round stores a number of messages and acknowledges as many. Its cost is the time of its steps, as
the engine reports it. *Small* rounds, of 5 messages, show what depth adds to a step. In large
rounds, of 1,000, the cost of each message counts most: in a deep queue each one goes to the store
and comes back, at any depth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..client import connect
from ..protocol.errors import LakequeueError
from ..streaming.loop.worker_process import RETURN_EVERY_S
from .burst import max_step_ms
from .harness import PAYLOAD, QUEUE, Say, observed, running, url, wait_for
from .os_processes import largest_worker_mb
from .subcommands import count, numbers

OPTIONS = (numbers("--depths", "1000,100000,1000000"), count("--rounds", 25))
STEP = 1_000
SMALL, SMALL_ROUNDS = 5, 16  # messages; small rounds for each large one
WARM_UP = 5
BATCH_S = 2  # of the loop, which reports at the end of each


def run(depths: list[int], rounds: int, say: Say) -> list[dict[str, Any]]:
    """Per depth: milliseconds of a large round (step_ms) and of a small one (small_ms), and each
    over that at the first depth; max_step_ms: the longest step while the queue was filled and
    measured; worker_rss_mb: the worker's memory after that, once it has returned its free
    memory."""
    rows: list[dict[str, Any]] = []
    settings = {"lakequeue.tables_interval_s": "0", "lakequeue.batch_s": str(BATCH_S)}
    reports: list[dict[str, Any]] = []
    with (
        running(say, settings, on_batch=reports.append) as engine,
        connect(url(engine), client_name="bench") as connection,
    ):
        producer = connection.producer(window=40_000)
        admin = connection.admin()
        for depth in depths:
            begun = len(reports)
            say(f"filling to {depth:,}")
            for _ in range(depth - admin.describe(QUEUE)["depth"]):
                producer.send_async(QUEUE, PAYLOAD)
            producer.flush(900)
            time.sleep(3)
            say(f"measuring at {depth:,}")
            consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=STEP)
            for _ in range(WARM_UP):
                _round(consumer, producer)
            cost = _steps_ms(reports, partial(_round, consumer, producer), rounds)
            small_round = partial(_round, consumer, producer, SMALL)
            small = _steps_ms(reports, small_round, SMALL_ROUNDS * rounds)
            say("waiting until the worker has returned its free memory")
            time.sleep(RETURN_EVERY_S + 2 * BATCH_S)
            row = {
                "depth": depth, "step_ms": cost, "small_ms": small,
                "worker_rss_mb": largest_worker_mb(), "max_step_ms": max_step_ms(reports[begun:]),
            }  # fmt: skip
            consumer.close()
            time.sleep(0.5)
            rows.append(row)
    for name in ("step_ms", "small_ms"):
        first = rows[0][name]
        for row in rows:
            row[f"{name.removesuffix('_ms')}_over_first"] = row[name] / first
    return rows


def _round(consumer: Any, producer: Any, messages: int = STEP) -> None:
    """Receive and acknowledge messages, publish as many, and wait until they are stored."""
    held = [consumer.receive(30) for _ in range(messages)]
    if None in held:
        raise LakequeueError("A message is missing: the queue has fewer than it should.")
    for message in held:
        message.ack()
    # With a key each message is a record of its own.
    sent = [producer.send_async(QUEUE, PAYLOAD, key=b"k") for _ in range(messages)]
    wait_for(lambda: all(f.done() for f in sent), 60, "a round")


def _steps_ms(reports: list[dict[str, Any]], one_round: Callable[[], None], rounds: int) -> float:
    """The time of all steps, divided by the rounds."""
    time.sleep(2 * BATCH_S)  # earlier steps have been reported by now
    before = len(reports)
    for _ in range(rounds):
        one_round()
    time.sleep(2 * BATCH_S)
    steps_ms = sum(observed(p).get("step_ms") or 0 for p in reports[before:])
    if not steps_ms:
        raise LakequeueError("The engine has not reported the time of its steps.")
    return steps_ms / rounds
