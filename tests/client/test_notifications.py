"""C3, C4: who waits is told. Deleted queues, callbacks that end a program; both faces alike."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import lakequeue
import lakequeue.aio
import pytest
from client.threaded import Held, Wire, connect, engine, wait_for
from lakequeue.protocol import LakequeueError, LeaseLost, NotConnected, Timeout
from rules.harness import Bench, drain, ids

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}
OTHER = ORDERS | {"name": "other"}
DELETED = "queue 'orders' was deleted; the consumer is closed"


def on_thread(test: Callable[[Any, lakequeue.aio.Connection], Awaitable[None]]) -> None:
    """A test with a connection that has a thread, as over Kafka; and its face for asyncio."""

    async def main() -> None:
        sync, _ = connect(engine(ORDERS, OTHER))
        async with lakequeue.aio.Connection(sync) as connection:
            await asyncio.wait_for(test(sync, connection), 30)

    asyncio.run(main())


# ---------------------------------------------------------------- deleted queues


def test_S7_a_consumer_of_a_deleted_queue_hears_of_it(bench: Bench) -> None:
    bench.send()
    bench.send()
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


def test_S7_a_queue_that_is_made_again_is_another(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.admin.delete("orders")
    bench.define()
    bench.send()
    with pytest.raises(NotConnected, match=DELETED):
        consumer.receive()
    assert bench.seen()["consumers"] == []
    assert len(drain(bench.consumer())) == 1


@pytest.mark.parametrize("how", ["receive", "iterate"])
def test_S7_who_waits_for_messages_is_told(how: str) -> None:
    connection, _ = connect(engine(ORDERS, OTHER))
    consumer = connection.consumer("orders", ack_mode="individual")
    beside = connection.consumer("other", ack_mode="individual")
    told: list[str] = []

    def wait() -> None:
        try:
            consumer.receive() if how == "receive" else list(consumer)
        except NotConnected as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    connection.admin().delete("orders")
    waiting.join(60)
    assert told == [DELETED]
    assert not beside.is_closed


@pytest.mark.parametrize("how", ["receive", "iterate", "on_message"])
def test_S7_who_awaits_messages_is_told(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(sync: Any, connection: lakequeue.aio.Connection) -> None:
        consumer = await connection.consumer("orders", ack_mode="individual")
        if how == "on_message":
            consumer.on_message(print)
        waiting = asyncio.create_task(wait(consumer))
        await asyncio.sleep(0.05)
        await connection.admin().delete("orders")
        if how == "on_message":
            waiting.cancel()
            await asyncio.wait_for(consumer._task, 5)
        else:
            with pytest.raises(NotConnected, match=DELETED):
                await waiting
        assert consumer.is_closed

    async def wait(consumer: lakequeue.aio.Consumer) -> None:
        if how == "receive":
            await consumer.receive()
        async for _ in consumer:
            pass

    on_thread(test)
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


def test_C3_a_consumer_that_cannot_be_bound_again_is_closed() -> None:
    """Its session was missed while the queue was deleted and made anew for another purpose."""
    made = engine(ORDERS)
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", filter="/n > 1")
    admin = connection.admin()
    with consumer._lock:  # it does not hear of the end
        connection._consumers.clear()
        admin.delete("orders")
        connection._consumers[consumer.subscription] = consumer
    admin.define({"name": "orders", "message_type": "binary"})
    connection._lost.add(consumer.broker)
    with pytest.raises(NotConnected, match="subscribing again failed: filter: '/n > 1' – reads"):
        consumer.receive(timeout=10)


# ---------------------------------------------------------------- callbacks that end a program


class Leaving:
    """A callback that ends the program at the first message."""

    def __init__(self, by: BaseException | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self._by = by

    def __call__(self, message: Any) -> None:
        self.seen.append((message.id, message.delivery_count))
        if self.seen == [("1", 1)]:
            if self._by is not None:
                raise self._by
            sys.exit("cannot go on")


OTHERS = [KeyboardInterrupt("cannot go on"), GeneratorExit("cannot go on"),
          asyncio.CancelledError("cannot go on")]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "by"), [("auto", None), ("dups_ok", None), *(("auto", by) for by in OTHERS)],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)  # fmt: skip
def test_C4_sys_exit_in_the_thread_of_a_callback_is_an_error_like_any(
    mode: str, by: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    """And so is whatever else no program expects to be raised there."""
    connection, _ = connect(engine(ORDERS))
    work = Leaving(by)
    consumer = connection.consumer("orders", ack_mode=mode, max_backlog=9)
    consumer.on_message(work)
    for n in range(3):
        connection.producer().send("orders", b"%d" % n)
    wait_for(lambda: connection.admin().describe("orders")["acknowledged"] == 3)
    assert sorted(work.seen) == [("1", 1), ("1", 2), ("2", 1), ("3", 1)]
    assert not consumer.is_closed
    assert f"{type(by).__name__ if by else 'SystemExit'}: cannot go on" in caplog.text


def test_C4_on_memory_it_is_raised_as_well(bench: Bench) -> None:
    bench.send()
    work = Leaving()
    consumer = bench.consumer(ack_mode="auto")
    with pytest.raises(SystemExit):
        consumer.on_message(work)
    assert (bench.seen()["canceled"], bench.seen()["ready"] + bench.seen()["leased"]) == (1, 1)
    bench.advance("1s")
    assert (work.seen, bench.seen()["acknowledged"]) == ([("1", 1), ("1", 2)], 1)


def test_C4_with_asyncio_it_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    sync, _ = connect(engine(ORDERS))
    work = Leaving()

    async def main() -> None:
        connection = lakequeue.aio.Connection(sync)
        consumer = await connection.consumer("orders", ack_mode="auto", max_backlog=9)
        consumer.on_message(work)
        await connection.producer().send("orders", b"{}")
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    wait_for(lambda: sync.admin().describe("orders")["canceled"] == 1)
    assert "SystemExit: cannot go on" in caplog.text
    sync.close()


def test_C4_a_callback_that_is_cancelled_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def test(sync: Any, connection: lakequeue.aio.Connection) -> None:
        consumer = await connection.consumer("orders", ack_mode="auto", max_backlog=9)
        seen: list[tuple[str, int]] = []

        async def work(message: Any) -> None:
            seen.append((message.id, message.delivery_count))
            if seen == [("1", 1)]:
                raise asyncio.CancelledError

        consumer.on_message(work)
        for n in range(3):
            await connection.producer().send("orders", b"%d" % n)
        while len(seen) < 4:
            await asyncio.sleep(0.01)
        assert sorted(seen) == [("1", 1), ("1", 2), ("2", 1), ("3", 1)]

    on_thread(test)
    assert "CancelledError" in caplog.text


class Refusing(Wire):
    """Kafka's library once says that an earlier record is lost, as an ack is given to it."""

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        super().command(topic, key, value, partition)
        if b'"command":"cancel"' in value:
            raise NotConnected("a record was lost")


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C4_what_cannot_be_said_ends_no_consumer(face: str) -> None:
    sync, _ = connect(engine(ORDERS), kind=Refusing)
    seen: list[str] = []

    def work(message: Any) -> None:
        seen.append(message.id)
        if len(seen) == 1:
            raise ValueError

    async def main() -> None:
        async with lakequeue.aio.Connection(sync) as connection:
            consumer: Any
            if face == "asyncio":
                consumer = await connection.consumer("orders", ack_mode="auto")
            else:
                consumer = sync.consumer("orders", ack_mode="auto")
            consumer.on_message(work)
            for _ in range(3):
                await connection.producer().send("orders", b"{}")
            while "3" not in seen:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 20))


