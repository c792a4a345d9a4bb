"""The same traffic through 1, 2 and 4 brokers.

Four lanes, each a producer and a consumer of a queue, are spread over the brokers: all four on one
broker, or one on each of four. So the clients do the same in every row. CPU is the sum over workers
(the steps), Java (Spark), Kafka and clients. Once `cores_used` reaches the number of cores, another
broker cannot make it faster; then the CPU per message shows how it scales.

With `spread`: the receipts of a topic whose queues are on two brokers. Topic `near` has both its
queues at the producer's broker, topic `far` one of them at the other. The producer sends to the two
in turn. A receipt waits for no other broker, so both should take the same time.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from contextlib import suppress
from typing import Any

import click
import psutil

from ..client import Producer, connect
from ..streaming.loop.worker_daemon import DAEMON
from .harness import BACKLOG, PAYLOAD, Say, percentile, process, roomy_queue, running, spawn, url
from .subcommands import messages, numbers

OPTIONS = (
    messages(200_000),
    numbers("--counts", "1,2,4", "Numbers of brokers."),
    click.Option(
        ["--spread"], is_flag=True,
        help="Instead: the time of receipts for topics whose queues are on one broker, and on two, "
        "with a hundredth of the messages.",
    ),
)  # fmt: skip
LANES = 4
WARM_UP = 5_000  # of each lane
RECEIPTS_WARM_UP = 200
NEAR_AND_FAR = {"near": (0, 0), "far": (0, 1)}  # of each topic, the brokers of its queues
IDLE_S = 60.0
READY_S_MAX = 300.0


def names(count: int) -> list[str]:
    """The names of this many brokers."""
    return [f"broker-{i}" for i in range(count)]


def run(messages: int, counts: list[int], spread: bool, say: Say) -> list[dict[str, Any]]:
    """A row for each number of brokers; `vs_first` is the cost of a message over that in the first
    row. spread: instead, the time of receipts."""
    if spread:
        return _receipts(messages // 100, say)
    rows = [_measure(messages, count, say) for count in counts]
    for row in rows:
        row["vs_first"] = row["cpu_us_per_msg"] / rows[0]["cpu_us_per_msg"]
    return rows


def _measure(messages: int, count: int, say: Say) -> dict[str, Any]:
    say(f"{count} broker{'s' if count > 1 else ''}")
    each = messages // LANES
    with running(say, queues=[], brokers=names(count)) as engine:
        address = url(engine)
        for lane in range(LANES):
            place = {"type": "LocalQueue", "broker": _broker(lane, count)}
            with connect(address, broker=place["broker"]) as connection:
                connection.admin().define(roomy_queue(f"lane-{lane}") | place)
        say("warming up")
        ready, go, done = spawn.Queue(), spawn.Event(), spawn.Queue()
        children = [
            process(_lanes, target, address, count, each, ready, go, done)
            for target in (_consume, _produce)
        ]
        for _ in range(2 * LANES):
            ready.get(timeout=READY_S_MAX)
        say("all lanes at once")
        before, begin = _cpu_us(), time.perf_counter()
        go.set()
        for _ in range(2 * LANES):
            done.get(timeout=READY_S_MAX + messages / 1_000)
        seconds, after = time.perf_counter() - begin, _cpu_us()
        for child in children:
            child.kill()
            child.join(10)
    sent = each * LANES
    spent = {part: (after[part] - before[part]) / sent for part in after}
    total = sum(spent.values())
    return {
        "brokers": count,
        "messages": sent,
        "msgs_s": sent / seconds,
        "cpu_us_per_msg": total,
        **{f"{part}_us": us for part, us in spent.items()},
        "cores_used": total * sent / seconds / 1e6,
        "cores": os.cpu_count(),
    }


def _broker(lane: int, count: int) -> str:
    return names(count)[lane % count]


def _cpu_us() -> dict[str, float]:
    """The CPU used so far, by purpose: of this process and all living ones below it."""
    spent = {"workers": 0.0, "java": 0.0, "kafka": 0.0, "clients": 0.0}
    me = psutil.Process()
    for child in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended meanwhile
            words = child.cmdline()
            part = "clients"
            if child == me:  # the driver's part of the engine
                part = "java"
            elif "kafka.Kafka" in words:
                part = "kafka"
            elif DAEMON in words:
                part = "workers"
            elif child.name() == "java":
                part = "java"
            spent[part] += 1e6 * sum(child.cpu_times()[:2])
    return spent


# ---------------------------------------------------------------- receipts


def _receipts(messages: int, say: Say) -> list[dict[str, Any]]:
    """A row for each topic; `vs_near` is its median over that of `near`."""
    brokers = names(2)
    with running(say, queues=[], brokers=brokers) as engine:
        with connect(url(engine), client_name="bench-spread", broker=brokers[0]) as connection:
            for topic, places in NEAR_AND_FAR.items():
                for number, place in enumerate(places):
                    connection.admin().define(
                        {
                            "name": f"{topic}-{number}", "type": "LocalQueue",
                            "broker": brokers[place], "message_type": "binary",
                            "subscriptions": [topic],
                        }
                    )  # fmt: skip
            say("one message after the other, to both topics in turn")
            with connection.producer() as producer:
                _times(producer, RECEIPTS_WARM_UP)
                found = _times(producer, messages)
    near = statistics.median(found["near"])
    return [
        {
            "topic": topic,
            "messages": len(times),
            "receipt_p50_ms": statistics.median(times),
            "receipt_p99_ms": percentile(times, 99),
            "vs_near": statistics.median(times) / near,
        }
        for topic, times in found.items()
    ]


def _times(producer: Producer, messages: int) -> dict[str, list[float]]:
    """The times of receipts, ms, by topic."""
    found: dict[str, list[float]] = {topic: [] for topic in NEAR_AND_FAR}
    for _ in range(messages // len(NEAR_AND_FAR)):
        for topic, times in found.items():
            begin = time.perf_counter()
            producer.send(topic, PAYLOAD)
            times.append(1e3 * (time.perf_counter() - begin))
    return found


# ---------------------------------------------------------------- in processes of their own


def _lanes(target: Any, *arguments: Any) -> None:
    threads = [threading.Thread(target=target, args=(i, *arguments)) for i in range(LANES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(READY_S_MAX)  # stays alive so that its CPU can be read; then it is killed


def _produce(
    lane: int, address: str, count: int, messages: int, ready: Any, go: Any, done: Any
) -> None:
    with connect(
        address, client_name=f"bench-producer-{lane}", broker=_broker(lane, count)
    ) as connection:
        with connection.producer(window=20_000) as producer:
            for n in (WARM_UP, messages):
                for _ in range(n):
                    producer.send_async(f"lane-{lane}", PAYLOAD)
                producer.flush(600)
                if n == WARM_UP:
                    ready.put(lane)
                    go.wait()
    done.put(lane)


def _consume(
    lane: int, address: str, count: int, messages: int, ready: Any, go: Any, done: Any
) -> None:
    with connect(
        address, client_name=f"bench-consumer-{lane}", broker=_broker(lane, count)
    ) as connection:
        consumer = connection.consumer(f"lane-{lane}", ack_mode="individual", max_backlog=BACKLOG)
        for n in (WARM_UP, messages):
            for _ in range(n):
                message = consumer.receive(IDLE_S)
                assert message is not None, "a message did not arrive"
                message.ack()
            if n == WARM_UP:
                consumer.send_acks()
                ready.put(lane)
                go.wait()
        consumer.close()
    done.put(lane)
