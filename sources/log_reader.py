"""Reading the log of steps, uncommitted: its transactions are a fence, see `sinks.log_writer`."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ..protocol import steplog
from ..protocol.errors import LakequeueError, NotConnected
from ..protocol.steplog import StepRecord
from .live_reader import consumer_settings

WAIT_S_MAX = 30.0


def read_steps(kafka: dict[str, Any], topic: str, start: int) -> list[tuple[int, StepRecord]]:
    """The records from an offset on, each with its own, to the log's end."""
    consumer = Consumer(
        consumer_settings(kafka)
        | {
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[tuple[int, StepRecord]] = []
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
                    return found
                elif error.fatal():
                    raise NotConnected(f"topic {topic!r} cannot be read: {error.str()}")
            if time.monotonic() > until:
                raise NotConnected(f"topic {topic!r} did not answer within {WAIT_S_MAX:.0f} s")
    finally:
        consumer.close()


def _record(topic: str, message: Any) -> StepRecord:
    try:
        return steplog.decode(message.value())
    except ValueError as error:
        raise LakequeueError(f"{topic}, offset {message.offset()}: {error}") from error
