"""C3, C4, C6, C7 and L13. See also scenarios/expiry_and_spool.txt and leases.txt."""

import pytest
from lakequeue.protocol import commands
from rules.harness import ON_REFERENCE, Bench, drain, ids


@pytest.mark.skipif(ON_REFERENCE, reason="the naive model reads no commands")
@pytest.mark.parametrize("sign", ["a heartbeat", "one more consumer"])
def test_C3_a_timeout_that_is_shortened_counts_from_the_next_sign_of_life(
    bench: Bench, sign: str
) -> None:
    """Not from when the session would have been lost before."""

    def bind(name: str) -> None:
        inbox = commands.Inbox("default.deliveries")
        bench.connection.request(
            commands.Subscribe(queue="orders", subscription=name, session="mine", inbox=inbox)
        )

    bind("a")
    bench.send()
    assert bench.seen()["leased"] == 1
    shorter = commands.Configure(system={"heartbeat_timeout": "1s"})
    bench.engine.instruct("default", commands.encode_command(shorter))
    if sign == "a heartbeat":
        bench.connection.command(commands.Heartbeat(session="mine"))
    else:
        bind("b")
    bench.advance("1001ms")
    assert (bench.seen()["leased"], bench.seen()["consumers"]) == (0, [])


def test_C3_who_lives_is_not_timed_out(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.advance("10m")
    bench.send()
    assert len(drain(consumer)) == 1


def test_C4_client_does_not_touch_the_leases_of_others(empty: Bench) -> None:
    empty.define(fairness_model="round-robin", max_per_subscription_backlog=9)
    first = empty.consumer(name="a", ack_mode="client")
    second = empty.consumer(name="b", ack_mode="client")
    for n in range(6):
        empty.send({"n": n})
    drain(first)[2].ack()
    assert ids(empty.admin.browse("orders")) == ["2", "4", "6"]
    assert ids(drain(second)) == ["2", "4", "6"]


def test_C4_client_leaves_out_the_canceled_and_the_rejected(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="client")
    for n in range(4):
        bench.send({"n": n})
    messages = drain(consumer)
    messages[0].cancel(delay="1h")
    messages[1].reject(reason="broken")
    messages[3].ack()
    seen = bench.seen()
    assert (seen["acknowledged"], seen["delayed"], seen["depth"]) == (2, 1, 1)


def test_C4_client_leaves_out_the_canceled_that_came_back(bench: Bench) -> None:
    """Its new delivery is later than the one that is acknowledged."""
    consumer = bench.consumer(ack_mode="client")
    for n in range(3):
        bench.send({"n": n})
    messages = drain(consumer)
    messages[0].cancel()
    (again,) = drain(consumer)
    assert (again.id, again.delivery_count) == ("1", 2)
    messages[2].ack()
    assert ids(bench.admin.browse("orders")) == ["1"]
    again.ack()
    assert bench.seen()["depth"] == 0


def test_C6_prefetch_is_the_backlog(bench: Bench) -> None:
    consumer = bench.consumer(backlog=4)
    for n in range(10):
        bench.send({"n": n})
    for left in range(10, 0, -1):
        assert bench.seen()["leased"] == min(4, left)
        consumer.receive(timeout=0).ack()


def test_C7_rejected_without_a_dead_message_queue_is_discarded(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send()
    consumer.receive(timeout=0).reject(reason="no such customer")
    assert bench.seen()["depth"] == 0
    assert drain(consumer) == []


def test_C4_the_iterator_hands_over_what_is_there(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    if ON_REFERENCE:
        pytest.skip("the naive model has no iterator")
    sent = [bench.send({"n": n}) for n in range(3)]
    got = []
    for message in consumer:
        got.append(message.id)
        if len(got) == 3:
            break
    assert got == sent
