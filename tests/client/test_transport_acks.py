"""C1, C2: arrivals are confirmed, missing deliveries are repeated, and none is seen twice."""

import random
import time
from typing import Any

import pytest
from client.threaded import Threaded, wait_for
from lakequeue.client.consumer import prefetch
from lakequeue.client.consumer.consumer import Consumer
from lakequeue.client.consumer.prefetch import FlowArrivals
from lakequeue.client.session.transport import Record
from lakequeue.protocol import commands, wire
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state.rules.transport_acks import WAIT_MS
from rules.harness import Bench, drain

INBOX = "default.deliveries"


class Plain:
    """A client on the wire: it sees each record, and confirms when the test tells it to."""

    def __init__(self, bench: Bench, **more: Any) -> None:
        self.bench, self._box = bench, bench.engine.open_inbox(INBOX)
        options = {"transport_acks": True, "framing": "batch", "max_backlog": 100} | more
        self.command(commands.Subscribe, inbox=commands.Inbox(INBOX), **options)

    def command(self, kind: Any, **fields: Any) -> None:
        command = kind(queue="orders", subscription="s", **fields)
        if kind is commands.Subscribe:
            self.bench.connection.request(command)
        else:
            self.bench.connection.command(command)

    def records(self) -> list[Deliveries]:
        """The records since the last call."""
        found = []
        while self._box:
            record = self._box.popleft()
            if record.key == b"s" and record.value[:1] == b"\0":
                found.append(wire.decode_batch(record.value))
        return found

    def say(self, received: int) -> None:
        self.command(commands.TransportAck, received=received)

    def again_within(self, duration: str) -> list[int]:
        """The ids of deliveries within this time; earlier ones are skipped."""
        self.records()
        self.bench.advance(duration)
        return [i for record in self.records() for i in record.ids]


@pytest.fixture
def client(bench: Bench) -> Plain:
    return Plain(bench)


def test_C2_an_unconfirmed_delivery_is_repeated_after_2_s(bench: Bench, client: Plain) -> None:
    bench.send()
    (first,) = client.records()
    assert (first.flow, first.again) == ([1, 1], False)
    bench.advance(f"{WAIT_MS - 1}ms")
    assert client.records() == []
    bench.advance("1ms")
    (again,) = client.records()
    assert (again.flow, again.again) == ([2, 2], True)
    assert (again.ids, again.numbers, again.counts) == (first.ids, first.numbers, first.counts)
    seen = bench.seen()
    assert (seen["delivered"], seen["redelivered"]) == (1, 0)
    assert seen["counters"]["retransmitted"] == 1
    assert WAIT_MS == 2_000


def test_C2_confirmed_deliveries_are_not_repeated(bench: Bench, client: Plain) -> None:
    """Cumulative: one number for all up to it; only the others are repeated."""
    for n in range(3):
        bench.send({"n": n})
        bench.advance("100ms")
    client.say(2)
    assert set(client.again_within("1m")) == {3}


def test_C1_a_transport_ack_removes_nothing(bench: Bench, client: Plain) -> None:
    bench.send()
    client.say(1)
    assert client.again_within("1h") == []
    assert (bench.seen()["depth"], bench.seen()["leased"]) == (1, 1)


def test_C1_an_applications_ack_carries_the_transport_ack(bench: Bench, client: Plain) -> None:
    for n in range(3):
        bench.send({"n": n})
    client.command(commands.Ack, ids="2", received=3)
    assert client.again_within("1m") == []


def test_C2_each_repetition_waits_twice_as_long(bench: Bench, client: Plain) -> None:
    bench.send()
    waits = []
    for _ in range(6):
        waits.append(1)
        while not client.again_within("1s"):
            waits[-1] += 1
    assert waits == [2, 4, 8, 16, 32, 60]


def test_C2_a_slow_engine_repeats_later(bench: Bench, client: Plain) -> None:
    """It waits twice the time of the last confirmation."""
    bench.send()
    bench.advance("1900ms")
    client.say(1)
    bench.send()
    assert client.again_within("3799ms") == []
    assert client.again_within("1ms") == [2]


def test_C2_only_leased_messages_are_repeated(empty: Bench) -> None:
    """Acknowledged, canceled, expired or taken by another: such a message is not repeated."""
    empty.define(max_per_subscription_backlog=100, max_cancels=9)
    client = Plain(empty)
    for n in range(4):
        empty.send({"n": n}, **({"ttl": "1s"} if n == 2 else {}))
    client.command(commands.Ack, ids="1")
    client.command(commands.Cancel, ids="2", delay_ms=3_600_000)
    assert client.again_within("2s") == [4]


def test_C2_a_repetition_keeps_the_lease(empty: Bench) -> None:
    empty.define(lease_period="3s", max_per_subscription_backlog=100)
    client = Plain(empty)
    empty.send()
    empty.advance("500ms")
    empty.send()
    first, second = client.records()
    empty.advance("1500ms")
    again = client.records()
    assert second.lease_ms == first.lease_ms
    assert [(r.ids, r.lease_ms) for r in again] == [
        ([1], first.lease_ms - 2000), ([2], second.lease_ms - 1500),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("queue", "options"),
    [
        pytest.param({}, {"transport_acks": False}, id="a plain Kafka client asks for nothing"),
        pytest.param({}, {"acks": "none"}, id="L2 leaves on send: no_ack"),
        pytest.param({"semantics": "at-most-once"}, {}, id="L2 leaves on send: at-most-once"),
        pytest.param({"barrier_expression": "/b = 1"}, {}, id="O3 a barrier"),
    ],
)
def test_C2_L2_O3_deliveries_that_are_never_repeated(
    empty: Bench, queue: dict[str, Any], options: dict[str, Any]
) -> None:
    empty.define(max_per_subscription_backlog=100, **queue)
    client = Plain(empty, **options)
    empty.send({"b": 1})
    (record,) = client.records()
    assert record.flow is None
    assert record.barrier == ("barrier_expression" in queue)
    assert client.again_within("1m") == []


