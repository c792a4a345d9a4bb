"""The engine over Spark's plain Kafka → Kafka copy: what the rules cost on top of the floor.

Three ways take turns, in one session, on one disk, with the same messages of 1 KB:
- engine: published by our client, which puts several messages into a record when they follow each
  other closely; done when each is stored, delivered, acknowledged and gone;
- plain: the same engine, but each message is a record of its own, as any Kafka producer sends it;
- floor: the plain copy of the very records of `plain`; done when it has written them.

Small batches are 100 records of the second and third kind, each after the one before is done; and,
to tell Spark's share from ours, of a copy through a stateful operator that does next to nothing. A
round is all ways, one after the other, and what counts is the median of the rounds: machines become
slower and faster meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..client import connect
from ..client.kafka import open_kafka
from ..protocol import topics
from ..protocol.messages import HEADER, PublishHeader, encode_publish_header
from ..sinks.kafka import write_records
from ..sources import kafka as source
from ..streaming import Engine
from ..streaming.planning import QUERY_SETTINGS
from ..streaming.session import settings_set
from ..streaming.topics_admin import ensure_topics
from .empty_operator import through_operator
from .harness import BACKLOG, PAYLOAD, QUEUE, Say, median, running, url, wait_for

WARM_UP = 40_000
ROUNDS = 3
SMALL, SMALL_ROUNDS = 100, 25


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """Rounds of so many messages each; see the module."""
    with running(say, {"lakequeue.tables_interval_s": "0"}) as engine:
        lives, copy = _Lives(engine), _Copy(engine, "floor")
        ways: dict[str, Callable[[int], float]] = {
            "engine": lives.by_client, "plain": lives.by_records, "floor": copy.of_records
        }  # fmt: skip
        rates: dict[str, list[float]] = {name: [] for name in ways}
        say("warming up")
        for way in ways.values():
            way(WARM_UP)
        for turn in range(ROUNDS):
            say(f"round {turn + 1} of {ROUNDS}")
            for name, way in ways.items():
                rates[name].append(way(messages))
        say("small batches")
        empty = _Copy(engine, "operator", through_operator)
        empty.of_records(WARM_UP)
        batches = (lives.small_batches, copy.small_batches, empty.small_batches)
        small: list[list[float]] = [[], [], []]
        for _ in range(ROUNDS):
            for found, batch in zip(small, batches, strict=True):
                found.append(batch())
        copy.stop()
        empty.stop()
    speed = {name: median(found) for name, found in rates.items()}
    engine_ms, copy_ms, operator_ms = map(median, small)
    return [
        {
            "engine_msgs_s": speed["engine"],
            "plain_msgs_s": speed["plain"],
            "floor_msgs_s": speed["floor"],
            "ratio": speed["engine"] / speed["floor"],
            "plain_ratio": speed["plain"] / speed["floor"],
            "small_batch_ms": engine_ms,
            "floor_small_batch_ms": copy_ms,
            "small_batch_ratio": engine_ms / copy_ms,
            "operator_small_batch_ms": operator_ms,
        }
    ]


class _Records:
    """A plain producer: each message a record of its own, with the header that our client sends."""

    def __init__(self, bootstrap: str, producer: str) -> None:
        self._transport = open_kafka(bootstrap, f"bench-{producer}")
        self._producer = producer
        self._next = 1

    def send(self, topic: str, count: int, partition: int | None = None) -> None:
        for seq in range(self._next, self._next + count):
            header = PublishHeader(to=QUEUE, producer=self._producer, seq=seq)
            headers = [(HEADER, encode_publish_header(header))]
            self._transport.publish(topic, PAYLOAD, None, headers, partition)
        self._next += count

    def close(self) -> None:
        self._transport.close()


class _Lives:
    """Messages through the engine: published, delivered, acknowledged, gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._records = 0

    def by_client(self, count: int) -> float:
        """Messages a second."""
        with connect(url(self._engine), client_name="bench-producer") as connection:
            producer = connection.producer(window=count)

            def send() -> None:
                for _ in range(count):
                    producer.send_async(QUEUE, PAYLOAD)

            return self._rate(count, send)

    def by_records(self, count: int) -> float:
        """Messages a second."""
        records = self._new_records()
        where = topics.topic("default", topics.PUBLISH)
        rate = self._rate(count, lambda: records.send(where, count, 0))
        records.close()
        return rate

    def small_batches(self) -> float:
        """The median duration of a batch of `SMALL` records, ms."""
        records = self._new_records()
        where = topics.topic("default", topics.PUBLISH)
        before = len(self._engine.metrics.batches)
        with _Consumer(self._engine) as consumer:
            for _ in range(SMALL_ROUNDS):
                records.send(where, SMALL, 0)
                consumer.wait(SMALL)
                time.sleep(0.3)
        records.close()
        batches = self._engine.metrics.batches[before:]
        return median([float(ms) for rows, ms in batches if SMALL <= rows < 2 * SMALL])

    def _new_records(self) -> _Records:
        """A producer that was not there before: it numbers its messages from 1."""
        self._records += 1
        return _Records(self._engine.bootstrap, f"plain-{self._records}")

    def _rate(self, count: int, send: Callable[[], None]) -> float:
        with _Consumer(self._engine) as consumer:
            begin = time.perf_counter()
            send()
            consumer.wait(count)
            wait_for(lambda: consumer.depth() == 0, 60, "acknowledging")
            return count / (time.perf_counter() - begin)


