"""C4 on memory: a callback that always fails keeps no test for ever; its traceback is seen."""

import asyncio
import logging
from typing import Any

import lakequeue.aio
import pytest
from rules.harness import Bench


class Failing:
    """A callback that raises until it is healed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.healed = False

    def __call__(self, message: Any) -> None:
        self.seen.append((message.id, message.delivery_count))
        if not self.healed and message.id == "1":
            raise ValueError("a mistake of the application")


def test_C4_on_message_returns_though_the_callback_fails(bench: Bench) -> None:
    """And what is behind the failing message is not held up by it."""
    for n in range(3):
        bench.send({"n": n})
    work = Failing()
    bench.consumer(ack_mode="auto").on_message(work)
    assert work.seen == [("1", 1), ("2", 1), ("3", 1)]
    assert (bench.seen()["acknowledged"], bench.seen()["canceled"]) == (2, 1)
    bench.send({"n": 3})
    assert work.seen[3:] == [("4", 1)], "no time has passed"


def test_C4_it_comes_again_when_the_clock_moves(bench: Bench) -> None:
    bench.send()
    work = Failing()
    bench.consumer(ack_mode="auto").on_message(work)
    bench.advance("1ms")
    assert work.seen == [("1", 1), ("1", 2)]
    work.healed = True
    bench.advance("1ms")
    assert work.seen == [("1", 1), ("1", 2), ("1", 3)]
    assert bench.seen()["acknowledged"] == 1


def test_C4_or_when_on_message_is_called_again(bench: Bench) -> None:
    """With another callback, which takes the place of the first."""
    bench.send()
    consumer, work, other = bench.consumer(ack_mode="auto"), Failing(), Failing()
    consumer.on_message(work)
    other.healed = True
    consumer.on_message(other)
    assert (work.seen, other.seen) == ([("1", 1)], [("1", 2)])
    bench.send()
    assert (work.seen, other.seen) == ([("1", 1)], [("1", 2), ("2", 1)])


def test_C4_two_consumers_that_both_fail_do_not_pass_it_to_and_fro(bench: Bench) -> None:
    bench.send()
    first, second = Failing(), Failing()
    bench.consumer(ack_mode="auto", name="a").on_message(first)
    bench.consumer(ack_mode="auto", name="b").on_message(second)
    bench.advance("0s")
    assert len(first.seen) + len(second.seen) <= 2


def test_C4_receive_gives_it_all_the_same(bench: Bench) -> None:
    bench.send()
    consumer = bench.consumer(ack_mode="auto")
    consumer.on_message(Failing())
    assert consumer.receive(timeout=0).delivery_count == 2


@pytest.mark.parametrize("mode", ["auto", "dups_ok", "client", "individual", "pre_ack", "no_ack"])
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


def test_C4_a_coroutine_that_fails_is_not_called_again_and_again() -> None:
    work = Failing()

    async def call(message: Any) -> None:
        work(message)

    async def main() -> None:
        async with await lakequeue.aio.connect("memory://") as connection:
            await connection.admin().define({"name": "orders", "message_type": "json"})
            consumer = await connection.consumer("orders", ack_mode="auto")
            consumer.on_message(call)
            await connection.producer().send("orders", b"{}")
            await asyncio.sleep(0.1)
            assert work.seen == [("1", 1)]
            connection.sync.advance("1s")
            await asyncio.sleep(0.1)
            assert work.seen == [("1", 1), ("1", 2)]

    asyncio.run(main())
