"""C3, C4, C6, C7 and L13. See also scenarios/expiry_and_spool.txt and leases.txt."""

import time
from collections.abc import Callable

import pytest
from lakequeue.protocol import commands
from rules.harness import Bench, drain, ids


def wait_for(condition: Callable[[], bool]) -> None:
    """A callback may run on a thread of the client."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.005)


def test_C3_no_lease_period_no_limit(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send()
    bench.advance("2h")
    (message,) = drain(consumer)
    message.ack()
    assert bench.seen()["acknowledged"] == 1


@pytest.mark.parametrize("mode", ["client", "individual"])
def test_C3_a_close_returns_what_is_not_acknowledged(bench: Bench, mode: str) -> None:
    with bench.consumer(ack_mode=mode, backlog=3) as consumer:
        for n in range(5):
            bench.send({"n": n})
        assert len(drain(consumer)) == 3
    assert bench.seen()["leased"] == 0
    messages = drain(bench.consumer())
    assert ids(messages) == ["1", "2", "3", "4", "5"]
    assert [m.redelivered for m in messages] == [True, True, True, False, False]


def test_C3_missed_heartbeats(bench: Bench) -> None:
    dead, alive = bench.consumer(name="a", backlog=2), bench.consumer(name="b", filter="/n < 0")
    for n in range(2):
        bench.send({"n": n})
    drain(dead)
    dead.kill()
    bench.advance("1s")
    assert bench.seen()["leased"] == 2
    bench.advance("15s")
    assert bench.seen()["leased"] == 0
    assert bench.seen()["ready"] == 2
    assert len(bench.seen()["consumers"]) == 1
    assert drain(alive) == []


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


def test_C4_auto_one_by_one(empty: Bench) -> None:
    """With a backlog of one the next arrives because the one before was acknowledged."""
    empty.define()
    consumer = empty.consumer(ack_mode="auto", backlog=1)
    sent = [empty.send({"n": n}) for n in range(5)]
    assert ids(drain(consumer)) == sent
    assert empty.seen()["acknowledged"] == 5


def test_C4_auto_acknowledges_when_the_callback_returned(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    seen: list[str] = []
    consumer.on_message(lambda message: seen.append(message.id))
    sent = [bench.send({"n": n}) for n in range(3)]
    wait_for(lambda: bench.seen()["acknowledged"] == 3)
    assert seen == sent


def test_C4_auto_cancels_when_the_callback_raised(empty: Bench) -> None:
    empty.define(max_cancels=3)
    consumer = empty.consumer(ack_mode="auto")
    counts: list[int] = []

    def fail(message) -> None:
        counts.append(message.delivery_count)
        raise ValueError("a mistake of the application")

    consumer.on_message(fail)
    empty.send()
    for _ in range(3):  # it comes again as the clock moves
        empty.advance("1s")
    wait_for(lambda: empty.seen()["expired"] == 1)
    assert counts == [1, 2, 3]
    assert empty.seen()["canceled"] == 3
    assert empty.seen()["acknowledged"] == 0


def test_C4_client_includes_what_came_before(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="client")
    sent = [bench.send({"n": n}) for n in range(6)]
    messages = drain(consumer)
    messages[3].ack()
    assert ids(bench.admin.browse("orders")) == sent[4:]
    messages[1].ack()
    assert bench.seen()["acknowledged"] == 4
    messages[5].ack()
    assert bench.seen()["depth"] == 0


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


def test_C4_individual_in_any_order(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="individual")
    for n in range(4):
        bench.send({"n": n})
    messages = drain(consumer)
    for number in (2, 0, 3, 1):
        messages[number].ack()
    assert bench.seen()["acknowledged"] == 4


def test_C4_pre_ack_before_the_callback(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="pre_ack")
    acknowledged: list[int] = []

    def fail(_message) -> None:
        acknowledged.append(bench.seen()["acknowledged"])
        raise ValueError("a mistake of the application")

    consumer.on_message(fail)
    bench.send()
    wait_for(lambda: len(acknowledged) == 1)
    assert acknowledged == [1]
    assert bench.seen()["depth"] == 0
    assert bench.seen()["canceled"] == 0


def test_C4_pre_ack_with_receive(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="pre_ack")
    bench.send()
    assert consumer.receive(timeout=0) is not None
    assert bench.seen()["acknowledged"] == 1


def test_C4_no_ack_takes_no_lease(empty: Bench) -> None:
    empty.define(lease_period="1s")
    consumer = empty.consumer(ack_mode="no_ack")
    sent = [empty.send({"n": n}) for n in range(5)]
    seen = empty.seen()
    assert (seen["depth"], seen["leased"], seen["acknowledged"]) == (0, 0, 5)
    consumer_got = ids(drain(consumer))
    assert consumer_got == sent
    consumer.close()
    assert empty.seen()["depth"] == 0


def test_C6_prefetch_is_the_backlog(bench: Bench) -> None:
    consumer = bench.consumer(backlog=4)
    for n in range(10):
        bench.send({"n": n})
    for left in range(10, 0, -1):
        assert bench.seen()["leased"] == min(4, left)
        consumer.receive(timeout=0).ack()


def test_C7_rejected_goes_to_the_dead(empty: Bench) -> None:
    empty.define("dead", max_per_subscription_backlog=9)
    empty.define(dead_message_queue="dead")
    consumer = empty.consumer()
    empty.send()
    consumer.receive(timeout=0).reject(reason="no such customer")
    (dead,) = drain(empty.consumer("dead"))
    assert dead.headers["lq-dead-reason"] in ("rejected", b"rejected")
    assert dead.headers["lq-dead-detail"] in ("no such customer", b"no such customer")
    assert empty.seen()["depth"] == 0


def test_C7_rejected_without_a_dead_message_queue_is_discarded(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send()
    consumer.receive(timeout=0).reject(reason="no such customer")
    assert bench.seen()["depth"] == 0
    assert drain(consumer) == []


def test_C4_the_iterator_hands_over_what_is_there(bench: Bench) -> None:
    consumer = bench.consumer(ack_mode="auto")
    if not hasattr(consumer, "__iter__"):
        pytest.skip("the naive model has no iterator")
    sent = [bench.send({"n": n}) for n in range(3)]
    got = []
    for message in consumer:
        got.append(message.id)
        if len(got) == 3:
            break
    assert got == sent
