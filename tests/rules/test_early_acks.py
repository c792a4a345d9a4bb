"""Acks that came before their messages, as ranges: against one entry an id (L9)."""

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.state import Home, Limits
from lakequeue.state.broker import Broker
from lakequeue.state.rules import deferred
from rules.steps import Steps, define, described, subscribe

IDS = 30


def came_early(ranges: list[list[int]], number: int, now: int) -> bool:
    broker: Any = SimpleNamespace(now=now, limits=Limits())
    queue: Any = SimpleNamespace(header=SimpleNamespace(deferred=ranges))
    return deferred.came_early(broker, queue, number)


@pytest.mark.parametrize("seed", range(40))
def test_L9_the_newest_ack_of_an_id_counts_and_is_used_up_once(seed: int) -> None:
    r = random.Random(seed)
    ranges: list[list[int]] = []
    known: dict[int, int] = {}
    most = r.choice((3, 8, 100))
    for now in range(60):
        if r.random() < 0.5:
            first = r.randrange(IDS)
            last, until = first + r.randrange(8), now + r.choice((1, 10, 40))
            before = [list(one) for one in ranges]
            if deferred._put(ranges, [first, last, until], most):
                known |= dict.fromkeys(range(first, last + 1), until)
            else:
                assert ranges == before
        else:
            number = r.randrange(IDS)
            came = came_early(ranges, number, now)
            assert came == (known.pop(number, -1) > now)
        assert {i: until for a, b, until in ranges for i in range(a, b + 1)} == known
        assert ranges == sorted(ranges)
        assert all(a <= b for a, b, _ in ranges)


def test_L9_ranges_that_follow_each_other_are_one() -> None:
    ranges: list[list[int]] = []
    for number in range(1, 1_000):
        assert deferred._put(ranges, [number, number, 7], 1)
    assert ranges == [[1, 999, 7]]


def test_L9_one_ack_of_very_many_ids_does_not_become_many() -> None:
    """Every other id goes to another queue, and what is left of the range would be cut and cut."""
    steps = Steps(limits=Limits(early_acks=3))
    steps.run([define(), define("more"), subscribe("a")])
    steps.run([c.Ack(queue="orders", subscription="a", ids=f"1-{10**12}")])
    steps.run(publishes=[(name, b"{}") for name in ("orders", "more") * 20])
    seen = described(steps)
    assert (seen["acknowledged"], seen["depth"]) == (20, 0)
    assert seen["ack_ignored"] == 17  # of ids that went elsewhere; three still wait
    broker = Broker.load(steps.store, Home(), steps.now, steps.limits)
    assert len(broker.find("default", "orders").header.deferred) == 3


def test_L9_an_ack_whose_time_is_over_as_the_message_comes_does_not_count() -> None:
    """Also where that is the first step since."""
    steps = Steps()
    steps.run([define(deferred_ack_expiration="10s"), subscribe("a")])
    steps.run([c.Ack(queue="orders", subscription="a", ids="1")])
    steps.now += 10_000
    steps.run(publishes=[("orders", b"{}")])
    assert described(steps)["leased"] == 1


def test_L9_a_message_is_looked_up_among_many_early_acks_at_once() -> None:
    steps = Steps(checked=False)
    steps.run([define(max_per_subscription_backlog=5_000), subscribe("a", 5_000)])
    ids = ",".join(str(n) for n in range(50_001, 70_001, 2))
    steps.run([c.Ack(queue="orders", subscription="a", ids=ids)])
    begun = time.process_time()
    for _ in range(3):
        steps.run(publishes=[("orders", b"{}")] * 1_500)
    assert time.process_time() - begun < 1.0  # one after the other: 45 million looks
    assert described(steps)["leased"] == 4_500
