"""P2, P5, P6, P7 from the producer's side: records lost in transit, and the producer's knowledge of
them."""

import inspect
import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from client.threaded import Threaded, connect, told_in_a_thread, wait_for
from lakequeue.client.producer.producer import Producer
from lakequeue.client.producer.window import Window
from lakequeue.protocol import ConfigError, NotConnected, Timeout, WindowFull
from rules.harness import Bench, drain


def test_P2_a_message_is_repeated_after_pub_ack_time_and_stored_once() -> None:
    """A message is lost in transit to the engine, another's receipt on the way back."""
    bench = Threaded()
    wire, producer = bench.wire, bench.connection.producer(pub_ack_time="300ms")
    lost = iter([True])
    wire.lose_published = lambda value: value == b'"b"' and next(lost, False)
    started = time.monotonic()
    assert producer.send("orders", b'"a"').sequence == 1
    assert producer.send("orders", b'"b"').sequence == 2
    assert time.monotonic() - started >= 0.3
    receipts = iter([True])
    wire.lose_received = lambda record: wire.lose_receipts(record) and next(receipts, False)
    assert producer.send("orders", b'"c"').message_id == "3"
    assert wire.published == [b'"a"', b'"b"', b'"b"', b'"c"', b'"c"']
    assert bench.stored() == [b'"a"', b'"b"', b'"c"']


def test_P2_P1_with_half_of_the_records_lost_nothing_is_lost_or_doubled() -> None:
    bench = Threaded()
    wire, producer = bench.wire, bench.connection.producer(window=50, pub_ack_time="50ms")
    chance = random.Random(1)
    wire.lose_published = lambda _: chance.random() < 0.5
    wire.lose_received = lambda record: wire.lose_receipts(record) and chance.random() < 0.3
    futures = [producer.send_async("orders", b"%d" % n) for n in range(100)]
    producer.flush(60)
    ids = [f.result().message_id for f in futures]
    known = [i for i in ids if i is not None]  # of the newest 64 ranges: see P1
    assert len(set(known)) == len(known) >= 64
    assert sorted(map(int, bench.stored())) == list(range(100))


def test_P2_many_lost_records_are_repeated_in_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka loses a whole window. One message in each round would take a window of 5,000 hours."""
    bench = Threaded()
    wire, producer = bench.wire, bench.connection.producer(window=100, pub_ack_time="200ms")
    producer.send("orders", b"first")
    retransmit, rounds = Window.retransmit, []

    def counted(window: Window, now_s: float) -> None:
        before = len(wire.published)
        retransmit(window, now_s)
        rounds.extend([1] * (len(wire.published) > before))

    monkeypatch.setattr(Window, "retransmit", counted)
    wire.lose_published = lambda _: True
    futures = [producer.send_async("orders", b"%d" % n, key=b"k") for n in range(100)]
    wire.lose_published = lambda _: False
    producer.flush(60)
    assert len(rounds) <= 20, "1, 2, 4 … messages; a machine that answers late needs some more"
    assert bench.stored() == [b"first"] + [b"%d" % n for n in range(100)]
    assert [f.result().sequence for f in futures] == list(range(2, 102))


# ---------------------------------------------------------------- the window


@pytest.mark.parametrize("on_full", ["wait", "raise"])
def test_P5_send_waits_while_the_window_is_full_or_raises_by_choice(on_full: str) -> None:
    bench = Threaded()
    options = {"on_full": "raise"} if on_full == "raise" else {}
    producer = bench.connection.producer(window=3, **options)
    bench.wire.lose_received = bench.wire.lose_receipts
    for _ in range(3):
        producer.send_async("orders", b"{}")
    if on_full == "wait":
        sending, _ = told_in_a_thread(lambda: producer.send_async("orders", b"{}"), 0.3)
    else:
        for send in (producer.send_async, producer.send):
            with pytest.raises(WindowFull, match="3 messages are without an answer"):
                send("orders", b"{}")
    assert len(producer.unacknowledged()) == 3
    bench.wire.lose_received = lambda _: False
    producer.retransmit(time.monotonic() + 60)
    if on_full == "wait":
        sending.join(60)
        assert not sending.is_alive()
    producer.flush(10)
    assert producer.send("orders", b"{}").sequence == (5 if on_full == "wait" else 4)


def test_P5_the_window_is_shared_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer made room for every waiting thread."""
    bench = Threaded()
    producer, number, in_flight = bench.connection.producer(window=2), Window.number, []

    def counted(window: Window, *sent: Any) -> None:
        number(window, *sent)
        in_flight.append(len(window))

    def send() -> None:
        for _ in range(100):
            producer.send_async("orders", b"{}")

    monkeypatch.setattr(Window, "number", counted)
    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    producer.flush(10)
    assert (len(in_flight), max(in_flight)) == (1_600, 2)


