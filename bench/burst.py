"""A burst in one queue: its effect on steps, on the worker's memory, and on another queue.

A queue is filled. All its messages expire at one moment into a dead message queue, are redriven,
and are purged. Then a queue captures a topic with waiting records of 1 MB, as after a night's
downtime. Meanwhile another queue has steady traffic, whose 99th percentile is compared with that
before the bursts. Each step has a budget, so no step should be long, memory should not grow with
the burst, and the other queue should hardly be affected.

The burst's producer writes to another partition than the steady one, as seven in eight producers
do: within a partition Kafka delivers in order. It runs in its own process, because its gigabytes
would slow down the steady producer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count as count_up
from typing import Any
from zlib import crc32

from ..client import connect
from ..client.kafka import open_kafka
from ..protocol.errors import Timeout
from ..streaming import Engine
from ..streaming.kafka.topics_admin import ensure_topics
from .harness import PAYLOAD, Say, in_a_process, observed, running, url, wait_for
from .os_processes import PeakMemory
from .steady import Traffic
from .subcommands import count, messages

OPTIONS = (messages(1_000_000), count("--rate", 100, "Messages a second in the other queue."))
BURST, DEAD, STEADY, LARGE = "burst", "burst-dead", "steady", "burst-large"
WARM_S = 30.0  # Java compiles for this long, with pauses that are not measured
USUAL_S = 20.0
AFTER_S = 1.0  # the time after a burst counts too
LARGE_BYTES = 1_000_000
WRITTEN_AT_ONCE = 20
SETTLE_S = 5.0
LARGE_SHARE = 200  # 5,000 of 1 MB for a million of 1 KB
TRIAL_SHARE = 20  # of the fill, to estimate the time of the rest
FILL_WINDOW = 50_000
PHASE_S_MAX = 1_800.0
BATCH_S_MAX = 40.0
_MORE: dict[str, Any] = {
    "message_type": "binary", "max_spool_usage": "50GB", "max_message_size": "2MB",
}  # fmt: skip
QUEUES: list[dict[str, Any]] = [
    {"name": BURST, "dead_message_queue": DEAD, "respect_ttl": True, **_MORE},
    {"name": DEAD, **_MORE},
    {"name": STEADY, "max_per_subscription_backlog": 5_000, **_MORE},
]


def run(messages: int, rate: int, say: Say) -> list[dict[str, Any]]:
    """max_step_ms: the longest step of all bursts. worker_peak_mb: the most memory of one Python
    worker. other_p99_ratio: the other queue's p99 during the worst burst over the usual one. Then
    for each burst the other queue's p99, and the burst's duration."""
    batches: list[dict[str, Any]] = []
    with (
        running(say, queues=QUEUES, on_batch=batches.append) as engine,
        PeakMemory() as memory,
        Traffic(url(engine), [STEADY], rate, STEADY) as flow,
        connect(url(engine), client_name="bench") as connection,
    ):
        say("the other queue alone")
        time.sleep(WARM_S)
        usual = (time.time(), _sleep(USUAL_S))
        before = len(batches)
        bursts = _Bursts(engine, connection, messages, say)
        phases = {name: _phase(burst, flow, say) for name, burst in bursts.all().items()}
        flow.check()
        known = len(batches)  # a loop reports at the end of its batch
        with suppress(Timeout):
            wait_for(lambda: len(batches) > known, BATCH_S_MAX, "the batch's end")
    usual_ms = flow.p99(*usual)
    p99 = {name: flow.p99(*when) for name, when in phases.items()}
    return [
        {
            "messages": messages,
            "max_step_ms": max_step_ms(batches[before:]),
            "worker_peak_mb": memory.peak_mb,
            "other_p99_ratio": max(p99.values()) / usual_ms,
            "usual_p99_ms": usual_ms,
            **{f"{name}_p99_ms": value for name, value in p99.items()},
            **{f"{name}_s": end - begin - AFTER_S for name, (begin, end) in phases.items()},
        }
    ]


def _sleep(seconds: float) -> float:
    time.sleep(seconds)
    return time.time()


def _phase(burst: Callable[[], float], flow: Traffic, say: Say) -> tuple[float, float]:
    """Run a burst; returns its start and end."""
    begin = burst()
    say(f"done in {time.time() - begin:.1f} s")
    flow.check()
    return begin, _sleep(AFTER_S)


def elsewhere(producer_id: str, partitions: int) -> Iterator[str]:
    """Producer names that hash to other partitions than this one's."""
    place = crc32(producer_id.encode()) % partitions
    names = (f"burst-{n}" for n in count_up())
    return (name for name in names if crc32(name.encode()) % partitions != place)


