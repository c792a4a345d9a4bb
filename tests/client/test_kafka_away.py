"""Kafka takes nothing for a while: nothing is lost, stuck or sent twice, and nothing is closed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from client.threaded import Away, Held, Threaded, connect, wait_for
from lakequeue.client.asyncio_client import AsyncConnection
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine
from lakequeue.protocol import NotConnected, Timeout


def receive_one(consumer: Any) -> list[Any]:
    return [consumer.receive(5)]


def receive_both(consumer: Any) -> list[Any]:
    return consumer.receive_many(2, 5)


def call_back(consumer: Any) -> list[Any]:
    got: list[Any] = []
    consumer.on_message(got.append)
    wait_for(lambda: len(got) == 2)
    return got


@pytest.mark.parametrize("how", [receive_one, receive_both, call_back])
@pytest.mark.parametrize("mode", ["auto", "pre_ack", "dups_ok"])
def test_C4_a_waiting_ack_does_not_delay_messages(
    mode: str, how: Callable[[Any], list[Any]]
) -> None:
    bench = Threaded(Away)
    bench.connection.runner.acks_most = 1
    consumer = bench.connection.consumer("orders", ack_mode=mode, max_backlog=2)
    bench.wire.refuses = ("ack",)
    for n in range(2):
        bench.send({"n": n}, timeout=5)
    got: list[Any] = []
    while len(got) < 2:
        got += how(consumer)
    assert [m.payload for m in got] == [b'{"n": 0}', b'{"n": 1}']
    assert consumer.receive(0) is None
    bench.wire.back()
    wait_for(lambda: bench.seen()["depth"] == 0)


def test_L10_a_waiting_renewal_does_not_delay_the_callback() -> None:
    bench = Threaded(Away, lease_period="1h")
    bench.send(timeout=5)
    consumer = bench.consumer(ack_mode="auto")
    bench.waiting(consumer, 1)
    consumer._prefetch.buffer[0].lease_ends -= 1_000_000  # it has waited long
    bench.wire.refuses = ("renew",)
    got: list[Any] = []
    consumer.on_message(got.append)
    wait_for(lambda: bench.seen()["depth"] == 0)
    assert len(got) == 1


@pytest.mark.parametrize("mode", ["auto", "dups_ok"])
def test_C4_a_failed_message_is_canceled_as_soon_as_kafka_is_back(mode: str) -> None:
    bench = Threaded(Away)
    bench.send(timeout=5)
    consumer = bench.consumer(ack_mode=mode)
    bench.wire.refuses = ("cancel",)
    counts: list[int] = []

    def fail_once(message: Any) -> None:
        counts.append(message.delivery_count)
        if len(counts) == 1:
            raise ValueError("a mistake of the application")

    consumer.on_message(fail_once)
    bench.wire.back()
    wait_for(lambda: counts == [1, 2])


def test_C3_a_consumer_is_bound_again_when_kafka_is_back() -> None:
    bench = Threaded(Away)
    consumer = bench.consumer(ack_mode="auto")
    bench.wire.refuses = ("unsubscribe",)
    bench.connection._heartbeat_answered(consumer.broker, {"result": False})
    bench.wire.back()
    bench.send(timeout=5)
    assert consumer.receive(10).payload == b"{}"


@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["gathered", "alone"])
def test_P1_a_message_that_kafka_did_not_take_uses_no_sequence(options: dict[str, Any]) -> None:
    bench = Threaded(Away, message_type="text")
    bench.wire.refuses = ("publish",)
    with pytest.raises(NotConnected, match="Kafka is away"):
        bench.producer.send_async("orders", "a", **options)
    assert bench.producer.unacknowledged() == []
    bench.wire.refuses = ()
    assert bench.producer.send("orders", "b", **options).sequence == 1, "a sequence is missing"
    assert bench.stored() == [b"b"]


def sent_to_a_moved_queue() -> tuple[Any, Any, Any, list[Any]]:
    """The second half of the messages waits for the old broker's answers to the first."""
    queue = {"name": "q", "message_type": "text", "type": "LocalQueue", "broker": "b"}
    home = MemoryEngine(parse_configuration({"brokers": ["a", "b"], "queues": [queue]}))
    connection, wire = connect(home, kind=Away, number=0)
    producer = connection.producer(pub_ack_time="100ms")
    wire.let_go.clear()
    sent = []
    for hosts in ({}, {"b": 1}):
        connection.learn("q", hosts)
        sent += [producer.send_async("q", str(n)) for n in range(len(sent), len(sent) + 3)]
        producer.send_gathered()
    return connection, wire, producer, sent


