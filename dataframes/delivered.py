"""The executors' side of a job: reads a part of a batch from the topic of deliveries.

The same offsets and numbers give the same messages in any process, as long as Kafka keeps the
records. If it does not, that is an error: skipping them would lose them, because the whole batch is
acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from ..client import Message
from ..protocol import LakequeueError, NotConnected, wire
from ..protocol.ids import parse_ranges, within
from ..protocol.kafka_headers import headers_of
from ..protocol.kafka_settings import kafka_settings
from .taken_batch import BatchPart

WAIT_S_MAX = 60.0
RECORDS = 500
_NOBODY: Any = None  # no consumer in this process has leased these messages


def read_part(
    addresses: str, queue: str, topic: str, partition: int, part: BatchPart
) -> Iterator[list[Message]]:
    """The messages of a part, those of one record together. Raises LakequeueError if Kafka no
    longer has some of them, NotConnected if it does not answer."""
    ranges, found = parse_ranges(part.numbers), 0
    seen: set[int] = set()
    for value, offset in _records(
        addresses, TopicPartition(topic, partition, part.first), part.last
    ):
        deliveries = wire.decode_batch(value)
        if deliveries.queue != queue:
            continue
        messages = []
        for i, number in enumerate(deliveries.numbers):
            if number not in seen and within(number, ranges):
                seen.add(number)
                messages.append(Message(_NOBODY, deliveries, i, offset))
        found += len(messages)
        if messages:
            yield messages
    if found < part.count:
        raise LakequeueError(
            f"{part.count - found} of {part.count} deliveries of queue {queue!r} are no longer in "
            f"Kafka: topic {topic!r}, partition {partition}, offsets {part.first} to {part.last}; "
            "Kafka must keep them for longer than the job may be down. With a new checkpoint, the "
            "query starts with the messages that are in the queue now"
        )


def _records(addresses: str, start: TopicPartition, last: int) -> Iterator[tuple[bytes, int]]:
    """The delivery records up to an offset, or to the end if that comes first."""
    consumer = Consumer(
        {
            **kafka_settings(),
            "bootstrap.servers": addresses,
            "client.id": "lakequeue-job",
            "group.id": "lakequeue-job",  # required but unused
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # `read_part` notices missing records
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 100,
            "enable.partition.eof": True,
            "log_level": 3,
        }
    )
    try:
        consumer.assign([start])
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            for record in consumer.consume(RECORDS, 0.1):
                deadline = time.monotonic() + WAIT_S_MAX
                error = record.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return
                    if error.fatal():
                        raise NotConnected(f"topic {start.topic!r} cannot be read: {error.str()}")
                    continue
                offset = record.offset() or 0
                if offset > last:
                    return
                with suppress(ValueError):  # not a record of the engine
                    if (wire.FRAMING, b"batch") in headers_of(record):
                        yield record.value() or b"", offset
                if offset == last:
                    return
            if time.monotonic() > deadline:
                raise NotConnected(
                    f"topic {start.topic!r} did not answer within {WAIT_S_MAX:.0f} s"
                )
    finally:
        consumer.close()
