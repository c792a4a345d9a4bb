"""`lakequeue.aio`: the same client with asyncio (C3, C4, L1, L13, P5, P6). On memory and
threaded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import lakequeue
import lakequeue.aio
import pytest
from client.threaded import Threaded, connect, wait_for
from lakequeue.client import asyncio_client
from lakequeue.protocol import NotConnected, Rejected, Timeout
from rules.harness import Bench


def awaited(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run the test in a loop of its own, for at most a minute."""

    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**given), 60))

    return run


@asynccontextmanager
async def opened(bench: Bench) -> AsyncIterator[lakequeue.aio.Connection]:
    async with lakequeue.aio.Connection(bench.connection) as connection:
        yield connection


async def consume(connection: Any, mode: str = "individual") -> lakequeue.aio.Consumer:
    return await connection.consumer("orders", ack_mode=mode, max_backlog=9)


@pytest.fixture
def threaded() -> Threaded:
    """With a connection that has a thread, as over Kafka."""
    return Threaded()


@awaited
async def test_L13_on_memory_send_receive_iterate_and_ack_by_id() -> None:
    async with await lakequeue.aio.connect("memory://") as connection:
        async with connection.admin() as admin:
            await admin.define({"name": "orders", "message_type": "json"})
        producer = connection.producer()
        for n in range(4):
            sent = await producer.send("orders", b"%d" % n, timeout=n)
            assert sent.message_id == str(n + 1)
        async with await connection.consumer("orders", ack_mode="individual") as consumer:
            first = await consumer.receive(timeout=5)
            assert first.payload == b"0"
            first.ack()
            async for message in consumer:
                message.ack()
            assert await consumer.receive() is None
            for _ in range(3):
                await producer.send("orders", b"{}")
            for say in (consumer.ack(["5"]), consumer.ack(None, "6"),
                        consumer.ack(where="/@priority = 4")):  # fmt: skip
                await say
        assert (await admin.describe("orders"))["acknowledged"] == 7


@awaited
async def test_P6_send_waits_for_storage_and_keeps_the_order(threaded: Threaded) -> None:
    async with opened(threaded) as connection:
        async with connection.producer(window=5) as producer:
            sends = [producer.send("orders", b"%d" % n) for n in range(40)]
            receipts = await asyncio.gather(*sends)
            numbers = [(n, n) for n in range(1, 41)]
            assert [(int(r.message_id), r.sequence) for r in receipts] == numbers
            with pytest.raises(Rejected):
                await producer.send("nowhere", b"{}")


@awaited
async def test_P5_a_full_window_does_not_stop_the_loop(threaded: Threaded) -> None:
    async with opened(threaded) as connection:
        producer = connection.producer(window=1, pub_ack_time="100ms")
        threaded.wire.lose_published = lambda _: True
        sends = [asyncio.create_task(producer.send("orders", b"{}")) for _ in range(3)]
        for _ in range(10):  # the loop runs
            await asyncio.sleep(0.01)
        assert not any(s.done() for s in sends)
        threaded.wire.lose_published = lambda _: False
        assert [r.sequence for r in await asyncio.gather(*sends)] == [1, 2, 3]


@awaited
async def test_P6_a_message_whose_send_timed_out_may_still_be_stored(
    threaded: Threaded,
) -> None:
    async with opened(threaded) as connection:
        producer = connection.producer(pub_ack_time="200ms")
        threaded.wire.lose_published = lambda _: True
        with pytest.raises(Timeout, match=r"no answer to a message for 'orders' within 0\.1 s"):
            await producer.send("orders", b"{}", timeout=0.1)
        assert producer.unacknowledged() == [b"{}"]
        threaded.wire.lose_published = lambda _: False
        await producer.flush(10)
        assert producer.unacknowledged() == []


@pytest.mark.parametrize("cancelled", [False, True])
@awaited
async def test_L1_a_cancelled_receive_takes_no_message(threaded: Threaded, cancelled: bool) -> None:
    async with opened(threaded) as connection:
        consumer = await consume(connection)
        assert await consumer.receive(timeout=0.05) is None
        waiting = asyncio.create_task(consumer.receive(timeout=30))
        await asyncio.sleep(0.05)
        if cancelled:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            waiting = asyncio.create_task(consumer.receive(timeout=30))
        await connection.producer().send("orders", b"1")
        assert (await waiting).payload == b"1"


@awaited
async def test_C3_a_consumer_of_a_cancelled_task_is_closed(threaded: Threaded) -> None:
    """Its task was cancelled, sooner or later: it must not keep messages that nobody receives."""
    async with opened(threaded) as connection:
        await connection.producer().send("orders", b"1")
        cancelled = 0
        for moment in range(12):
            making = asyncio.create_task(consume(connection))
            await asyncio.sleep(moment * 0.001)
            making.cancel()
            await asyncio.wait([making])
            if making.cancelled():
                cancelled += 1
            else:
                await making.result().close()
        assert cancelled, "every task finished before it was cancelled"
        for _ in range(1000):
            seen = await connection.admin().describe("orders")
            if not seen["consumers"]:
                break
            await asyncio.sleep(0.01)
        assert (seen["consumers"], seen["ready"], seen["leased"]) == ([], 1, 0)


