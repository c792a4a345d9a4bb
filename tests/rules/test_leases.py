"""L1, L4, L8, L13: tests of leases that need more than a text table. See also scenarios/leases.txt
and scenarios/engine/leases.txt."""

import datetime as dt

from rules.harness import Bench, drain


def test_L1_a_message_arrives_with_all_its_fields(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(b'{"n": 1}', headers={"k": "v"}, key="a", priority=7)
    (message,) = drain(consumer)
    assert message.headers["k"] in ("v", b"v")
    assert (message.payload, message.queue, message.priority) == (b'{"n": 1}', "orders", 7)
    assert (message.delivery_count, message.redelivered, message.is_barrier) == (1, False, False)


def test_L1_the_payload_may_be_any_bytes(empty: Bench) -> None:
    empty.define(message_type="binary", max_per_subscription_backlog=9)
    consumer = empty.consumer()
    payloads = [b"", b"\x00", bytes(range(256)), b"\xff" * 100_000]
    for payload in payloads:
        empty.send(payload)
    assert [m.payload for m in drain(consumer)] == payloads


def test_L4_a_delivery_names_the_end_of_its_lease(empty: Bench) -> None:
    empty.define(lease_period="30s")
    consumer = empty.consumer()
    empty.send()
    (message,) = drain(consumer)
    assert message.lease_expires_at - empty.connection.now() == dt.timedelta(seconds=30)


def test_L4_many_periods_in_one_advance(empty: Bench) -> None:
    """Each deadline in between is met in its turn: five leases end in five seconds."""
    empty.define(lease_period="1s", max_deliveries=5)
    empty.consumer().on_message(lambda _: None)
    empty.send()
    empty.advance("4999ms")
    assert empty.seen()["redelivered"] == 4
    empty.advance("1ms")
    seen = empty.seen()
    assert (seen["depth"], seen["expired"], seen["redelivered"]) == (0, 1, 4)