def test_P6_messages_for_a_queue_that_moved_stay_unacknowledged_after_close() -> None:
    _, wire, producer, sent = sent_to_a_moved_queue()
    with pytest.raises(Timeout, match="6 messages without an answer"):
        producer.close(0)
    assert producer.unacknowledged() == [b"%d" % n for n in range(6)]
    assert all(isinstance(one.exception(0), NotConnected) for one in sent)
    wire.let_go.set()


def test_P1_messages_for_a_queue_that_moved_are_not_lost() -> None:
    """When Kafka does not take them for the new broker at first."""
    connection, wire, producer, sent = sent_to_a_moved_queue()
    wire.refuses = ("publish",)
    wire.let_go.set()
    wire.back()
    producer.flush(10)
    assert [m.payload for m in connection.admin().browse("q")] == [b"%d" % n for n in range(6)]
    assert [int(one.result(0).message_id or 0) >> 48 for one in sent] == [0, 0, 0, 1, 1, 1]


# ---------------------------------------------------------------- an unreachable engine


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_P5_send_waits_for_room_no_longer_than_its_timeout(timeout: float) -> None:
    bench = Threaded(Held)
    producer = bench.connection.producer(window=1)
    bench.wire.let_go.clear()
    producer.send_async("orders", "{}")
    with pytest.raises(Timeout, match=r"none came within 0(\.\d+)? s"):
        producer.send("orders", "{}", timeout=timeout)
    bench.wire.let_go.set()


def test_L5_consumers_close_without_kafka_within_the_documented_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the first one waits, up to 2 s, for an answer. None asks Kafka which brokers there are,
    which takes 5 s each time."""
    bench = Threaded(Held)
    consumers = [bench.consumer() for _ in range(4)]
    bench.connection._looked_s = 0.0
    bench.wire.let_go.clear()
    asked, waits = list[str](), list[float]()

    def wait(condition: Callable[[], bool], timeout: float) -> bool:
        waits.append(timeout)
        return condition()

    monkeypatch.setattr(bench.wire, "partitions", asked.append)
    monkeypatch.setattr(bench.connection, "wait", wait)
    for consumer in consumers:
        consumer.close()
    assert len(waits) == 1
    assert waits[0] <= 2
    assert asked == []


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C3_a_connection_closes_within_the_documented_time(
    monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    """However many consumers it has, callbacks that do not return, and no Kafka. One after the
    other they would take 8 s."""
    for module in ("connection", "consumer.consumer", "asyncio_client"):
        monkeypatch.setattr(f"lakequeue.client.{module}.CLOSE_S", 0.5)
    monkeypatch.setattr("lakequeue.client.consumer.consumer.RETURN_S", 0.2)
    bench, at_work = Threaded(Held), list[Any]()
    let_go = threading.Event()

    def work(message: Any) -> None:
        at_work.append(message)
        let_go.wait(60)

    async def awaited(message: Any) -> None:
        at_work.append(message)
        await asyncio.sleep(60)

    async def main() -> None:
        connection = AsyncConnection(bench.connection)
        for _ in range(16):
            await connection.producer().send("orders", b"{}")
            consumer = await connection.consumer("orders", ack_mode="auto")
            (consumer.sync if face == "threads" else consumer).on_message(
                work if face == "threads" else awaited
            )
        while len(at_work) < 16:
            await asyncio.sleep(0.01)
        bench.wire.let_go.clear()
        started = time.monotonic()
        await connection.close()
        assert time.monotonic() - started < 5

    asyncio.run(main())
    let_go.set()


def test_C3_producers_without_answers_close_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakequeue.client.connection.FLUSH_S", 0.5)
    bench = Threaded(Held)
    producers = [bench.connection.producer() for _ in range(20)]
    bench.wire.let_go.clear()
    for producer in producers:
        producer.send_async("orders", "{}")
    started = time.monotonic()
    with pytest.raises(Timeout, match=r"1 messages without an answer after 0\.\d+ s"):
        bench.connection.close()
    assert time.monotonic() - started < 6, "they were closed one after the other"


def test_O1_a_callback_can_wait_for_another_receipt() -> None:
    """Both receipts have arrived at once, with deliveries behind them that stay in order."""
    bench = Threaded(Held)
    consumer = bench.consumer(backlog=10)
    other = bench.connection.producer()
    bench.wire.let_go.clear()
    sent = bench.producer.send_async("orders", b"0")
    outcome: list[Any] = []

    def wait_for_the_other(_: object) -> None:
        other.flush(10)
        outcome.append(other.unacknowledged())

    sent.add_done_callback(wait_for_the_other)
    for n in range(1, 4):
        other.send_async("orders", b"%d" % n)
    bench.wire.let_go.set()
    assert [m.payload for m in (consumer.receive(5) for _ in range(4))] == [b"0", b"1", b"2", b"3"]
    assert outcome == [[]]
