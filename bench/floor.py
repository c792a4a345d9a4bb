"""The engine over Spark's plain Kafka → Kafka copy: what the rules cost on top of the floor.

Both are warmed up, then get the same records at once: the copy is done when it has written them,
the engine when every message was stored, delivered to a consumer and acknowledged. Small batches
are 100 records at a time, each after the one before is done. Same session, settings and disk.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ..client import connect
from ..client.kafka import open_kafka
from ..protocol.messages import PublishHeader, encode_publish_header
from ..sources import kafka as source
from ..streaming import Engine
from ..streaming.topics_admin import ensure_topics
from .harness import BACKLOG, PAYLOAD, QUEUE, Say, median, running, url, wait_for

WARM_UP = 40_000
SMALL, SMALL_ROUNDS = 100, 40


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """One run; see the module."""
    with running(say, {"lakequeue.tables_interval_s": "0"}) as engine:
        say("the engine")
        rate, small = _engine(engine, messages)
        engine._end(engine._query)
        engine._query = None
        say("the plain copy")
        floor_rate, floor_small = _floor(engine, messages)
    return [
        {
            "engine_msgs_s": rate,
            "floor_msgs_s": floor_rate,
            "ratio": rate / floor_rate,
            "small_batch_ms": small,
            "floor_small_batch_ms": floor_small,
            "small_batch_ratio": small / floor_small,
        }
    ]


def _engine(engine: Engine, messages: int) -> tuple[float, float]:
    done = 0
    stop = threading.Event()
    connection = connect(url(engine), client_name="bench")
    consumer = connection.consumer(QUEUE, ack_mode="individual", max_backlog=BACKLOG)

    def drain() -> None:
        nonlocal done
        while not stop.is_set():
            message = consumer.receive(0.2)
            if message is not None:
                message.ack()
                done += 1

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    producer = connection.producer(window=messages + WARM_UP)
    admin = connection.admin()

    def life(n: int) -> None:
        target = done + n
        for _ in range(n):
            producer.send_async(QUEUE, PAYLOAD)
        wait_for(lambda: done >= target, 300, "delivery")

    def settled() -> bool:
        return admin.describe(QUEUE)["depth"] == 0

    life(WARM_UP)
    wait_for(settled, 60, "acknowledging")
    begin = time.perf_counter()
    life(messages)
    wait_for(settled, 60, "acknowledging")
    rate = messages / (time.perf_counter() - begin)
    before = len(engine.metrics.batches)
    for _ in range(SMALL_ROUNDS):
        life(SMALL)
        time.sleep(0.3)
    batches = engine.metrics.batches[before:]
    small = [float(ms) for rows, ms in batches if SMALL <= rows < 2 * SMALL]
    stop.set()
    thread.join()
    connection.close()
    return rate, median(small)


def _floor(engine: Engine, messages: int) -> tuple[float, float]:
    spark = engine._spark
    assert spark is not None
    ensure_topics(engine.bootstrap, [], ["floor-in", "floor-out"])
    from pyspark.sql import functions as f

    stream = source.read_stream(
        spark, engine.bootstrap, {"subscribe": "floor-in"}, source.RECORDS_PER_BATCH
    )
    copy = stream.select(f.lit("floor-out").alias("topic"), "key", "value", "headers")
    query = (
        copy.writeStream.format("kafka").option("kafka.bootstrap.servers", engine.bootstrap)
        .option("includeHeaders", "true").option("kafka.acks", "all")
        .option("kafka.batch.size", "262144").option("kafka.linger.ms", "2")
        .option("checkpointLocation", str(engine.home / "floor-checkpoint")).start()
    )  # fmt: skip
    transport = open_kafka(engine.bootstrap, "bench-floor")
    headers = [("lq", encode_publish_header(PublishHeader(to=QUEUE, producer="floor", seq=1)))]
    sent = 0

    def copied() -> int:
        return sum(p["numInputRows"] for p in _progress(query).values())

    def feed(n: int) -> None:
        nonlocal sent
        sent += n
        for _ in range(n):
            transport.publish("floor-in", PAYLOAD, None, headers)
        wait_for(lambda: copied() >= sent, 300, "the copy")

    seen: dict[int, Any] = {}

    def _progress(query: Any) -> dict[int, Any]:
        for p in query.recentProgress:
            if p["numInputRows"]:
                seen[p["batchId"]] = p
        return seen

    feed(WARM_UP)
    begin = time.perf_counter()
    feed(messages)
    rate = messages / (time.perf_counter() - begin)
    before = set(seen)
    for _ in range(SMALL_ROUNDS):
        feed(SMALL)
        time.sleep(0.3)
    small = [
        p["durationMs"]["triggerExecution"] for i, p in seen.items()
        if i not in before and p["numInputRows"] == SMALL
    ]  # fmt: skip
    query.stop()
    transport.close()
    return rate, median(small)
