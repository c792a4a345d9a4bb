"""`lakequeue.aio`: the same client, awaited (C4, P5, P6, L1). On memory and with its thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import lakequeue
import lakequeue.aio
import pytest
from client.threaded import connect, engine
from lakequeue.client import asyncio_client
from lakequeue.protocol import NotConnected, Rejected, Timeout

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}


def run(*tests: Callable[[lakequeue.aio.Connection, Any], Awaitable[None]]) -> None:
    """Each with a connection that has a thread, as over Kafka."""

    async def main() -> None:
        for test in tests:
            sync, wire = connect(engine(ORDERS))
            async with lakequeue.aio.Connection(sync) as connection:
                await asyncio.wait_for(test(connection, wire), 60)

    asyncio.run(main())


def test_on_memory_send_receive_iterate() -> None:
    async def main() -> None:
        async with await lakequeue.aio.connect("memory://") as connection:
            admin = connection.admin()
            await admin.define(ORDERS)
            producer = connection.producer()
            for n in range(4):
                receipt = await producer.send("orders", b"%d" % n)
                assert receipt.message_id == str(n + 1)
            consumer = await connection.consumer("orders", ack_mode="individual", max_backlog=100)
            first = await consumer.receive(timeout=5)
            assert first.payload == b"0"
            first.ack()
            async for message in consumer:
                message.ack()
            assert await consumer.receive() is None
            assert (await admin.describe("orders"))["acknowledged"] == 4

    asyncio.run(main())


def test_P6_send_waits_until_it_is_stored_and_keeps_the_order() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        async with connection.producer(window=5) as producer:
            sends = [producer.send("orders", b"%d" % n) for n in range(40)]
            receipts = await asyncio.gather(*sends)
            assert [int(r.message_id) for r in receipts] == list(range(1, 41))
            assert [r.sequence for r in receipts] == list(range(1, 41))
            with pytest.raises(Rejected):
                await producer.send("nowhere", b"{}")

    run(test)


def test_P5_a_full_window_does_not_stop_the_loop() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        producer = connection.producer(window=1, pub_ack_time="100ms")
        wire.lose_published = lambda _: True
        sends = [asyncio.create_task(producer.send("orders", b"{}")) for _ in range(3)]
        turns = 0
        for _ in range(20):
            await asyncio.sleep(0.01)
            turns += 1
        assert turns == 20
        assert not any(s.done() for s in sends)
        wire.lose_published = lambda _: False
        assert [r.sequence for r in await asyncio.gather(*sends)] == [1, 2, 3]

    run(test)


def test_P6_a_timeout_leaves_the_message_unacknowledged_and_then_stored() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        producer = connection.producer(pub_ack_time="200ms")
        wire.lose_published = lambda _: True
        with pytest.raises(Timeout, match=r"no answer to a message for 'orders' within 0\.1 s"):
            await producer.send("orders", b"{}", timeout=0.1)
        assert producer.unacknowledged() == [b"{}"]
        wire.lose_published = lambda _: False
        await producer.flush(10)
        assert producer.unacknowledged() == []

    run(test)


def test_receive_waits_for_the_first_and_gives_up_in_time() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        consumer = await connection.consumer("orders", ack_mode="individual", max_backlog=9)
        assert await consumer.receive(timeout=0.05) is None
        waiting = asyncio.create_task(consumer.receive(timeout=30))
        await asyncio.sleep(0.05)
        await connection.producer().send("orders", b"1")
        assert (await waiting).payload == b"1"

    run(test)


def test_L1_a_task_that_is_cancelled_while_it_waits_has_taken_nothing() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        consumer = await connection.consumer("orders", ack_mode="individual", max_backlog=9)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.producer().send("orders", b"1")
        assert (await consumer.receive(timeout=10)).payload == b"1"

    run(test)


def test_C3_a_consumer_that_nobody_waits_for_any_more_is_closed() -> None:
    """Its task was canceled, sooner or later: it must not keep messages that nobody receives."""

    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        await connection.producer().send("orders", b"1")
        cancelled = 0
        for moment in range(12):
            making = asyncio.create_task(connection.consumer("orders", max_backlog=9))
            await asyncio.sleep(moment * 0.001)
            making.cancel()
            await asyncio.wait([making])
            if making.cancelled():
                cancelled += 1
            else:
                await making.result().close()
        assert cancelled, "every task was too fast"
        for _ in range(1000):
            seen = await connection.admin().describe("orders")
            if not seen["consumers"]:
                break
            await asyncio.sleep(0.01)
        assert (seen["consumers"], seen["ready"], seen["leased"]) == ([], 1, 0)

    run(test)


def test_a_connection_that_nobody_waits_for_any_more_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, closed = threading.Event(), threading.Event()

    class Late:
        def close(self) -> None:
            closed.set()

    def connect_late(url: str) -> Late:
        made.wait(60)
        return Late()

    monkeypatch.setattr(asyncio_client, "_connect", connect_late)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lakequeue.aio.connect("kafka://somewhere"), 0.05)
        assert not closed.is_set()
        made.set()
        assert await asyncio.to_thread(closed.wait, 60)

    asyncio.run(main())


def test_C3_close_waits_for_the_callback_and_returns_the_rest() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        consumer = await connection.consumer("orders", ack_mode="auto", max_backlog=9)
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

    run(test)


def test_C3_a_consumer_whose_close_fails_keeps_no_other_from_closing() -> None:
    """Its error is told, and the connection is closed all the same."""

    async def main() -> None:
        sync, _ = connect(engine(ORDERS))
        connection = lakequeue.aio.Connection(sync)
        await connection.producer().send("orders", b"1")
        consumers = [
            await connection.consumer("orders", ack_mode="individual", max_backlog=9)
            for _ in range(3)
        ]
        broken = consumers[0].sync
        close, said = broken.close, []

        def fails() -> None:
            said.append("broken")
            if len(said) == 1:
                raise NotConnected("Kafka is away")
            close()

        broken.close = fails
        with pytest.raises(NotConnected, match="Kafka is away"):
            await connection.close()
        assert all(consumer.is_closed for consumer in consumers[1:])
        with pytest.raises(NotConnected):
            sync.producer()

    asyncio.run(main())


def test_a_close_ends_the_iteration() -> None:
    async def test(connection: lakequeue.aio.Connection, wire: Any) -> None:
        consumer = await connection.consumer("orders", ack_mode="auto", max_backlog=9)

        async def iterate() -> int:
            return len([m async for m in consumer])

        task = asyncio.create_task(iterate())
        await connection.producer().send("orders", b"1")
        await asyncio.sleep(0.2)
        await consumer.close()
        assert await task == 1

    run(test)


def test_L13_acks_by_id_are_said_as_without_asyncio() -> None:
    async def main() -> None:
        async with await lakequeue.aio.connect("memory://") as connection:
            async with connection.admin() as admin:
                await admin.define(ORDERS)
            for _ in range(3):
                await connection.producer().send("orders", b"{}")
            async with await connection.consumer("orders", ack_mode="individual") as consumer:
                await consumer.ack(["1"])
                await consumer.ack(None, "2")
                await consumer.ack(where="/@priority = 4")
            assert (await connection.admin().describe("orders"))["depth"] == 0

    asyncio.run(main())