class _Consumer:
    """Receives and acknowledges in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._connection = connect(url(engine), client_name="bench-consumer")
        self._consumer = self._connection.consumer(
            QUEUE, ack_mode="individual", max_backlog=BACKLOG
        )
        self._admin = self._connection.admin()
        self._done = self._wanted = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain, daemon=True)

    def _drain(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.receive(0.2)
            if message is not None:
                message.ack()
                self._done += 1

    def wait(self, count: int) -> None:
        """Until so many more have come than were waited for before."""
        self._wanted += count
        wait_for(lambda: self._done >= self._wanted, 300, "delivery")

    def depth(self) -> int:
        return int(self._admin.describe(QUEUE)["depth"])

    def __enter__(self) -> _Consumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


class _Copy:
    """A plain copy, or one through something: source, sink, session and query are set as the
    engine's are."""

    def __init__(
        self, engine: Engine, name: str, through: Callable[[DataFrame], DataFrame] | None = None
    ) -> None:
        spark = engine._spark
        assert spark is not None
        self._input, output = f"{name}-in", f"{name}-out"
        ensure_topics(engine.bootstrap, [], [self._input, output])
        stream = source.read_stream(
            spark, engine.bootstrap, {"subscribe": self._input}, source.RECORDS_PER_BATCH
        )
        copy = stream.select(f.lit(output).alias("topic"), "key", "value", "headers")
        writer = write_records(through(copy) if through else copy, engine.bootstrap)
        writer.option("checkpointLocation", str(engine.home / f"{name}-checkpoint"))
        with settings_set(spark, QUERY_SETTINGS):
            self._query = writer.start()
        self._records = _Records(engine.bootstrap, name)
        self._sent = 0
        self._seen: dict[int, Any] = {}

    def of_records(self, count: int) -> float:
        """Records a second."""
        begin = time.perf_counter()
        self._feed(count)
        return count / (time.perf_counter() - begin)

    def small_batches(self) -> float:
        """The median duration of a batch of `SMALL` records, ms."""
        before = set(self._seen)
        for _ in range(SMALL_ROUNDS):
            self._feed(SMALL)
            time.sleep(0.3)
        return median(
            [
                p["durationMs"]["triggerExecution"] for batch, p in self._seen.items()
                if batch not in before and p["numInputRows"] == SMALL
            ]
        )  # fmt: skip

    def _feed(self, count: int) -> None:
        self._sent += count
        self._records.send(self._input, count)
        wait_for(lambda: self._copied() >= self._sent, 300, "the copy")

    def _copied(self) -> int:
        for progress in self._query.recentProgress:
            if progress["numInputRows"]:
                self._seen[progress["batchId"]] = progress
        return sum(p["numInputRows"] for p in self._seen.values())

    def stop(self) -> None:
        self._query.stop()
        self._records.close()
