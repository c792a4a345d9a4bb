"""Reads the log of steps, and again the inputs of logged steps, from their offsets.

The log is read uncommitted, since its transactions are only a fence (`sinks.log_writer`).
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ..protocol import steplog
from ..protocol.errors import LakequeueError, NotConnected
from ..protocol.steplog import Range, StepRecord
from ..state import Batch
from .live_reader import consumer_settings
from .offset_ranges import WAIT_S_MAX, read_ranges
from .step_batch import PartitionId, to_batch


class Gone(LakequeueError):
    """Logged steps, or the inputs of one, cannot be read any more."""


def read_steps(
    kafka: dict[str, Any], topic: str, start: int, shorter: bool = False
) -> list[tuple[int, StepRecord]]:
    """The log's records from an offset to its end, each with its offset.

    A log that ends before the offset has lost steps whose outputs were sent; other steps would give
    the same ids to other messages. So this raises Gone, unless such a log is accepted (shorter).
    """
    uncommitted = {"isolation.level": "read_uncommitted", "fetch.wait.max.ms": 10}
    consumer = Consumer(consumer_settings(kafka) | uncommitted)
    found: list[tuple[int, StepRecord]] = []
    why = ""
    try:
        consumer.assign([TopicPartition(topic, 0, start)])
        until = time.monotonic() + WAIT_S_MAX
        while True:
            for message in consumer.consume(500, 0.05):
                until = time.monotonic() + WAIT_S_MAX
                error = message.error()
                if error is None:
                    found.append((message.offset() or 0, _record(topic, message)))
                elif error.code() == KafkaError._PARTITION_EOF:
                    end = message.offset() or 0
                    if end < start and not shorter:
                        raise Gone(_is_shorter(topic, start, end))
                    return found
                elif error.fatal():
                    raise NotConnected(f"topic {topic!r} cannot be read: {error.str()}")
                else:
                    why = f": {error.str()}"
            if time.monotonic() > until:
                wait = f"{WAIT_S_MAX:.0f} s"
                raise NotConnected(f"topic {topic!r} did not answer within {wait}{why}")
    finally:
        consumer.close()


def _is_shorter(topic: str, start: int, end: int) -> str:
    return (
        f"the log of steps {topic!r} ends at offset {end:,}, but this home has read it up to "
        f"{start:,}: the topic was deleted, or Kafka lost its newest records. Restore Kafka's "
        "newest data, or rebuild the home (`lakequeue rebuild`). If the engine had stopped "
        "cleanly, start with --accept-other-kafka: the queues are kept"
    )


def _record(topic: str, message: Any) -> StepRecord:
    try:
        return steplog.decode(message.value())
    except ValueError as error:
        raise LakequeueError(f"{topic}, offset {message.offset()}: {error}") from error


class ReplayInputs:
    """The inputs of logged steps, see `driver.Again`. They are read step by step, so that a long
    log does not fill the memory."""

    def __init__(self, kafka: dict[str, Any], records: list[StepRecord]) -> None:
        spans: dict[PartitionId, tuple[int, int]] = {}
        for record in records:
            for r in record.ranges:
                place = r.topic, r.partition
                first, _ = spans.get(place, (r.first, 0))
                spans[place] = first, r.last + 1
        self._found: dict[PartitionId, deque[Any]] = {place: deque() for place in spans}
        self._chunks = read_ranges(kafka, spans)

    def take(self, ranges: tuple[Range, ...]) -> Batch:
        """Read the ranges of a step. Raises Gone if no record arrives for 30 s."""
        found = {}
        for r in ranges:
            place = r.topic, r.partition
            messages = self._found[place]
            while not messages or messages[-1].offset() < r.last:
                if not self._read_chunk(r):
                    break
            taken, wanted = [], set(r.offsets())
            while messages and messages[0].offset() <= r.last:
                message = messages.popleft()
                if message.offset() in wanted:
                    taken.append(message)
            if len(taken) != r.count or taken[0].offset() != r.first:
                raise _gone(r, f"Kafka has {len(taken)} of them")
            found[place] = taken
        return to_batch(found).batch

    def _read_chunk(self, r: Range) -> bool:
        """Read more records, for this range. Returns whether there were any."""
        try:
            messages = next(self._chunks, [])
        except NotConnected as error:
            raise _gone(r, "Kafka does not deliver them") from error
        for message in messages:
            self._found[message.topic(), message.partition()].append(message)
        return bool(messages)

    def close(self) -> None:
        """Close the connection to Kafka."""
        self._chunks.close()


def _gone(r: Range, why: str) -> Gone:
    return Gone(
        f"a logged step read {r.count} records, {r.first} to {r.last}, of partition "
        f"{r.partition} of topic {r.topic!r}, but {why}: restore the topic's records, or give "
        "it a longer retention and start with another --home"
    )