# ---------------------------------------------------------------- two faces, one rule


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_receive_many_gives_at_most_so_many(bench: Bench, most: int) -> None:
    for n in range(6):
        bench.send({"n": n})
    sync = bench.consumer(backlog=3).receive_many(most, 0)

    async def awaited() -> list[Any]:
        connection = lakequeue.aio.Connection(bench.connection)
        consumer = await connection.consumer("orders", ack_mode="individual", max_backlog=3)
        return await consumer.receive_many(most, 0)

    assert (len(sync), len(asyncio.run(awaited()))) == (min(most, 3),) * 2


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C4_a_second_callback_replaces_the_first(face: str) -> None:
    """And one message at a time is worked on."""
    seen: list[str] = []
    at_work: list[int] = []

    def work(who: str) -> Callable[[Any], Any]:
        async def awaited(_: Any) -> None:
            at_work.append(1)
            seen.append(f"{who} {len(at_work)}")
            await asyncio.sleep(0.01)
            at_work.pop()

        def called(_: Any) -> None:
            at_work.append(1)
            seen.append(f"{who} {len(at_work)}")
            time.sleep(0.01)
            at_work.pop()

        return awaited if face == "asyncio" else called

    async def test(sync: Any, connection: lakequeue.aio.Connection) -> None:
        options = {"ack_mode": "auto", "max_backlog": 9}
        consumer: Any
        if face == "asyncio":
            consumer = await connection.consumer("orders", **options)
        else:
            consumer = sync.consumer("orders", **options)
        consumer.on_message(work("old"))
        producer = connection.producer()
        await producer.send("orders", b"{}")
        while not seen:
            await asyncio.sleep(0.01)
        consumer.on_message(work("new"))
        await asyncio.gather(*(producer.send("orders", b"{}") for _ in range(8)))
        while len(seen) < 9:
            await asyncio.sleep(0.01)
        assert seen == ["old 1", *["new 1"] * 8]

    on_thread(test)


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
    assert bench.engine._sessions == {}
    assert connection._consumers == connection._hooks == {}
    assert connection.runner._served == []
    assert len(kept._consumers) == 0
    bench.send()
    assert ids(drain(bench.consumer())) == ["1"]


