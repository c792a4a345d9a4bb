"""Acks that came before their messages, as ranges: against one entry an id (L9)."""

import random
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from lakequeue.protocol import commands as c
from lakequeue.state import DictStore, Home, Limits
from lakequeue.state.broker import Broker
from lakequeue.state.header import QueueHeader
from lakequeue.state.limits import Budget
from lakequeue.state.rules import deferred
from lakequeue.state.storage import CountingStore, IdRanges, IdRangesTop
from rules.steps import Steps, define, described, subscribe

IDS = 30
LIMITS = Limits()


def queue_with(ranges: IdRanges, now: int = 0, limits: Limits = LIMITS) -> tuple[Any, Any]:
    """A broker and a queue, as far as they are asked here."""
    said: list[Any] = []
    broker = SimpleNamespace(now=now, limits=limits, record=lambda *a, **k: said.append((a, k)))
    return broker, SimpleNamespace(early=ranges, count=lambda *_: None)


def nothing_kept() -> IdRanges:
    return IdRanges(DictStore(), "early/1/", IdRangesTop(), LIMITS)


@pytest.mark.parametrize("seed", range(40))
def test_L9_the_newest_ack_of_an_id_counts_and_is_used_up_once(seed: int) -> None:
    r = random.Random(seed)
    kept = nothing_kept()
    known: dict[int, int] = {}
    most = r.choice((3, 8, 100))
    for now in range(60):
        if r.random() < 0.5:
            first = r.randrange(IDS)
            last, until = first + r.randrange(8), now + r.choice((1, 10, 40))
            if kept.put(first, last, until, most):
                known |= dict.fromkeys(range(first, last + 1), until)
        else:
            number = r.randrange(IDS)
            came = deferred.came_early(*queue_with(kept, now), number)
            assert came == (known.pop(number, -1) > now)
        assert {i: until for a, b, until in kept.overview() for i in range(a, b + 1)} == known


def test_L9_what_has_waited_for_too_long_goes_within_the_budget() -> None:
    kept = nothing_kept()
    for number in range(10):
        kept.put(2 * number, 2 * number, 100 - number, 99)
    budget = Budget(4)
    deferred.forget(queue_with(kept)[1], 95, budget)
    assert [one[2] for one in kept.overview()] == [100, 99, 98, 97, 96, 95]
    assert budget.spent
    deferred.forget(queue_with(kept)[1], 95, Budget(4))
    assert kept.next_end() == 96


def test_L9_ranges_that_follow_each_other_are_one() -> None:
    kept = nothing_kept()
    for number in range(1, 1_000):
        assert kept.put(number, number, 7, 1)
    assert kept.overview() == [[1, 999, 7]]


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
    assert len(broker.find("default", "orders").early) == 3


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
    assert time.process_time() - begun < 3.0  # one after the other: 45 million looks
    assert described(steps)["leased"] == 4_500


def acknowledged_early(ranges: int) -> Steps:
    steps = Steps(checked=False)
    steps.run([define(max_per_subscription_backlog=100), subscribe("a", 100)])
    ids = ",".join(str(n) for n in range(50_001, 50_001 + 2 * ranges, 2))
    if ranges:
        steps.run([c.Ack(queue="orders", subscription="a", ids=ids)])
    return steps


@pytest.mark.parametrize("publishes", [1, 20])
def test_L9_a_step_costs_what_it_changes_however_many_acks_wait(publishes: int) -> None:
    """The queue's header held them all: with 10,000, a step wrote 200 KB."""
    costs = []
    for ranges in (0, 10_000):
        steps = acknowledged_early(ranges)
        steps.store = store = CountingStore(steps.store)  # type: ignore[assignment]
        steps.run([], [("orders", b"{}")] * publishes)
        steps.run([c.Ack(queue="orders", subscription="a", ids="1")])
        written = sum(len(store.get(key) or b"") for key in {*store.writes})
        costs.append((len(store.reads), len(store.writes), written))
    none, many = costs
    assert many[:2] == none[:2]  # nobody asks for the ids that wait: they are above
    assert many[2] < none[2] + 4_000  # two tops


def test_L9_one_more_that_waits_costs_a_few_pages() -> None:
    steps = acknowledged_early(9_000)
    steps.store = store = CountingStore(steps.store)  # type: ignore[assignment]
    steps.run([c.Ack(queue="orders", subscription="a", ids="60000")])
    early = [key for key in store.writes if key.startswith("early/")]
    assert 2 <= len(early) <= 4  # a leaf of each index; cut in two where it is full
    assert sum(len(store.get(key) or b"") for key in early) < 25_000


def test_L9_early_acks_of_an_older_state_are_kept_on() -> None:
    """They stood in the queue's header."""
    steps = Steps()
    steps.run([define(), subscribe("a", 10)])
    key = next(key for key in steps.store.pages if key.startswith("q/"))
    header = msgspec.msgpack.decode(steps.store.pages[key])
    del header["early"]
    until = steps.now + 10_000
    older = {**header, "deferred": [[1, 1, until], [3, 3, until], [9, 12, until]]}
    steps.store.put(key, msgspec.msgpack.encode({**older, "deferred_until": until}))
    steps.run(publishes=[("orders", b"{}")] * 4)
    assert (described(steps)["acknowledged"], described(steps)["depth"]) == (2, 2)
    header = msgspec.msgpack.decode(steps.store.pages[key], type=QueueHeader)
    assert header.deferred == []
    steps.tick(10_000)
    assert not any(key.startswith("early/") for key in steps.store.pages), "too late"


def test_L9_a_queue_that_is_deleted_leaves_no_page_of_early_acks() -> None:
    steps = acknowledged_early(1_000)
    assert any(key.startswith("early/") for key in steps.store.pages)
    steps.run([c.Delete(queue="orders")])
    assert not any(key.startswith("early/") for key in steps.store.pages)