def test_C2_the_entries_are_bounded() -> None:
    """Nothing per message, and little per step: the state is hardly larger than for a consumer
    without transport acks."""
    sizes = []
    for acks in (True, False):
        bench = Bench()
        bench.define(max_per_subscription_backlog=100)
        client = Plain(bench, transport_acks=acks)
        for n in range(60):
            bench.send({"n": n})
            bench.advance("10ms")
        sizes.append(len(bench.engine.dump()))
        assert client.again_within("2s") == (list(range(1, 61)) if acks else [])
    assert sizes[0] < sizes[1] + 400


# ---------------------------------------------------------------- the client


def take(arrivals: FlowArrivals, base: int, first: int, count: int, now: float = 0) -> int:
    arrivals.take((base, first), count, now)
    return arrivals.take_report()


def test_C1_arrivals_are_cumulative_and_stop_at_a_gap() -> None:
    arrivals = FlowArrivals(60, "1s", 0)
    assert take(arrivals, 1, 1, 10) == 10
    assert take(arrivals, 1, 1, 10) == 0  # the same once more
    assert take(arrivals, 1, 21, 5) == 0  # 11 to 20 are missing
    assert take(arrivals, 1, 11, 10) == 20
    assert take(arrivals, 26, 26, 15) == 40  # repeated from 26 on; 21 to 25 are missing
    assert take(arrivals, 41, 44, 2) == 0  # the repetitions from 41 on are missing
    assert take(arrivals, 41, 41, 3) == 43


def test_C1_at_60_percent_of_the_window_or_after_1_s() -> None:
    arrivals = FlowArrivals(60, "1s", 0)
    arrivals.take((1, 1), 5, 1000.0)
    assert arrivals.due_at(10) == 2000
    arrivals.take((1, 6), 1, 1500.0)
    assert arrivals.due_at(10) == 1000
    assert arrivals.take_report() == 6
    assert arrivals.due_at(10) is None


def test_C1_one_small_command_for_many_messages() -> None:
    bench = Threaded()
    started = time.monotonic()
    bench.consumer(backlog=1000)
    for _ in range(200):
        bench.producer.send_async("orders", b"{}")
    bench.producer.flush(30)
    wait_for(lambda: [c["received"] for c in bench.wire.said("transport_ack")][-1:] == [200])
    assert len(bench.wire.said("transport_ack")) <= 2 + time.monotonic() - started


def test_C1_quick_acks_need_no_extra_transport_ack() -> None:
    bench = Threaded()
    consumer = bench.consumer(backlog=1)
    for _ in range(50):
        bench.send()
        consumer.receive(timeout=10).ack()
    wait_for(lambda: bench.seen()["depth"] == 0)
    assert len(bench.wire.said("transport_ack")) <= 5
    assert bench.wire.said("ack")[-1]["received"] == 50


@pytest.mark.parametrize("seed", range(2))
def test_C2_lost_deliveries_are_repeated_and_none_is_seen_twice(seed: int) -> None:
    """Records of deliveries are lost at random; each delivery is seen exactly once all the same."""
    chance = random.Random(seed)
    bench = Threaded(system={"heartbeat_timeout": "1d"}, max_per_subscription_backlog=20)
    consumer = bench.consumer(backlog=20)

    def lost(record: Any) -> bool:
        return (record.key or b"").decode() == consumer.subscription and chance.random() < 0.4

    bench.wire.lose_received = lost
    for n in range(60):
        bench.producer.send_async("orders", b'{"n": %d}' % n)
    seen: list[str] = []
    for _ in range(1_000):
        for message in consumer.receive_many(50, timeout=0.002):
            seen.append(message.id)
            if chance.random() < 0.8 or message.delivery_count > 1:
                message.ack()
            else:
                seen.remove(message.id)
                message.cancel()
        if len(seen) == 60:
            break
        # the engine's time runs faster than the client's, which does not matter
        bench.advance("500ms")
    assert sorted(map(int, seen)) == list(range(1, 61))
    assert bench.seen()["counters"]["retransmitted"] > 0


def test_C2_a_long_held_message_is_not_seen_twice(bench: Bench) -> None:
    """Even after the memory of seen deliveries has moved past it."""
    consumer = bench.consumer(backlog=10)
    bench.send()
    (message,) = drain(consumer)
    consumer._prefetch._seen.clear()
    comes_again(consumer, 1)
    assert drain(consumer) == []
    message.ack()
    assert bench.seen()["depth"] == 0


def test_C2_a_larger_backlog_has_a_longer_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the number of messages that may wait here unread."""
    monkeypatch.setattr(prefetch, "SEEN_MAX", 1)
    consumer = bench.consumer(backlog=1)
    consumer.set_max_backlog(10)
    for n in range(9):
        bench.send({"n": n})
    comes_again(consumer, 9)
    assert len(drain(consumer)) == 9


def comes_again(consumer: Consumer, count: int) -> None:
    """The engine repeats its first deliveries."""
    again = Deliveries("orders", consumer.subscription, "", 0, "batch", 0, again=True)
    again.ids = again.numbers = list(range(1, count + 1))
    again.counts, again.payloads, again.flow = [1] * count, [b"{}"] * count, (count + 1, count + 1)
    again.priorities = again.expires = again.times = [0] * count
    again.keys = again.headers = [None] * count
    (record,) = wire.encode([again])
    consumer.on_record(Record(INBOX, 0, 9, 0, record.key, record.value, []))