def test_P5_messages_without_acknowledgement_do_not_fill_the_window() -> None:
    """P6: NON_PERSISTENT has no answer to wait for."""
    bench = Threaded()
    options = {"on_full": "raise", "delivery_mode": "non_persistent"}
    producer = bench.connection.producer(window=1, **options)
    for _ in range(10):
        assert producer.send("orders", b"{}").message_id is None
    assert producer.unacknowledged() == []
    wait_for(lambda: len(bench.stored()) == 10)


# ---------------------------------------------------------------- after a failure


def test_P6_unacknowledged_after_a_failure() -> None:
    """The engine is away; the producer closes; the list stays, and waiting calls get an error."""
    bench = Threaded()
    producer = bench.connection.producer(delivery_mode="persistent_groupack", group_ack=10)
    assert producer.send("orders", b'"stored"').sequence == 1
    producer.flush(10)
    bench.wire.lose_published = lambda _: True
    assert [producer.send("orders", b'"%d"' % n).sequence for n in range(3)] == [2, 3, 4]
    future = producer.send_async("orders", b'"3"')
    with pytest.raises(Timeout, match="4 messages without an answer"):
        producer.close(timeout=0.1)
    with pytest.raises(NotConnected, match="closed before the engine answered"):
        future.result(0)
    unknown = [b'"0"', b'"1"', b'"2"', b'"3"']
    assert producer.unacknowledged() == unknown
    bench.connection.close()
    assert producer.unacknowledged() == unknown
    assert bench.stored() == [b'"stored"']


def test_P6_P1_the_next_process_repeats_unacknowledged_messages() -> None:
    """The same producer id and sequences: stored messages are not stored twice."""
    bench = Threaded()
    producer = bench.connection.producer(producer_id="till-7")
    bench.wire.lose_received = bench.wire.lose_receipts
    for n in range(4):
        producer.send_async("orders", b"%d" % n)
    wait_for(lambda: len(bench.stored()) == 4)
    bench.wire.lose_published = lambda _: True
    for n in range(4, 6):
        producer.send_async("orders", b"%d" % n)
    with pytest.raises(Timeout):
        producer.close(timeout=0.1)
    bench.connection.close()
    after, _ = connect(bench.engine, "restarted")
    again = after.producer(producer_id="till-7", first_sequence=1)
    for payload in producer.unacknowledged():
        assert again.send("orders", payload).message_id
    assert bench.stored() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_P7_defaults_and_overrides(bench: Bench) -> None:
    bench.define("dead")
    bench.define("short", dead_message_queue="dead", max_per_subscription_backlog=9)
    producer = bench.connection.producer(ttl="2s", priority=7, dmq_eligible=False)
    producer.send("short", b'"defaults"')
    producer.send("short", b'"overrides"', ttl="4s", priority=1, dmq_eligible=True)
    at = bench.connection.now() + timedelta(seconds=3)
    producer.send("short", b'"later"', deliver_at=at, ttl="1h")
    first, second = drain(bench.consumer("short"))
    assert (first.priority, second.priority) == (7, 1)
    assert (second.expires_at - first.expires_at).total_seconds() == 2
    bench.advance("5s")
    assert [m.payload for m in bench.admin.browse("dead")] == [b'"overrides"']
    assert bench.seen("short")["depth"] == 1
    futures = [
        producer.send_async("short", b"{}", delivery_mode="non_persistent"),
        producer.send_async("short", b"{}", ack_immediately=True),
    ]
    assert [f.result(5).message_id is None for f in futures] == [True, False]


@pytest.mark.parametrize("wrong", ["0s", "soon"])
def test_P2_pub_ack_time_is_positive(bench: Bench, wrong: str) -> None:
    assert inspect.signature(Producer).parameters["pub_ack_time"].default == "2s"
    with pytest.raises(ConfigError, match="pub_ack_time: "):
        bench.connection.producer(pub_ack_time=wrong)


def test_a_producer_closes_with_its_block(bench: Bench) -> None:
    with bench.connection.producer() as producer:
        producer.send("orders", b"{}")
    with pytest.raises(NotConnected, match="the producer is closed"):
        producer.send("orders", b"{}")
