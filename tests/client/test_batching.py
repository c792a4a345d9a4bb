"""Several messages in a record, from the producer's side: when they are sent, and which together.

The engine behind them works as in the job.
"""

import itertools
import threading
from contextlib import suppress
from typing import Any

import pytest
from client.threaded import CtrlC, Slow, Threaded, connect, engine, wait_for
from lakequeue.client.producer.window import RUN_BYTES
from lakequeue.protocol.messages import RUN_MAX
from rules.harness import Bench


@pytest.fixture
def slow() -> Threaded:
    return Threaded(Slow, message_type="binary")


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def send_async(producer: Any, payloads: list[bytes], **options: Any) -> list[Any]:
    return [producer.send_async("orders", payload, **options) for payload in payloads]


def test_messages_gather_while_a_record_is_in_flight(slow: Threaded) -> None:
    """A single message is sent at once, without waiting for others."""
    wire = slow.wire
    send_async(slow.producer, numbers(0, 4))
    assert wire.sizes == [1]
    wire.acked()
    wait_for(lambda: wire.sizes == [1, 3])
    send_async(slow.producer, [b"4"])
    assert wire.sizes == [1, 3]
    wire.acked()
    wait_for(lambda: wire.sizes == [1, 3, 1])
    wire.acked()
    send_async(slow.producer, [b"5"])
    assert wire.sizes == [1, 3, 1, 1]
    assert slow.stored() == numbers(0, 6)


def test_a_full_run_is_sent_and_the_rest_with_flush(slow: Threaded) -> None:
    payloads = numbers(0, 1 + 2 * RUN_MAX + 3)
    sent = send_async(slow.producer, payloads)
    assert slow.wire.sizes == [1, RUN_MAX, RUN_MAX]
    slow.producer.flush(10)
    assert slow.wire.sizes == [1, RUN_MAX, RUN_MAX, 3]
    assert [f.result().message_id for f in sent] == [str(n + 1) for n in range(len(sent))]
    assert slow.stored() == payloads


@pytest.mark.parametrize("how", ["send", "ack_immediately", "close", "window"])
def test_a_message_with_a_waiting_sender_is_sent_at_once(slow: Threaded, how: str) -> None:
    producer = slow.connection.producer(window=3, pub_ack_time="1m")
    send_async(producer, [b"first", b"a"])
    assert slow.wire.sizes == [1]
    if how == "send":
        assert producer.send("orders", b"b").sequence == 3
    else:
        send_async(producer, [b"b"], ack_immediately=how == "ack_immediately")
    if how == "window":
        send_async(producer, [b"c"])
    if how == "close":
        producer.close()
    assert slow.wire.sizes[:2] == [1, 2]
    assert slow.stored()[:3] == [b"first", b"a", b"b"]


def test_only_messages_that_differ_in_their_payload_share_a_record(slow: Threaded) -> None:
    """The order is kept: a message that cannot join a run is sent after it. A run has a limit in
    bytes."""
    send_async(slow.producer, [b"first"])
    for options in ({}, {}, {"priority": 7}, {"priority": 7}, {"ttl": "1h"}, {"key": "k"}, {},
                    {"headers": {"a": "b"}}, {}, {}):  # fmt: skip
        send_async(slow.producer, [b"x"], **options)
    send_async(slow.producer, [b"x" * RUN_BYTES])
    send_async(slow.producer, [b"x" * (RUN_BYTES // 2)] * 5)
    slow.producer.flush(10)
    assert slow.wire.sizes == [1, 2, 2, 1, 1, 1, 1, 2, 1, 2, 2, 1]
    assert max(map(len, slow.wire.published)) <= RUN_BYTES + 4 * 2
    seen = slow.admin.browse("orders", limit=100)
    assert [int(m.id) for m in seen] == list(range(1, 18))


def test_not_acknowledged_messages_are_gathered_too(slow: Threaded) -> None:
    producer = slow.connection.producer(delivery_mode="non_persistent")
    send_async(producer, numbers(0, 1 + RUN_MAX))
    assert slow.wire.sizes == [1, RUN_MAX]
    assert slow.stored() == numbers(0, 1 + RUN_MAX)


def test_P2_a_lost_run_is_repeated_message_by_message(slow: Threaded) -> None:
    """Some of its messages may have been confirmed, so each is sent under its own sequence."""
    producer = slow.connection.producer(pub_ack_time="100ms")
    lost = iter([False, True])
    slow.wire.lose_published = lambda _: next(lost, False)
    payloads = numbers(0, 1 + RUN_MAX)
    sent = send_async(producer, payloads)
    producer.flush(30)
    assert slow.wire.sizes[:2] == [1, RUN_MAX]
    assert set(slow.wire.sizes[2:]) == {1}
    assert len({f.result().message_id for f in sent}) == 1 + RUN_MAX
    assert sorted(slow.stored()) == payloads


def test_ctrl_c_in_send_delays_no_later_message(bench: Bench) -> None:
    """At whatever moment: they waited for a record that was no more on its way."""
    producer = bench.connection.producer(delivery_mode="non_persistent")
    for nth in itertools.count(1):
        moment = CtrlC(nth, "/client/producer/")
        with suppress(KeyboardInterrupt), moment:
            producer.send_async("orders", b"{}")
        before = bench.seen()["depth"]
        producer.send_async("orders", b"{}")
        assert bench.seen()["depth"] > before, f"interrupted at moment {nth}"
        if moment.left > 0:
            break
    assert nth > 20


def test_several_threads_lose_nothing() -> None:
    bench = Threaded()
    threads = [
        threading.Thread(
            target=send_async, args=(bench.producer, [b"%d %d" % (name, n) for n in range(100)])
        )
        for name in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.producer.flush(30)
    seen = bench.stored()
    assert len(seen) == len(set(seen)) == 400
    for name in range(4):
        own = [int(p.split()[1]) for p in seen if p.startswith(b"%d " % name)]
        assert own == list(range(100)), "a thread's messages changed their order"


def test_a_forgotten_connection_leaves_no_thread() -> None:
    connection, _ = connect(engine(), "forgotten")

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if "forgotten" in t.name]

    assert len(threads()) == 2
    del connection
    wait_for(lambda: not threads())