@awaited
async def test_a_connection_of_a_cancelled_task_is_closed() -> None:
    made, closed = threading.Event(), threading.Event()

    class Late:
        def close(self) -> None:
            closed.set()

    def connect_late(url: str) -> Late:
        made.wait(60)
        return Late()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio_client, "_connect", connect_late)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lakequeue.aio.connect("kafka://somewhere"), 0.05)
        assert not closed.is_set()
        made.set()
        assert await asyncio.to_thread(closed.wait, 60)


@awaited
async def test_C3_close_waits_for_the_callback_and_returns_the_rest(threaded: Threaded) -> None:
    async with opened(threaded) as connection:
        consumer = await consume(connection, "auto")
        entered = asyncio.Event()

        async def work(_: Any) -> None:
            entered.set()
            await asyncio.sleep(0.1)

        consumer.on_message(work)
        producer = connection.producer()
        await asyncio.gather(*(producer.send("orders", b"%d" % n) for n in range(3)))
        await entered.wait()
        await consumer.close()
        seen = await connection.admin().describe("orders")
        assert (seen["acknowledged"], seen["ready"], seen["leased"]) == (1, 2, 0)
        with pytest.raises(NotConnected):
            await consumer.receive(timeout=0)


@pytest.mark.parametrize("what", ["consumer", "connection"])
@awaited
async def test_C3_a_cancelled_close_closes_all_the_same(threaded: Threaded, what: str) -> None:
    """It waited for a callback: no other one is called, and no message stays leased."""
    connection = lakequeue.aio.Connection(threaded.connection)
    consumer = await consume(connection, "auto")
    entered, go_on, seen = asyncio.Event(), asyncio.Event(), list[Any]()

    async def work(message: Any) -> None:
        seen.append(message)
        entered.set()
        await go_on.wait()

    consumer.on_message(work)
    for _ in range(2):
        await connection.producer().send("orders", b"{}")
    await entered.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for((consumer if what == "consumer" else connection).close(), 0.05)
    with pytest.raises(NotConnected):
        await consumer.receive()
    look = connect(threaded.engine, "look")[0].admin()
    await asyncio.to_thread(wait_for, lambda: look.describe("orders")["ready"] == 2)
    go_on.set()
    assert consumer._working is not None
    await asyncio.wait([consumer._working])
    assert len(seen) == 1
    await connection.close()


def test_L1_a_consumer_serves_one_event_loop_after_another(threaded: Threaded) -> None:
    """As programs do that call `asyncio.run` more than once."""
    connection = lakequeue.aio.Connection(threaded.connection)

    async def first() -> lakequeue.aio.Consumer:
        consumer = await consume(connection)
        assert await consumer.receive(timeout=0.01) is None
        return consumer

    async def second() -> bytes:
        waiting = asyncio.create_task(consumer.receive(timeout=60))
        await asyncio.sleep(0)
        await connection.producer().send("orders", b"1")
        return (await waiting).payload

    consumer = asyncio.run(first())
    threaded.send(b"0")
    threaded.waiting(consumer.sync, 1)
    consumer.sync.receive(0).ack()
    assert asyncio.run(second()) == b"1"


@pytest.mark.parametrize("face", ["threads", "asyncio"])
@awaited
async def test_an_iteration_ends_when_its_consumer_closes_at_any_moment(
    threaded: Threaded, face: str
) -> None:
    """Also between its check and its call."""
    async with opened(threaded) as connection:
        consumer = await consume(connection)
        receive = consumer.sync.receive

        def closed(timeout: float) -> Any:
            consumer.sync.close()
            return receive(timeout)

        consumer.sync.receive = closed
        await connection.producer().send("orders", b"1")
        threaded.waiting(consumer.sync, 1)
        if face == "threads":
            assert list(consumer.sync) == []
        else:
            assert [message async for message in consumer] == []


@awaited
async def test_C3_a_failing_close_does_not_affect_other_consumers(
    threaded: Threaded,
) -> None:
    """Its error is raised, and the connection is closed all the same."""
    connection = lakequeue.aio.Connection(threaded.connection)
    await connection.producer().send("orders", b"1")
    broken, *others = [await consume(connection) for _ in range(3)]

    def fails(_: float) -> None:
        raise NotConnected("Kafka is away")

    broken.sync.close_by = fails
    with pytest.raises(NotConnected, match="Kafka is away"):
        await connection.close()
    assert all(consumer.is_closed for consumer in others)
    with pytest.raises(NotConnected):
        threaded.connection.producer()


@awaited
async def test_a_close_ends_the_iteration(threaded: Threaded) -> None:
    async with opened(threaded) as connection:
        consumer = await consume(connection, "auto")

        received = asyncio.Event()

        async def iterate() -> None:
            async for _ in consumer:
                received.set()

        task = asyncio.create_task(iterate())
        await connection.producer().send("orders", b"1")
        await received.wait()
        await consumer.close()
        await task
