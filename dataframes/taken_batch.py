"""A batch of a job: its messages, and the location of their deliveries in Kafka.

Spark calls this an offset and writes it to its log before the batch runs. It is enough to build the
batch again in another process: the deliveries are in the inbox's topic, and each has its own number
(L5). A *part* is read by one task: a range of Kafka offsets and the numbers of the deliveries in
it. No delivery is in two parts, so one that was sent twice (C2) is read once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..client import Message
from ..protocol import ConfigError
from ..protocol.ids import format_ranges

PART_MESSAGES = 2_000
PART_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The part of a batch that one task reads. first, last: offsets. numbers: of the deliveries, as
    ranges."""

    first: int
    last: int
    count: int
    numbers: str


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """number: of the batch, from 1; 0 before the first. epoch: of the home that the ids belong to.
    topic, partition: the inbox. ids: as ranges, for the acknowledgement."""

    queue: str
    number: int = 0
    epoch: int = 0
    topic: str = ""
    partition: int = 0
    ids: str = ""
    parts: tuple[BatchPart, ...] = ()

    def as_offset(self) -> dict[str, Any]:
        """JSON for Spark's log."""
        offset: dict[str, Any] = {"queue": self.queue, "batch": self.number}
        if self.number:
            offset |= {
                "epoch": self.epoch, "topic": self.topic, "partition": self.partition,
                "ids": self.ids,
                "parts": [[p.first, p.last, p.count, p.numbers] for p in self.parts],
            }  # fmt: skip
        return offset

    @classmethod
    def of(cls, offset: dict[str, Any], queue: str) -> TakenBatch:
        """Parse a batch from Spark's log. Raises ConfigError if it belongs to another queue."""
        if offset["queue"] != queue:
            raise ConfigError(
                f"queue: {queue!r} – the checkpoint of this query belongs to the queue "
                f"{offset['queue']!r}; a query on another queue needs another checkpoint"
            )
        if not offset["batch"]:
            return cls(queue)
        parts = tuple(BatchPart(*part) for part in offset["parts"])
        return cls(
            queue, offset["batch"], offset["epoch"], offset["topic"], offset["partition"],
            offset["ids"], parts,
        )  # fmt: skip

    def next(
        self, messages: Iterable[Message], epoch: int, topic: str, partition: int
    ) -> TakenBatch:
        """Build the batch with these messages that follows this one."""
        messages = list(messages)
        return replace(
            self, number=self.number + 1, epoch=epoch, topic=topic, partition=partition,
            ids=format_ranges(m.number for m in messages), parts=tuple(_parts(messages)),
        )  # fmt: skip


def _parts(messages: list[Message]) -> Iterable[BatchPart]:
    """Split between records: one record's messages go to one task."""
    part: list[Message] = []
    size = 0
    for message in sorted(messages, key=lambda m: m.offset):
        full = len(part) >= PART_MESSAGES or size >= PART_BYTES
        if full and message.offset != part[-1].offset:
            yield _part(part)
            part, size = [], 0
        part.append(message)
        size += len(message.payload)
    if part:
        yield _part(part)


def _part(messages: list[Message]) -> BatchPart:
    numbers = format_ranges(m.delivery for m in messages)
    return BatchPart(messages[0].offset, messages[-1].offset, len(messages), numbers)
