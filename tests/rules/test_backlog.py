"""B1 to B3. See also scenarios/backlog_and_fairness.txt."""

import random

import pytest
from rules.harness import Bench, drain


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_B1_holds_at_every_moment(empty: Bench, limit: int) -> None:
    empty.define(max_backlog=limit, max_per_subscription_backlog=5)
    consumers = [empty.consumer(name=f"c{n}", backlog=5) for n in range(3)]
    for n in range(30):
        empty.send({"n": n})
    while empty.seen()["depth"]:
        assert empty.seen()["leased"] == min(limit, empty.seen()["depth"])
        for consumer in consumers:
            for message in drain(consumer):
                message.ack()
                assert empty.seen()["leased"] <= limit
    assert empty.seen()["acknowledged"] == 30


def test_B1_a_returned_message_frees_it(empty: Bench) -> None:
    empty.define(max_backlog=1)
    first = empty.consumer(name="a")
    second = empty.consumer(name="b")
    empty.send()
    assert len(drain(first)) == 1
    first.close()
    assert len(drain(second)) == 1


def test_B2_a_consumer_that_names_none_gets_one(bench: Bench) -> None:
    consumer = bench.connection.consumer("orders", ack_mode="individual")
    for n in range(3):
        bench.send({"n": n})
    assert len(drain(consumer)) == 1


@pytest.mark.parametrize(("queue", "own", "expected"), [(3, 5, 3), (5, 3, 3), (4, 4, 4)])
def test_B2_the_lower_holds(empty: Bench, queue: int, own: int, expected: int) -> None:
    empty.define(max_per_subscription_backlog=queue)
    consumer = empty.consumer(backlog=own)
    for n in range(10):
        empty.send({"n": n})
    assert len(drain(consumer)) == expected
    (shown,) = empty.seen()["consumers"]
    held = shown["held"] if isinstance(shown, dict) else shown.held
    assert held == expected


def test_B3_never_above_the_new_backlog(bench: Bench) -> None:
    generator = random.Random(3)
    consumer = bench.consumer(backlog=1)
    for n in range(200):
        bench.send({"n": n})
    held = drain(consumer)
    while held or bench.seen()["depth"]:
        backlog = generator.randint(1, 9)
        before = len(held)
        consumer.set_max_backlog(backlog)
        held += drain(consumer)
        assert len(held) == min(max(before, backlog), bench.seen()["depth"])
        held.pop(generator.randrange(len(held))).ack()
        held += drain(consumer)


def test_B3_the_queue_still_limits(empty: Bench) -> None:
    empty.define(max_per_subscription_backlog=2)
    consumer = empty.consumer(backlog=1)
    for n in range(5):
        empty.send({"n": n})
    consumer.set_max_backlog(5)
    assert len(drain(consumer)) == 2
