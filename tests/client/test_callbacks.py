"""C4: callbacks that fail, exit, are slow or are replaced: threaded, on memory, with asyncio.

A callback that always fails blocks no test on memory for ever, and its traceback is logged.
"""

import asyncio
import itertools
import logging
import operator
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import lakequeue.aio
import pytest
from client.threaded import Threaded, Wire, wait_for
from lakequeue.client.consumer import callbacks
from lakequeue.client.message import Message
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import LeaseLost, NotConnected
from rules.harness import Bench, drain, ids

MODES = ["auto", "dups_ok", "client", "individual", "pre_ack", "no_ack"]


class Failing:
    """A callback that fails at message 1 until it is healed; `once`: at its first delivery only."""

    def __init__(self, by: BaseException | None = None, once: bool = False) -> None:
        self.seen: list[tuple[str, int]] = []
        self.healed = False
        self._by, self._once = by or ValueError("a mistake of the application"), once

    def __call__(self, message: Any) -> None:
        self.seen.append((message.id, message.delivery_count))
        first = (message.id, message.delivery_count) == ("1", 1)
        if not self.healed and (first if self._once else message.id == "1"):
            if isinstance(self._by, SystemExit):
                sys.exit(self._by.code)
            raise self._by


# ---------------------------------------------------------------- on memory


def test_C4_on_message_returns_although_the_callback_fails(bench: Bench) -> None:
    """The failing message delays none behind it, and comes again when the clock moves."""
    for n in range(3):
        bench.send({"n": n})
    work = Failing()
    bench.consumer(ack_mode="auto").on_message(work)
    assert work.seen == [("1", 1), ("2", 1), ("3", 1)]
    assert (bench.seen()["acknowledged"], bench.seen()["canceled"]) == (2, 1)
    bench.send({"n": 3})
    assert work.seen[3:] == [("4", 1)], "no time has passed"
    bench.advance("1ms")
    assert work.seen[4:] == [("1", 2)]
    work.healed = True
    bench.advance("1ms")
    assert work.seen[5:] == [("1", 3)]
    assert bench.seen()["acknowledged"] == 4


def test_C4_a_failed_message_comes_again_with_the_next_on_message(bench: Bench) -> None:
    """With another callback, which replaces the first."""
    bench.send()
    consumer, work, other = bench.consumer(ack_mode="auto"), Failing(), Failing()
    consumer.on_message(work)
    other.healed = True
    consumer.on_message(other)
    assert (work.seen, other.seen) == ([("1", 1)], [("1", 2)])
    bench.send()
    assert (work.seen, other.seen) == ([("1", 1)], [("1", 2), ("2", 1)])


def test_C4_two_failing_consumers_do_not_pass_a_message_back_and_forth(bench: Bench) -> None:
    bench.send()
    first, second = Failing(), Failing()
    bench.consumer(ack_mode="auto", name="a").on_message(first)
    bench.consumer(ack_mode="auto", name="b").on_message(second)
    bench.advance("0s")
    assert len(first.seen) + len(second.seen) <= 2


def test_C4_receive_returns_a_failed_message(bench: Bench) -> None:
    bench.send()
    consumer = bench.consumer(ack_mode="auto")
    consumer.on_message(Failing())
    assert consumer.receive(timeout=0).delivery_count == 2


