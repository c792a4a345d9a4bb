"""The records that a producer's library gets, and when: none that it could not send yet."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from lakequeue.client.kafka import kafka_bounds as bounds
from lakequeue.client.kafka.producer_buffer import AT_ONCE, BATCH_BYTES, ProducerBuffer
from lakequeue.protocol.errors import Reason, Rejected


class Library:
    """Stands for confluent-kafka's producer: keeps its records, and delivers when told."""

    def __init__(self) -> None:
        self.given: list[tuple[int, bytes]] = []  # partition, value; all records
        self.refuses: set[bytes] = set()
        self._on_way: list[Any] = []

    def produce(
        self, topic: str, value: bytes, key: Any, partition: int, report: Any, headers: Any
    ) -> None:
        if value in self.refuses:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        self.given.append((partition, value))
        self._on_way.append(report)

    def deliver(self, count: int, error: KafkaError | None = None) -> None:
        """Report the oldest ones as delivered."""
        reports, self._on_way = self._on_way[:count], self._on_way[count:]
        for report in reports:
            report(error, None)

    def purge(self) -> None:
        self.deliver(len(self._on_way), KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, _: float) -> int:
        return 0


class BufferBench:
    """A buffer over its library; the failures, and the values whose end was reported."""

    def __init__(self) -> None:
        self.library, self.failed, self.ended = Library(), list[str](), list[bytes]()
        self.buffer = ProducerBuffer(self.library, lambda topic, _: self.failed.append(topic))

    def give(self, *values: bytes, partition: int = 0) -> bool:
        """True if the last one was accepted."""
        taken = False
        for value in values:
            taken = self.buffer.give(
                "t", value, None, partition, [], lambda value=value: self.ended.append(value)
            )
        return taken

    def sent(self, partition: int = 0) -> list[bytes]:
        """The library's records of one partition, in order."""
        return [value for place, value in self.library.given if place == partition]

    def deliver_all(self) -> None:
        while self.buffer.records:
            self.library.deliver(1)


@pytest.fixture
def bench() -> BufferBench:
    return BufferBench()


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def test_five_records_of_a_partition_are_in_flight_and_others_wait(bench: BufferBench) -> None:
    assert bench.give(*numbers(0, 9))
    assert bench.sent() == numbers(0, AT_ONCE)
    bench.library.deliver(1)  # now fewer than five: all waiting ones are sent
    assert bench.sent() == numbers(0, 9)
    assert bench.buffer.records == 8
    bench.library.deliver(8)
    assert bench.buffer.flush(0)
    assert bench.buffer.bytes == 0


def test_new_records_queue_up_behind_waiting_ones(bench: BufferBench) -> None:
    values = numbers(0, 40)
    for value in values:
        bench.give(value)
        if len(bench.library.given) % 3 == 0:
            bench.library.deliver(1)
    bench.deliver_all()
    assert bench.sent() == values


def test_partitions_do_not_wait_for_each_other(bench: BufferBench) -> None:
    bench.give(*numbers(0, 7))
    bench.give(b"other", partition=1)
    assert bench.sent(1) == [b"other"]
    assert len(bench.sent(0)) == AT_ONCE


def test_a_batch_at_a_time(bench: BufferBench) -> None:
    bench.give(*[b"x" * (BATCH_BYTES // 4)] * (AT_ONCE + 8))
    bench.library.deliver(1)
    assert len(bench.sent()) == AT_ONCE + 3  # four exceed it with a record's overhead
    bench.give(*[b"y" * (2 * BATCH_BYTES)] * (AT_ONCE + 1), partition=1)
    assert len(bench.sent(1)) == AT_ONCE
    bench.deliver_all()
    assert len(bench.sent(1)) == AT_ONCE + 1  # more than a batch, and alone in it


def test_acked_is_called_once_for_each_record_also_for_lost_ones(bench: BufferBench) -> None:
    bench.library.refuses = {b"6"}
    bench.give(*numbers(0, 8))
    bench.library.deliver(1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert sorted(bench.ended) == [b"0", b"6"]  # the library refused it when it was its turn
    assert bench.failed == ["t", "t"]
    bench.library.deliver(8)
    assert sorted(bench.ended) == numbers(0, 8)
    assert bench.buffer.flush(0)


def test_records_refused_at_once_are_not_counted(bench: BufferBench) -> None:
    bench.library.refuses = {b"no"}
    with pytest.raises(KafkaException):
        bench.give(b"no")
    assert bench.buffer.flush(0)
    assert bench.give(b"yes")
    assert bench.sent() == [b"yes"]


def test_a_too_large_record_is_refused_at_once_even_if_it_would_wait(bench: BufferBench) -> None:
    bench.give(*numbers(0, AT_ONCE))
    with pytest.raises(Rejected) as refused:
        bench.give(b"x" * bounds.MESSAGE_BYTES_MAX)
    assert refused.value.reason == Reason.MESSAGE_TOO_LARGE
    assert bench.buffer.records == AT_ONCE


def test_a_full_buffer_is_reported(bench: BufferBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BUFFER_RECORDS_MAX", 8)
    assert bench.give(*numbers(0, 8))
    since = 0.0
    for _ in range(2):  # the second caller waits no longer than the first
        assert not bench.give(b"8")
        since = since or bench.buffer.full_at
        assert bench.buffer.full_at == since > 0
    assert not bench.buffer.flush(0)
    bench.library.deliver(5)
    assert not bench.buffer.full_at
    assert bench.give(b"9")
    bench.library.deliver(5)
    assert bench.sent() == [*numbers(0, 8), b"9"]


def test_abandoning_the_buffer_fails_waiting_records_and_those_in_flight(
    bench: BufferBench,
) -> None:
    bench.give(*numbers(0, 8))
    assert bench.buffer.give_up() == 8
    assert sorted(bench.ended) == numbers(0, 8)
    assert bench.sent() == numbers(0, AT_ONCE)
    assert bench.failed == []  # give_up returns their number instead
    assert bench.buffer.flush(0)