def max_step_ms(batches: list[dict[str, Any]]) -> float | None:
    """The longest step, as the engine reports it; None if nothing was reported."""
    reported = (observed(progress).get("step_max_ms") for progress in batches)
    return max((step for step in reported if step is not None), default=None)


def _publish(address: str, name: str, amount: int, until: float) -> None:
    """Publish messages that expire at ``until`` (epoch s). Runs in its own process."""
    with (
        connect(address, client_name="bench-burst") as connection,
        connection.producer(producer_id=name, window=FILL_WINDOW, pub_ack_time="60s") as producer,
    ):
        for _ in range(amount):
            producer.send_async(BURST, PAYLOAD, ttl=max(until - time.time(), 0.001))
        producer.flush(PHASE_S_MAX)


def _write(bootstrap: str, amount: int) -> None:
    """Write large records, as any Kafka producer does. Runs in its own process."""
    transport = open_kafka(bootstrap, "bench-burst")
    for n in range(amount):
        transport.publish(LARGE, b"x" * LARGE_BYTES, None, [], 0)
        if n % WRITTEN_AT_ONCE == 0:
            transport.flush(PHASE_S_MAX)
    transport.flush(PHASE_S_MAX)
    transport.close()
    os.sync()  # pending writes to the disk are not part of the burst


class _Bursts:
    """Each burst returns its starting time. It ends when the engine has handled all messages."""

    def __init__(self, engine: Engine, connection: Any, messages: int, say: Say) -> None:
        self._bootstrap, self._address = engine.bootstrap, url(engine)
        self._admin = connection.admin()
        self._messages = messages
        self._say = say
        self._names = elsewhere(STEADY, connection.publish_partitions)

    def _send(self, amount: int, until: float) -> float:
        """Publish messages from another process; returns how long that took."""
        begin = time.time()
        given = self._address, next(self._names), amount, until
        in_a_process(_publish, *given, timeout_s=PHASE_S_MAX)
        return time.time() - begin

    def all(self) -> dict[str, Callable[[], float]]:
        """All bursts, in order: each needs the queue in the state that the previous one left."""
        return {
            "expire": self._expire,
            "redrive": partial(self._emptied, "redriving", DEAD, self._admin.redrive),
            "purge": partial(self._emptied, "purging", BURST, self._admin.purge),
            "large": self._large,
        }

    def _depth(self, queue: str) -> int:
        try:
            return int(self._admin.describe(queue)["depth"])
        except Timeout:  # the engine is busy, as intended
            return -1

    def _until(self, queue: str, depth: int) -> None:
        wait_for(lambda: self._depth(queue) == depth, PHASE_S_MAX, f"{queue} to hold {depth:,}")

    def _expire(self) -> float:
        self._say(f"filling with {self._messages:,}")
        trial = max(self._messages // TRIAL_SHARE, 1)
        start_s = self._send(1, time.time())  # of the process; these expire at once
        each_s = max(self._send(trial, time.time()) - start_s, 0.0) / trial
        rest = max(self._messages - trial - 1, 0)
        moment = time.time() + 10 + start_s + 1.5 * each_s * rest
        self._send(rest, moment)
        early = moment - time.time()
        if early < 0:
            self._say(
                f"the fill took {-early:.0f} s longer than expected: the first messages are gone"
            )
        _sleep(max(0.0, early))
        self._say("all expire")
        self._until(BURST, 0)
        return moment

    def _emptied(self, what: str, queue: str, empty: Callable[[str], object]) -> float:
        self._say(what)
        begin = time.time()
        with suppress(Timeout):
            empty(queue)
        self._until(queue, 0)
        return begin

    def _large(self) -> float:
        amount = max(self._messages // LARGE_SHARE, 1)
        self._say(f"{amount:,} of 1 MB wait")
        ensure_topics(self._bootstrap, [], [LARGE])
        in_a_process(_write, self._bootstrap, amount, timeout_s=PHASE_S_MAX)
        time.sleep(SETTLE_S)
        self._say("they come in")
        begin = time.time()
        self._admin.define({"name": LARGE, "underlying_topic": LARGE, **_MORE})
        self._until(LARGE, amount)
        return begin
