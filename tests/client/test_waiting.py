"""C6, L5, L10: what waits in the client, when its lease or its life ends."""

import time
from typing import Any

import pytest
from client.threaded import Held, connect, engine, wait_for
from lakequeue.protocol import LeaseLost
from lakequeue.protocol import commands as c
from rules.harness import Bench, drain, ids
from rules.steps import REPLY, Steps, define, described, replies, subscribe

LEASED = {"lease_period": "10s", "max_deliveries": 2, "max_per_subscription_backlog": 100}
DAY_MS = 86_400_000


def test_C6_what_has_expired_here_is_not_handed_over(bench: Bench) -> None:
    for n in range(4):
        bench.send({"n": n}, ttl="5s" if n % 2 == 0 else "1h")
    consumer = bench.consumer()
    bench.advance("6s")
    assert consumer.has_messages
    assert ids(consumer.receive_many(9, timeout=0)) == ["2", "4"]
    assert not consumer.has_messages


@pytest.mark.parametrize("mode", ["no_ack", "pre_ack"])
def test_C6_also_what_the_engine_has_let_go_of(bench: Bench, mode: str) -> None:
    bench.send(ttl="5s")
    consumer = bench.consumer(ack_mode=mode)
    bench.advance("6s")
    assert consumer.receive(timeout=0) is None


def test_C6_a_life_is_counted_without_comparing_clocks() -> None:
    made = engine({"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9})
    made.now += DAY_MS
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=9)
    producer = connection.producer()
    producer.send("orders", b"{}", ttl="300ms")
    producer.send("orders", b"{}", ttl="1h")
    wait_for(lambda: len(consumer._prefetch.buffer) == 2)
    time.sleep(0.4)
    assert ids(consumer.receive_many(9, timeout=1)) == ["2"]


def test_C6_what_has_lost_its_lease_here_is_not_handed_over() -> None:
    """What was sent instead is still on its way."""
    queue = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}
    connection, wire = connect(engine(queue | {"lease_period": "400ms"}), kind=Held)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=9)
    for n in range(3):
        connection.producer().send("orders", b"%d" % n)
    wait_for(lambda: len(consumer._prefetch.buffer) == 3)
    wire.let_go.clear()
    time.sleep(0.5)
    assert consumer.receive(timeout=0) is None
    wire.let_go.set()
    assert [m.delivery_count for m in consumer.receive_many(3, timeout=10)] == [1] * 3


@pytest.mark.parametrize("renewing", [False, True])
def test_L5_a_worker_that_is_long_busy_costs_those_behind_nothing(
    empty: Bench, renewing: bool
) -> None:
    empty.define(**LEASED)
    sent = [empty.send({"n": n}) for n in range(20)]
    consumer = empty.consumer(auto_renew=renewing)
    long = consumer.receive(timeout=0)
    for _ in range(20):
        empty.advance("4s")
        long.renew()
    long.ack()
    rest = drain(consumer)
    assert ids(rest) == sent[1:], "in their order"
    assert {m.delivery_count for m in rest} == {1}
    seen = empty.seen()
    assert (seen["expired"], seen["counters"]["lease_ended"]) == (0, 0)


def test_L5_what_is_handed_back_goes_to_whoever_has_room(empty: Bench) -> None:
    empty.define(**LEASED, fairness_model="proportional")
    sent = [empty.send({"n": n}) for n in range(4)]
    busy = empty.consumer(backlog=4)
    busy.receive(timeout=0)
    idle = empty.consumer(name="idle", backlog=100)
    assert drain(idle) == []
    empty.advance("8s")
    assert ids(drain(idle)) == sent[1:]


@pytest.mark.parametrize("mode", ["auto", "client", "individual", "dups_ok"])
def test_L5_L10_a_callback_that_takes_most_of_a_lease(empty: Bench, mode: str) -> None:
    """Each gets a whole lease to work in, however long it waited before."""
    empty.define(**LEASED)
    for n in range(10):
        empty.send({"n": n})
    seen: list[str] = []

    def work(message: Any) -> None:
        seen.append(message.id)
        empty.advance("8s")
        if mode in ("client", "individual"):
            message.ack()

    options = {"dups_ok_count": 1} if mode == "dups_ok" else {}
    empty.consumer(ack_mode=mode, **options).on_message(work)
    empty.advance("5m")
    assert seen == [str(n + 1) for n in range(10)]
    assert (empty.seen()["acknowledged"], empty.seen()["expired"]) == (10, 0)