@pytest.mark.parametrize("mode", MODES)
def test_C4_the_traceback_is_logged(
    bench: Bench, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.send()
    with caplog.at_level(logging.ERROR, "lakequeue.client"):
        bench.consumer(ack_mode=mode).on_message(Failing())
    (record,) = caplog.records
    assert record.getMessage() == "callback failed on message 1 of queue 'orders', delivery 1"
    assert "in __call__" in caplog.text
    assert "ValueError: a mistake of the application" in caplog.text


def cancel_once(message: Any) -> None:
    if message.delivery_count == 1:
        message.cancel()


BACKS_OFF = {"redelivery_delay": "10s"}
DUPS = {"dups_ok_count": 9, "dups_ok_interval": "1s"}


@pytest.mark.parametrize(
    ("mode", "options", "queue", "work", "counts"),
    [
        # Only auto and dups_ok acknowledge by themselves, so only they cancel by themselves.
        pytest.param("client", {}, {}, Failing(), [1], id="client keeps a failed message"),
        pytest.param("individual", {}, {}, Failing(), [1], id="individual keeps a failed message"),
        pytest.param("dups_ok", DUPS, BACKS_OFF, Failing(once=True), [1, 2], id="dups_ok L11"),
        pytest.param("auto", {}, BACKS_OFF, cancel_once, [1, 2], id="a cancel wins over auto"),
    ],
)
def test_C4_L11_a_failed_message_comes_again_or_stays(
    empty: Bench, mode: str, options: Any, queue: Any, work: Any, counts: list[int]
) -> None:
    empty.define(max_per_subscription_backlog=9, **queue)
    seen: list[tuple[str, int]] = []

    def noting(message: Any) -> None:
        seen.append((message.id, message.delivery_count))
        work(message)

    empty.consumer(ack_mode=mode, backlog=9, **options).on_message(noting)
    empty.send()
    empty.advance("9s")
    assert seen == [("1", 1)]
    for _ in range(2):
        empty.advance("1s")
    assert seen == [("1", count) for count in counts]
    settled = len(counts) - 1
    assert (empty.seen()["canceled"], empty.seen()["acknowledged"]) == (settled, settled)
    assert empty.seen()["leased"] == 1 - settled


def test_C4_L4_auto_does_not_acknowledge_a_repeated_delivery(empty: Bench) -> None:
    """The lease ends while the callback runs: its result does not count for the new delivery."""
    empty.define(lease_period="1s", max_per_subscription_backlog=9)
    steps: list[tuple[str, int]] = []

    def slow(message: Any) -> None:
        steps.append(("begins", message.delivery_count))
        if len(steps) == 1:
            empty.advance("1s")
        steps.append(("ends", message.delivery_count))

    empty.consumer(ack_mode="auto").on_message(slow)
    empty.send()
    assert steps == [("begins", 1), ("ends", 1), ("begins", 2), ("ends", 2)]
    assert empty.seen()["acknowledged"] == 1


@pytest.mark.parametrize("mode", ["client", "individual", "auto", "dups_ok"])
def test_C3_C4_a_consumer_closed_in_its_own_callback(bench: Bench, mode: str) -> None:
    """The message in hand was not acknowledged: it returns, and its ack comes too late."""
    consumer = bench.consumer(ack_mode=mode)
    late: list[str] = []

    def work(message: Any) -> None:
        consumer.close()
        try:
            message.ack()
        except LeaseLost as error:
            late.append(str(error))

    for n in range(2):
        bench.send({"n": n})
    consumer.on_message(work)
    assert len(late) == (0 if mode == "auto" else 1)
    assert ids(drain(bench.consumer())) == ["1", "2"]


def test_C4_sys_exit_on_memory_is_raised(bench: Bench) -> None:
    bench.send()
    work = Failing(SystemExit("cannot go on"), once=True)
    consumer = bench.consumer(ack_mode="auto")
    with pytest.raises(SystemExit):
        consumer.on_message(work)
    assert (bench.seen()["canceled"], bench.seen()["ready"] + bench.seen()["leased"]) == (1, 1)
    bench.advance("1s")
    assert (work.seen, bench.seen()["acknowledged"]) == ([("1", 1), ("1", 2)], 1)


# ---------------------------------------------------------------- with a thread, and with asyncio


ENDINGS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize(
    ("mode", "kind"), [("dups_ok", SystemExit), *(("auto", kind) for kind in ENDINGS)]
)
def test_C4_sys_exit_in_a_callbacks_thread_is_an_ordinary_error(
    mode: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """So is any other exception that programs do not expect there."""
    bench = Threaded()
    work = Failing(kind("cannot go on"), once=True)
    options = {"dups_ok_interval": "50ms"} if mode == "dups_ok" else {}
    consumer = bench.consumer(ack_mode=mode, backlog=9, **options)
    consumer.on_message(work)
    for n in range(3):
        bench.send({"n": n})
    wait_for(lambda: bench.seen()["acknowledged"] == 3)
    assert sorted(work.seen) == [("1", 1), ("1", 2), ("2", 1), ("3", 1)]
    assert not consumer.is_closed
    assert f"{kind.__name__}: cannot go on" in caplog.text


@pytest.mark.parametrize("mode", ["auto", "dups_ok"])
def test_C4_L8_callbacks_continue_after_one_failed_past_its_lease(mode: str) -> None:
    """The cancel comes too late and is ignored: the callbacks' thread continues."""
    bench = Threaded(message_type="text", lease_period="500ms")
    seen: list[bytes] = []

    def callback(message: Any) -> None:
        seen.append(message.payload)
        if message.payload == b"slow":
            time.sleep(0.6)
            bench.send(b"next")
            raise RuntimeError("too late")

    bench.consumer(ack_mode=mode, backlog=10).on_message(callback)
    bench.send(b"slow")
    wait_for(lambda: b"next" in seen)
    assert seen[0] == b"slow"


def awaited(test: Any) -> None:
    """Run the test with a connection that has a thread, through the asyncio client."""

    async def main() -> None:
        bench = Threaded()
        async with lakequeue.aio.Connection(bench.connection) as connection:
            await asyncio.wait_for(test(bench, connection), 30)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def bind(face: str, bench: Threaded, connection: lakequeue.aio.Connection) -> Any:
    if face == "asyncio":
        return await connection.consumer("orders", ack_mode="auto", max_backlog=9)
    return bench.consumer(ack_mode="auto", backlog=9)


def test_C4_with_asyncio_sys_exit_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    bench = Threaded()

    async def main() -> None:
        connection = lakequeue.aio.Connection(bench.connection)
        consumer = await connection.consumer("orders", ack_mode="auto", max_backlog=9)
        consumer.on_message(Failing(SystemExit("cannot go on"), once=True))
        await connection.producer().send("orders", b"{}")
        await asyncio.sleep(10)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    wait_for(lambda: bench.seen()["canceled"] == 1)
    assert "SystemExit: cannot go on" in caplog.text


def test_C4_a_coroutine_that_is_cancelled_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    work = Failing(asyncio.CancelledError(), once=True)

    async def call(message: Any) -> None:
        work(message)

    async def test(bench: Threaded, connection: lakequeue.aio.Connection) -> None:
        (await bind("asyncio", bench, connection)).on_message(call)
        for _ in range(3):
            await connection.producer().send("orders", b"{}")
        await until(lambda: len(work.seen) == 4)

    awaited(test)
    assert sorted(work.seen) == [("1", 1), ("1", 2), ("2", 1), ("3", 1)]
    assert "CancelledError" in caplog.text


def test_C4_a_message_whose_task_never_ran_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is canceled before it begins: the callback did not get the message."""
    seen, canceled, create = list[Any](), list[Any](), asyncio.create_task

    def create_canceled(coroutine: Any) -> Any:
        task = create(coroutine)
        if coroutine.__name__ == "_one" and not canceled:
            canceled.append(task.cancel())
        return task

    async def test(bench: Threaded, connection: lakequeue.aio.Connection) -> None:
        monkeypatch.setattr(asyncio, "create_task", create_canceled)
        (await bind("asyncio", bench, connection)).on_message(seen.append)
        await connection.producer().send("orders", b"{}")
        await until(lambda: bench.seen()["acknowledged"] == 1)

    awaited(test)
    assert [message.delivery_count for message in seen] == [1]


@pytest.mark.parametrize("moment", ["taken", "failed", "canceled"])
def test_C4_dups_ok_acknowledges_no_message_that_its_callback_failed_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Its interval may end at any moment: over Kafka another thread looks after it."""
    work, options = Failing(once=True), {"dups_ok_count": 0, "dups_ok_interval": "1s"}
    consumer = bench.consumer(ack_mode="dups_ok", **options)
    of, name = {
        "taken": (consumer._leases, "begun"), "failed": (callbacks.log, "error"),
        "canceled": (Message, "cancel"),
    }[moment]  # fmt: skip
    really = getattr(of, name)

    def late(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        bench.engine.now += 5_000
        bench.connection.upkeep()
        if moment == "canceled":
            raise NotConnected("Kafka is away")
        return really(*given, **options)

    bench.send()
    monkeypatch.setattr(of, name, late)
    with suppress(NotConnected):
        consumer.on_message(work)
    bench.advance("5s")
    assert work.seen == [("1", 1), ("1", 2)]


def test_C4_callbacks_of_threads_do_not_overlap(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On memory:// each thread that runs the engine may call it."""
    at_work, most, ident, both = list[int](), list[int](), threading.get_ident, threading.Barrier(2)

    def together() -> int:
        with suppress(threading.BrokenBarrierError):  # it is broken once one is alone
            both.wait(1)
        return ident()

    def work(_: Any) -> None:
        at_work.append(1)
        time.sleep(0.05)  # the other thread's turn
        most.append(len(at_work))
        at_work.pop()

    bench.consumer(ack_mode="auto").on_message(work)
    producer = MemoryConnection(bench.engine, "default", "other").producer()
    for _ in range(2):
        producer.send("orders", b"{}")
    with monkeypatch.context() as patch:
        threads = [threading.Thread(target=bench.connection.attend) for _ in range(2)]
        patch.setattr(callbacks, "threading", SimpleNamespace(get_ident=together))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert most == [1, 1]


def test_C4_a_failing_coroutine_is_not_called_in_a_busy_loop() -> None:
    work = Failing()

    async def call(message: Any) -> None:
        work(message)

    async def main() -> None:
        async with await lakequeue.aio.connect("memory://") as connection:
            await connection.admin().define({"name": "orders", "message_type": "json"})
            consumer = await connection.consumer("orders", ack_mode="auto")
            consumer.on_message(call)
            await connection.producer().send("orders", b"{}")
            for calls in ([("1", 1)], [("1", 1), ("1", 2)]):
                await until(lambda calls=calls: len(work.seen) >= len(calls))
                for _ in range(20):
                    await asyncio.sleep(0.001)
                assert work.seen == calls
                connection.sync.advance("1s")

    asyncio.run(main())


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C4_a_message_that_always_fails_pauses_and_delays_no_other(face: str) -> None:
    """It comes again at once, so without pauses it would use a whole core. A new callback, which
    may succeed, gets it at once."""
    work, times = Failing(), list[float]()

    def timed(message: Any) -> None:
        times.append(time.monotonic())
        work(message)

    async def test(bench: Threaded, connection: lakequeue.aio.Connection) -> None:
        consumer = await bind(face, bench, connection)
        consumer.on_message(timed)
        await connection.producer().send("orders", b"{}")
        await until(lambda: len(work.seen) >= 6)
        pauses = [after - before for before, after in itertools.pairwise(times)]
        assert all(map(operator.ge, pauses, (0, 0.010, 0.020, 0.040, 0.080)))
        assert work.seen[:6] == [("1", count) for count in range(1, 7)]
        for _ in range(3):
            await connection.producer().send("orders", b"{}")
        await until(lambda: {"2", "3", "4"} <= dict(work.seen).keys())
        work.healed = True
        consumer.on_message(work)
        await until(lambda: bench.seen()["acknowledged"] == 4)

    awaited(test)


class Refusing(Wire):
    """Kafka's library reports once, while it takes an ack, that an earlier record is lost."""

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        super().command(topic, key, value, partition)
        if b'"command":"cancel"' in value:
            raise NotConnected("a record was lost")


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C4_an_unsendable_command_ends_no_consumer(face: str) -> None:
    bench, work = Threaded(Refusing), Failing(once=True)

    async def main() -> None:
        async with lakequeue.aio.Connection(bench.connection) as connection:
            (await bind(face, bench, connection)).on_message(work)
            for _ in range(3):
                await connection.producer().send("orders", b"{}")
            await until(lambda: "3" in dict(work.seen))

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_C4_a_second_callback_replaces_the_first(face: str) -> None:
    """And only one message at a time is in work."""
    seen: list[str] = []
    at_work: list[int] = []

    def work(who: str) -> Callable[[Any], Any]:
        def begin() -> None:
            at_work.append(1)
            seen.append(f"{who} {len(at_work)}")

        async def coroutine(_: Any) -> None:
            begin()
            await asyncio.sleep(0.01)
            at_work.pop()

        def called(_: Any) -> None:
            begin()
            time.sleep(0.01)
            at_work.pop()

        return coroutine if face == "asyncio" else called

    async def test(bench: Threaded, connection: lakequeue.aio.Connection) -> None:
        consumer = await bind(face, bench, connection)
        consumer.on_message(work("old"))
        producer = connection.producer()
        await producer.send("orders", b"{}")
        await until(lambda: bool(seen))
        consumer.on_message(work("new"))
        await asyncio.gather(*(producer.send("orders", b"{}") for _ in range(8)))
        await until(lambda: len(seen) == 9)
        assert seen == ["old 1", *["new 1"] * 8]

    awaited(test)
