"""Records that librdkafka cannot send yet wait here, not in the library.

An idempotent librdkafka producer has at most five records of a partition on their way, or one batch
of more. If it is given more, its thread polls without pause whether it may send
(`rd_kafka_toppar_producer_serve`, seen with 2.16), which costs a core per busy producer. So it gets
only what it can send at once: a record while fewer than five are on their way, then everything that
came meanwhile, up to a batch. Each partition keeps its order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from ..session.transport import Acked, Headers
from . import kafka_bounds as bounds
from .base import too_large

AT_ONCE = 5  # librdkafka's RD_KAFKA_IDEMP_MAX_INFLIGHT
BATCH_BYTES = 900_000  # its batch.size is 1,000,000, with what Kafka adds to a record
BATCH_RECORDS = 10_000  # its batch.num.messages
RECORD_BYTES = 36  # beside key, value and headers: its MESSAGE_V2_MAX_OVERHEAD
HEADER_BYTES = 10  # two lengths

Failed = Callable[[str, str], None]  # of a record that was accepted: its topic and why


class _Partition:
    """One partition: how many records the library has, and those waiting for it."""

    __slots__ = ("held", "on_way")

    def __init__(self) -> None:
        self.on_way = 0
        self.held: deque[_BufferedRecord] = deque()


@dataclass(slots=True, eq=False)
class _BufferedRecord:
    """A record on its way. The library calls it when the record is delivered or lost."""

    over: ProducerBuffer
    partition: _Partition
    record: tuple[Any, ...]
    size: int
    acked: Acked | None

    def __call__(self, error: Any, _: Any) -> None:
        self.over.ended(self, None if error is None else error.str())


class ProducerBuffer:
    """A producer's records, from `give` to their delivery. It does not know the transport, because
    the library's thread keeps it alive.

    failed: called with topic and reason for each accepted record that is lost.
    """

    def __init__(self, producer: Producer, failed: Failed) -> None:
        self._producer = producer
        self._failed = failed
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._changed = threading.Condition()
        self._given_up = False
        self.records = self.bytes = 0  # accepted, and neither delivered nor lost
        self.full_at = 0.0  # when it was full, if Kafka has taken nothing since (monotonic, s)

    def give(
        self, topic: str, value: bytes | None, key: bytes | None, place: int, headers: Headers,
        acked: Acked | None,
    ) -> bool:  # fmt: skip
        """Accept a record; returns False if there is no room. Raises Rejected (message_too_large),
        and KafkaException if the library refuses it."""
        size = _size(value, key, headers)
        if size > bounds.MESSAGE_BYTES_MAX:
            raise too_large(len(value or b""))
        with self._changed:
            if self.records >= bounds.BUFFER_RECORDS_MAX or self.bytes > bounds.BUFFER_BYTES_MAX:
                self.full_at = self.full_at or time.monotonic()
                return False
            partition = self._partitions.get((topic, place))
            if partition is None:
                partition = self._partitions[topic, place] = _Partition()
            record = (topic, value, key, place, headers or None)
            given = _BufferedRecord(self, partition, record, size, acked)
            if partition.held or partition.on_way >= AT_ONCE:
                partition.held.append(given)
            else:
                self._produce(given)
            self.records += 1
            self.bytes += size
        return True

    def _produce(self, given: _BufferedRecord) -> None:
        topic, value, key, place, headers = given.record
        self._producer.produce(topic, value, key, place, given, headers=headers)
        given.partition.on_way += 1

    def ended(self, given: _BufferedRecord, reason: str | None) -> None:
        """The library has delivered the record, or lost it for this reason."""
        with self._changed:
            given.partition.on_way -= 1
            lost = self._hand_over(given.partition)
            self._count_out(given)
        self._report_outcome(given, reason)
        for other, why in lost:
            self._report_outcome(other, why)

    def _hand_over(self, partition: _Partition) -> list[tuple[_BufferedRecord, str]]:
        """Give the library as much as it can send at once; returns the records it refused."""
        lost: list[tuple[_BufferedRecord, str]] = []
        if not partition.held or partition.on_way >= AT_ONCE:
            return lost
        size = count = 0
        while partition.held and count < BATCH_RECORDS:
            size += partition.held[0].size
            if count and size > BATCH_BYTES:
                break
            given = partition.held.popleft()
            try:
                self._produce(given)
                count += 1
            except (KafkaException, BufferError) as error:
                self._count_out(given)
                lost.append((given, str(error)))
        return lost

    def _count_out(self, given: _BufferedRecord) -> None:
        self.records -= 1
        self.bytes -= given.size
        self.full_at = 0.0
        if not self.records:
            self._changed.notify_all()

    def _report_outcome(self, given: _BufferedRecord, reason: str | None) -> None:
        try:
            if reason is not None and not self._given_up:
                self._failed(given.record[0], reason)
        finally:
            if given.acked is not None:
                given.acked()

    def flush(self, timeout: float) -> bool:
        """Wait until nothing is on its way; returns False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.records, timeout)

    def give_up(self) -> int:
        """Give up everything on its way; returns how many records. Their `acked` are called."""
        with self._changed:
            left, self._given_up = self.records, True
            held = [given for partition in self._partitions.values() for given in partition.held]
            for partition in self._partitions.values():
                partition.held.clear()
            for given in held:
                self._count_out(given)
        for given in held:
            self._report_outcome(given, "the connection closed")
        self._producer.purge()
        self._producer.flush(0.5)
        return left


def _size(value: bytes | None, key: bytes | None, headers: Headers) -> int:
    """The most that the library may count for a record; it would refuse a larger one too late."""
    size = RECORD_BYTES + len(value or b"") + len(key or b"")
    for name, content in headers:
        size += HEADER_BYTES + len(content) + (len(name) if name.isascii() else len(name.encode()))
    return size
