"""C3, S7, P5: waiting calls learn of deleted queues and of closed objects; both clients."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import lakequeue.aio
import pytest
from client.threaded import WAIT_S, Held, Threaded, told_in_a_thread
from lakequeue.protocol import LeaseLost, NotConnected, Timeout
from rules.harness import Bench, drain, ids

DELETED = "queue 'orders' was deleted; the consumer is closed"


# ---------------------------------------------------------------- deleted queues


def test_S7_a_consumer_of_a_deleted_queue_gets_an_error(bench: Bench) -> None:
    for n in range(2):
        bench.send({"n": n})
    consumer = bench.consumer()
    message = consumer.receive(timeout=0)
    bench.admin.delete("orders")
    assert consumer.is_closed
    for call in (
        consumer.receive,
        lambda: consumer.receive_many(3),
        lambda: consumer.ack(ids="1"),
        lambda: consumer.set_max_backlog(3),
        lambda: consumer.on_message(print),
        lambda: list(consumer),
    ):
        with pytest.raises(NotConnected, match=DELETED):
            call()
    for settle in (message.ack, message.cancel, message.reject, message.renew):
        with pytest.raises(LeaseLost, match="is no longer held: queue 'orders' was deleted"):
            settle()
    consumer.close()


def test_S7_a_recreated_queue_is_another_queue(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.admin.delete("orders")
    bench.define()
    bench.send()
    with pytest.raises(NotConnected, match=DELETED):
        consumer.receive()
    assert bench.seen()["consumers"] == []
    assert len(drain(bench.consumer())) == 1


@pytest.mark.parametrize("how", ["receive", "iterate"])
def test_S7_a_waiting_receive_gets_an_error(how: str) -> None:
    bench = Threaded()
    bench.define("other")
    consumer, beside = bench.consumer(), bench.consumer("other")
    waiting, told = told_in_a_thread(
        consumer.receive if how == "receive" else lambda: list(consumer), 0.05
    )
    bench.admin.delete("orders")
    waiting.join(WAIT_S)
    assert told == [f"NotConnected: {DELETED}"]
    assert not beside.is_closed


@pytest.mark.parametrize("how", ["receive", "iterate", "on_message"])
def test_S7_an_awaiting_receive_gets_an_error(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def wait(consumer: lakequeue.aio.Consumer) -> None:
        if how == "receive":
            await consumer.receive()
        async for _ in consumer:
            pass

    async def main() -> None:
        async with lakequeue.aio.Connection(Threaded().connection) as connection:
            consumer = await connection.consumer("orders", ack_mode="individual")
            if how == "on_message":
                consumer.on_message(print)
                waiting = consumer._task
            else:
                waiting = asyncio.create_task(wait(consumer))
                await asyncio.sleep(0.05)
            await connection.admin().delete("orders")
            if how == "on_message":
                await asyncio.wait_for(waiting, 5)
            else:
                with pytest.raises(NotConnected, match=DELETED):
                    await waiting
            assert consumer.is_closed

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert DELETED in caplog.text


def test_S7_on_message_ends_with_a_logged_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer(name="app", ack_mode="auto")
    consumer.on_message(print)
    bench.admin.delete("orders")
    assert consumer.is_closed
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.getMessage() == f"consumer 'app' of queue 'orders': {DELETED}"


def test_C3_a_consumer_that_cannot_resubscribe_is_closed() -> None:
    """Its session was lost while the queue was deleted and recreated for another purpose."""
    bench = Threaded()
    consumer, connection = bench.consumer(filter="/n > 1"), bench.connection
    with consumer._lock:  # it does not learn of the end
        connection._consumers.clear()
        bench.admin.delete("orders")
        connection._consumers[consumer.subscription] = consumer
    bench.define(message_type="binary")
    connection._heartbeat_answered(consumer.broker, {"result": False})
    with pytest.raises(NotConnected, match="subscribing again failed: filter: '/n > 1' – reads"):
        consumer.receive(timeout=10)


# ---------------------------------------------------------------- the same rule for both clients


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_receive_many_returns_at_most_the_requested_number(bench: Bench, most: int) -> None:
    for n in range(6):
        bench.send({"n": n})
    sync = bench.consumer(backlog=3).receive_many(most, 0)

    async def awaited() -> list[Any]:
        connection = lakequeue.aio.Connection(bench.connection)
        consumer = await connection.consumer("orders", ack_mode="individual", max_backlog=3)
        return await consumer.receive_many(most, 0)

    assert (len(sync), len(asyncio.run(awaited()))) == (min(most, 3),) * 2


def test_closed_consumers_are_forgotten(bench: Bench) -> None:
    async def awaited() -> Any:
        connection = lakequeue.aio.Connection(bench.connection)
        for _ in range(20):
            async with await connection.consumer("orders") as consumer:
                consumer.on_message(print)
        return connection

    for _ in range(20):
        with bench.consumer() as consumer:
            consumer.on_message(print)
    kept = asyncio.run(awaited())
    bench.advance("1s")
    connection = bench.connection
    assert connection.runner.sessions == {}
    assert connection._consumers == connection._hooks == {}
    assert connection.runner._served == []
    assert len(kept._consumers) == 0
    bench.send()
    assert ids(drain(bench.consumer())) == ["1"]


# ---------------------------------------------------------------- closed during a call


@pytest.mark.parametrize(("what", "said"), [
    ("send", "NotConnected: the producer is closed"),
    ("flush", "NotConnected: closed with 1 messages without an answer"),
])  # fmt: skip
def test_P5_a_waiting_send_fails_when_its_producer_is_closed(what: str, said: str) -> None:
    bench = Threaded()
    producer = bench.connection.producer(window=1)
    bench.wire.lose_published = lambda _: True
    producer.send_async("orders", b"{}")
    calls = {"send": lambda: producer.send("orders", b"{}"), "flush": lambda: producer.flush(None)}
    thread, told = told_in_a_thread(calls[what])
    with pytest.raises(Timeout):
        producer.close(0.05)
    thread.join(WAIT_S)
    assert told == [said]


@pytest.mark.parametrize("what", ["queues", "consumer", "define"])
def test_a_waiting_call_fails_when_its_connection_is_closed(what: str) -> None:
    bench = Threaded(Held)
    bench.wire.let_go.clear()
    calls: dict[str, Callable[[], Any]] = {
        "queues": bench.admin.queues, "consumer": bench.consumer,
        "define": lambda: bench.define("other"),
    }  # fmt: skip
    thread, told = told_in_a_thread(calls[what])
    bench.connection.close()
    thread.join(WAIT_S)
    assert told == ["NotConnected: the connection was closed before the engine answered"]


@pytest.mark.parametrize("call", ["send", "send_async"])
def test_with_asyncio_a_send_on_a_closed_connection_is_refused(call: str) -> None:
    async def main() -> None:
        connection = lakequeue.aio.Connection(Threaded().connection)
        producer = connection.producer()
        await producer.send("orders", b"{}")
        await connection.close()
        with pytest.raises(NotConnected, match="the producer is closed"):
            await getattr(producer, call)("orders", b"{}")

    asyncio.run(main())
