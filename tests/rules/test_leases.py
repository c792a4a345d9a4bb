"""L1 to L11, L13: what a text table cannot say about leases. See also scenarios/leases.txt."""

import contextlib
import datetime as dt
import time

import pytest
from lakequeue.protocol.errors import LeaseLost
from rules.harness import Bench, drain


def test_L1_a_message_is_handed_over_whole(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.producer.send("orders", b'{"n": 1}', headers={"k": "v"}, key="a", priority=7)
    message = consumer.receive(timeout=0)
    assert message.payload == b'{"n": 1}'
    headers = message.headers
    assert headers["k"] in ("v", b"v")
    assert message.queue == "orders"
    assert message.priority == 7
    assert message.delivery_count == 1
    assert not message.redelivered
    assert not message.is_barrier


def test_L1_the_payload_may_be_any_bytes(empty: Bench) -> None:
    empty.define("blobs", message_type="binary", max_per_subscription_backlog=9)
    consumer = empty.consumer("blobs")
    payloads = [b"", b"\x00", bytes(range(256)), b"\xff" * 100_000]
    for payload in payloads:
        empty.send(payload, "blobs")
    assert [m.payload for m in drain(consumer)] == payloads


def test_L4_the_consumer_is_told_when_the_lease_ends(empty: Bench) -> None:
    empty.define(lease_period="30s")
    consumer = empty.consumer()
    empty.send()
    message = consumer.receive(timeout=0)
    left = message.lease_expires_at - empty.connection.now()
    assert left == dt.timedelta(seconds=30)


def test_L4_many_periods_in_one_advance(empty: Bench) -> None:
    """Each deadline in between happens in its turn: five leases end in five seconds."""
    empty.define(lease_period="1s", max_deliveries=5)
    empty.consumer().on_message(lambda _: None)
    empty.send()
    empty.advance("4999ms")
    assert empty.seen()["redelivered"] == 4
    empty.advance("1ms")
    seen = empty.seen()
    assert (seen["depth"], seen["expired"], seen["redelivered"]) == (0, 1, 4)


def test_L8_an_ignored_ack_is_journaled(empty: Bench) -> None:
    empty.define(leasing="strict")
    empty.consumer(name="a")
    other = empty.consumer(name="b")
    message_id = empty.send()
    other.ack(ids=[message_id])
    assert "ack_ignored" in empty.events()
    assert "acknowledged" not in empty.events()


def test_L8_a_second_ack_is_journaled_and_has_no_effect(bench: Bench) -> None:
    consumer = bench.consumer()
    message_id = bench.send()
    consumer.ack(ids=[message_id])
    with contextlib.suppress(LeaseLost):
        consumer.ack(ids=[message_id])
    assert bench.events().count("acknowledged") == 1
    assert bench.seen()["acknowledged"] == 1


@pytest.mark.parametrize("text", ["2-4,3-5", "5,2-4,2", "2-5,3"])
def test_L13_an_id_that_is_named_twice_is_meant_once(bench: Bench, text: str) -> None:
    consumer = bench.consumer()
    for n in range(6):
        bench.send({"n": n})
    consumer.ack(ids=text)
    assert (bench.seen()["depth"], bench.seen()["acknowledged"]) == (2, 4)
    assert bench.admin.purge("orders", ids="6-6,1-6") == 2


def test_L8_L9_L13_a_range_of_every_kind(bench: Bench) -> None:
    """Held, gone, of another queue, and not given yet: each has what it has alone."""
    bench.define("others")
    consumer = bench.consumer(backlog=1)
    for queue in ("orders", "orders", "others", "others", "orders", "orders"):
        bench.send(queue=queue)
    consumer.ack(ids="1,5")
    consumer.ack(ids="1-8")
    assert bench.seen()["depth"] == 0
    assert bench.seen()["acknowledged"] == 4
    assert bench.events().count("ack_ignored") == 2  # 1 and 5
    assert bench.seen("others")["depth"] == 2
    drain(consumer)
    bench.send(queue="others")
    bench.send()
    bench.send()
    assert [m.id for m in drain(consumer)] == ["9"]


def test_L8_L13_many_ids_without_effect_cost_little(bench: Bench) -> None:
    """Time follows what the ranges find, not how often or how far they reach."""
    bench.define("others")
    bench.engine.checking = False
    for _ in range(1500):
        bench.send(queue="others")
    consumer = bench.consumer()
    reaching = ",".join(f"{first}-{first + 10**15}" for first in range(1, 3000))
    started = time.process_time()  # whatever else the machine does
    consumer.ack(ids=reaching)
    assert time.process_time() - started < 5  # it was minutes
    bench.engine.check()
    bench.send()
    assert bench.seen()["depth"] == 0  # within a range: an ack that came early
    assert bench.seen("others")["depth"] == 1500
