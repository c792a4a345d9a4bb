"""Threads of the engine that read a topic, on the Kafka that librdkafka plays for tests."""

from __future__ import annotations

from typing import Any

from client.threaded import wait_for
from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition
from lakequeue.streaming.watch_thread import TopicReader

WAIT_S = 20.0


class Heard(TopicReader):
    """Keeps what it reads, and how often it was idle."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.values: list[bytes | None] = []
        self.idled = 0

    def take(self, message: Message) -> None:
        self.values.append(message.value())

    def idle(self) -> None:
        self.idled += 1


def test_it_reads_from_its_offsets_on_and_ends_soon() -> None:
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()

    def write(value: bytes) -> None:
        producer.produce("v.directory", value, b"key", 0)
        assert producer.flush(10) == 0

    write(b"1")
    write(b"2")
    address = f"{broker.host}:{broker.port}"
    all_of_it, later = (
        Heard(address, f"from-{at}", [TopicPartition("v.directory", 0, at)])
        for at in (1, OFFSET_END)
    )
    all_of_it.start()
    later.start()
    wait_for(lambda: all_of_it.values == [b"2"] and all_of_it.idled > 0)

    def is_heard() -> bool:
        write(b"3")  # again, since a reader may only now learn where the end is
        return bool(later.values)

    wait_for(is_heard)
    assert set(later.values) == {b"3"}
    wait_for(lambda: all_of_it.values[:2] == [b"2", b"3"])
    for reader in (all_of_it, later):
        reader.stop()
        reader.join(WAIT_S)
        assert not reader.is_alive()