def test_L10_what_is_handed_over_late_has_a_whole_lease(empty: Bench) -> None:
    empty.define(**LEASED)
    for n in range(3):
        empty.send({"n": n})
    consumer = empty.consumer()
    empty.advance("7s")
    messages = consumer.receive_many(3, timeout=0)
    left = {m.lease_expires_at.timestamp() * 1000 - empty.connection.now_ms() for m in messages}
    assert left == {10_000}
    assert empty.events().count("renewed") == 3
    empty.advance("9s")
    for message in messages:
        message.ack()
    assert empty.seen()["acknowledged"] == 3


def test_L10_what_is_handed_over_soon_is_not_renewed(empty: Bench) -> None:
    empty.define(**LEASED)
    empty.send()
    consumer = empty.consumer()
    empty.advance("1s")
    drain(consumer)
    empty.advance("9s")
    assert empty.events().count("renewed") == 0
    assert empty.seen()["counters"]["lease_ended"] == 1


def test_L10_the_limit_of_auto_renew_counts_from_the_hand_over(empty: Bench) -> None:
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True, auto_renew_limit="30s")
    empty.send()
    empty.advance("25s")
    (message,) = drain(consumer)
    empty.advance("29s")
    message.ack()
    assert empty.seen()["acknowledged"] == 1


def test_L5_L10_what_waits_beyond_the_limit_is_handed_back(empty: Bench) -> None:
    """A callback that never returns keeps its own message up to the limit, and others no longer."""
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True, auto_renew_limit="30s", backlog=3)
    sent = [empty.send({"n": n}) for n in range(3)]
    stuck = consumer.receive(timeout=0)
    other = empty.consumer(name="other")
    empty.advance("29s")
    assert drain(other) == []
    empty.advance("12s")
    assert ids(drain(other))[:2] == sent[1:]
    with pytest.raises(LeaseLost):
        stuck.ack()


def test_L7_an_older_delivery_that_nobody_has_seen_is_over() -> None:
    """The engine ended the lease, by its clock, and sent the message again."""
    made = engine(LEASED | {"name": "orders", "message_type": "json"})
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=9)
    connection.producer().send("orders", b"{}")
    wait_for(lambda: len(consumer._prefetch.buffer) == 1)
    made.advance("10s")
    wait_for(lambda: consumer._prefetch.buffer[0].delivery_count == 2)
    assert len(consumer.receive_many(9, timeout=1)) == 1


def test_L5_a_session_that_was_missed_says_what_nobody_had_seen() -> None:
    made = engine(LEASED | {"name": "orders", "message_type": "json", "lease_period": "1h"})
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=9)
    for n in range(3):
        connection.producer().send("orders", b"%d" % n)
    first = consumer.receive(timeout=10)
    wait_for(lambda: len(consumer._prefetch.buffer) == 2)
    made.advance("1m")
    connection._lost.add(0)
    wait_for(lambda: len(consumer._prefetch.buffer) == 3)
    messages = consumer.receive_many(9, timeout=10)
    assert [m.delivery_count for m in messages] == [2, 1, 1]
    assert messages[0].id == first.id


@pytest.mark.parametrize("state", ["ready", "leased", "delayed"])
def test_L5_what_is_said_late_takes_one_attempt_back(state: str) -> None:
    """Whoever has the message now; and an attempt that was none is not taken back."""
    steps = Steps()
    steps.run([define(max_per_subscription_backlog=9), subscribe("a")], [("orders", b"{}")])
    steps.run([c.Unsubscribe(queue="orders", subscription="a")])
    if state != "ready":
        steps.run([subscribe("b")])
    if state == "delayed":
        named = {"queue": "orders", "subscription": "b", "ids": "1", "delay_ms": 1000}
        steps.run([c.Cancel(**named)])
    said = c.Returned(queue="orders", subscription="a", ids="1")
    counts = [2 if state != "ready" else 1]
    for _ in range(3):
        steps.run([said])
        (row,) = replies(steps.run([c.Browse(queue="orders", reply=REPLY)]))[0].result
        counts.append(row["delivery_count"])
    assert row["state"] == state
    expected = {"ready": [1, 0, 0, 0], "leased": [2, 1, 1, 1], "delayed": [2, 1, 0, 0]}
    assert counts == expected[state]
    assert described(steps)["ack_ignored"] == {"ready": 2, "leased": 2, "delayed": 1}[state]