# ---------------------------------------------------------------- what is closed meanwhile


def _told_in_a_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[str]]:
    told: list[str] = []

    def wait() -> None:
        try:
            call()
        except LakequeueError as error:
            told.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    return thread, told


@pytest.mark.parametrize(("what", "said"), [
    ("send", "NotConnected: the producer is closed"),
    ("flush", "NotConnected: closed with 1 messages without an answer"),
])  # fmt: skip
def test_P5_who_waits_for_a_producer_is_told_that_it_was_closed(what: str, said: str) -> None:
    connection, wire = connect(engine(ORDERS))
    producer = connection.producer(window=1)
    wire.lose_published = lambda _: True
    producer.send_async("orders", b"{}")
    calls = {"send": lambda: producer.send("orders", b"{}"), "flush": lambda: producer.flush(None)}
    thread, told = _told_in_a_thread(calls[what])
    with pytest.raises(Timeout):
        producer.close(0.05)
    thread.join(60)
    assert told == [said]


@pytest.mark.parametrize("what", ["queues", "consumer", "define"])
def test_who_waits_for_the_engine_is_told_that_the_connection_was_closed(what: str) -> None:
    connection, wire = connect(engine(ORDERS), kind=Held)
    admin = connection.admin()
    wire.let_go.clear()
    calls: dict[str, Callable[[], Any]] = {
        "queues": admin.queues, "consumer": lambda: connection.consumer("orders"),
        "define": lambda: admin.define(OTHER),
    }  # fmt: skip
    thread, told = _told_in_a_thread(calls[what])
    connection.close()
    thread.join(60)
    assert told == ["NotConnected: the connection was closed before the engine answered"]


@pytest.mark.parametrize("call", ["send", "send_async"])
def test_with_asyncio_a_send_on_a_closed_connection_is_refused_as_ever(call: str) -> None:
    async def main() -> None:
        sync, _ = connect(engine(ORDERS))
        connection = lakequeue.aio.Connection(sync)
        producer = connection.producer()
        await producer.send("orders", b"{}")
        await connection.close()
        with pytest.raises(NotConnected, match="the producer is closed"):
            await getattr(producer, call)("orders", b"{}")

    asyncio.run(main())
