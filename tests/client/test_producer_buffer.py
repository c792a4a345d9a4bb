"""What a producer's library is given, and when: never what it could not send yet."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from lakequeue.client.kafka import kafka_bounds as bounds
from lakequeue.client.kafka.producer_buffer import AT_ONCE, BATCH_BYTES, ProducerBuffer
from lakequeue.protocol.errors import Reason, Rejected


class Library:
    """Stands for confluent-kafka's producer: keeps what it is given, and delivers when told."""

    def __init__(self) -> None:
        self.given: list[tuple[str, int, bytes]] = []  # topic, partition, value; all of it
        self._on_way: list[Any] = []
        self.refuses: set[bytes] = set()

    def produce(
        self, topic: str, value: bytes, key: Any, partition: int, report: Any, headers: Any
    ) -> None:
        """Take a record, or refuse it."""
        if value in self.refuses:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        self.given.append((topic, partition, value))
        self._on_way.append(report)

    def deliver(self, count: int, error: KafkaError | None = None) -> None:
        """Report the oldest so many."""
        reports, self._on_way = self._on_way[:count], self._on_way[count:]
        for report in reports:
            report(error, None)

    def purge(self) -> None:
        """Give up what is on its way."""
        self.deliver(len(self._on_way), KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, _: float) -> int:
        """Nothing to do."""
        return 0

    def values(self, partition: int = 0) -> list[bytes]:
        """What was given of one partition, in order."""
        return [value for _, place, value in self.given if place == partition]


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def failures() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def over(library: Library, failures: list[tuple[str, str]]) -> ProducerBuffer:
    return ProducerBuffer(library, lambda topic, reason: failures.append((topic, reason)))


def give(over: ProducerBuffer, value: bytes, partition: int = 0, acked: Any = None) -> bool:
    return over.give("t", value, None, partition, [], acked)


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def test_five_of_a_partition_are_on_their_way_and_the_next_ones_wait(
    library: Library, over: ProducerBuffer
) -> None:
    for value in numbers(0, 9):
        assert give(over, value)
    assert library.values() == numbers(0, AT_ONCE)
    library.deliver(1)  # now fewer than five: all that came meanwhile goes
    assert library.values() == numbers(0, 9)
    assert over.records == 8
    library.deliver(8)
    assert over.flush(0)
    assert over.bytes == 0


def test_what_comes_while_others_wait_goes_behind_them(
    library: Library, over: ProducerBuffer
) -> None:
    values = numbers(0, 40)
    for value in values:
        give(over, value)
        if len(library.given) % 3 == 0:
            library.deliver(1)
    while over.records:
        library.deliver(1)
    assert library.values() == values


def test_partitions_do_not_wait_for_each_other(library: Library, over: ProducerBuffer) -> None:
    for value in numbers(0, 7):
        give(over, value, 0)
    give(over, b"other", 1)
    assert library.values(1) == [b"other"]
    assert len(library.values(0)) == AT_ONCE


def test_a_batch_at_a_time(library: Library, over: ProducerBuffer) -> None:
    large = b"x" * (BATCH_BYTES // 4)
    for _ in range(AT_ONCE + 8):
        give(over, large)
    library.deliver(1)
    assert len(library.given) == AT_ONCE + 3  # four are above it with what a record costs besides
    huge = b"y" * (2 * BATCH_BYTES)
    give(over, huge, 1)
    for _ in range(AT_ONCE):
        give(over, huge, 1)
    assert len(library.values(1)) == AT_ONCE
    while over.records:
        library.deliver(1)
    assert len(library.values(1)) == AT_ONCE + 1  # more than a batch, and alone in it


def test_acked_is_called_once_for_each_also_for_what_is_lost(
    library: Library, over: ProducerBuffer, failures: list[tuple[str, str]]
) -> None:
    ended: list[bytes] = []
    library.refuses = {b"6"}
    for value in numbers(0, 8):
        give(over, value, acked=lambda value=value: ended.append(value))
    library.deliver(1, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert sorted(ended) == [b"0", b"6"]  # the library did not take the sixth when it was its turn
    assert [topic for topic, _ in failures] == ["t", "t"]
    library.deliver(8)
    assert sorted(ended) == numbers(0, 8)
    assert over.flush(0)


def test_what_the_library_refuses_at_once_is_not_counted(
    library: Library, over: ProducerBuffer
) -> None:
    library.refuses = {b"no"}
    with pytest.raises(KafkaException):
        give(over, b"no")
    assert over.flush(0)
    assert give(over, b"yes")
    assert library.values() == [b"yes"]


def test_too_large_is_said_at_once_also_where_it_would_wait(
    library: Library, over: ProducerBuffer
) -> None:
    for value in numbers(0, AT_ONCE):
        give(over, value)
    with pytest.raises(Rejected) as refused:
        give(over, b"x" * bounds.MESSAGE_BYTES_MAX)
    assert refused.value.reason == Reason.MESSAGE_TOO_LARGE
    assert over.records == AT_ONCE


def test_no_room(library: Library, over: ProducerBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BUFFER_RECORDS_MAX", 8)
    assert [give(over, value) for value in numbers(0, 9)] == 8 * [True] + [False]
    assert not over.flush(0)
    library.deliver(5)
    assert give(over, b"9")
    library.deliver(5)
    assert library.values() == [*numbers(0, 8), b"9"]


def test_giving_up_ends_what_waits_and_what_is_on_its_way(
    library: Library, over: ProducerBuffer, failures: list[tuple[str, str]]
) -> None:
    ended: list[bytes] = []
    for value in numbers(0, 8):
        give(over, value, acked=lambda value=value: ended.append(value))
    assert over.give_up() == 8
    assert sorted(ended) == numbers(0, 8)
    assert library.values() == numbers(0, AT_ONCE)
    assert failures == []  # who closes knows it
    assert over.flush(0)
