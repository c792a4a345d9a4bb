"""F1 to F5. See also scenarios/backlog_and_fairness.txt."""

from fractions import Fraction

import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import DEEP, Bench, drain, ids


def test_F1_one_does_all_where_it_can(empty: Bench) -> None:
    empty.define(fairness_model="fast", max_per_subscription_backlog=100)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    for n in range(20):
        empty.send({"n": n})
    assert (len(drain(first)), len(drain(second))) == (20, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_F2_equal_shares(empty: Bench, count: int) -> None:
    empty.define(fairness_model="round-robin", max_per_subscription_backlog=100)
    consumers = [empty.consumer(name=f"c{n}") for n in range(count)]
    sent = [empty.send({"n": n}) for n in range(21)]
    for n, consumer in enumerate(consumers):
        assert ids(drain(consumer)) == sent[n::count]


def test_F2_a_new_subscription_joins_the_turn(empty: Bench) -> None:
    empty.define(fairness_model="round-robin", max_per_subscription_backlog=100)
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    empty.send({"n": 1})
    third = empty.consumer(name="c")
    for n in range(2, 5):
        empty.send({"n": n})
    assert ids(drain(first)) == ["1", "4"]
    assert ids(drain(second)) == ["2"]
    assert ids(drain(third)) == ["3"]


@pytest.mark.parametrize("backlogs", [(2, 4, 10), (1, 1, 1), (3, 5), (10, 1), (4, 4, 2, 8)])
def test_F3_always_the_lowest_ratio(empty: Bench, backlogs: tuple[int, ...]) -> None:
    empty.define(max_per_subscription_backlog=100)
    consumers = [empty.consumer(name=f"c{n}", backlog=b) for n, b in enumerate(backlogs)]
    held = [0] * len(backlogs)
    for n in range(sum(backlogs)):
        ratios = [Fraction(h, b) for h, b in zip(held, backlogs, strict=True)]
        chosen = ratios.index(min(ratios))
        empty.send({"n": n})
        got = [len(drain(consumer)) for consumer in consumers]
        assert got == [int(i == chosen) for i in range(len(backlogs))], f"message {n}"
        held[chosen] += 1


def test_F3_the_ratio_is_of_the_lower_backlog(empty: Bench) -> None:
    """10 named, 2 allowed (B2): 1 of 2 is more than 0 of 2."""
    empty.define(max_per_subscription_backlog=2)
    first, second = empty.consumer(name="a", backlog=10), empty.consumer(name="b", backlog=2)
    for n in range(4):
        empty.send({"n": n})
    assert ids(drain(first)) == ["1", "3"]
    assert ids(drain(second)) == ["2", "4"]


def test_F4_at_most_once_with_proportional_is_an_error(empty: Bench) -> None:
    with pytest.raises(ConfigError):
        empty.define(semantics="at-most-once", fairness_model="proportional")


def test_F4_at_most_once_with_fast_is_allowed(empty: Bench) -> None:
    empty.define(semantics="at-most-once", fairness_model="fast")
    first, second = empty.consumer(name="a"), empty.consumer(name="b")
    for n in range(3):
        empty.send({"n": n})
    assert (len(drain(first)), len(drain(second))) == (3, 0)


def test_F5_each_gets_its_own(bench: Bench) -> None:
    consumers = {k: bench.consumer(name=k, filter=f"/kind = '{k}'") for k in "abc"}
    sent = [(kind, bench.send({"kind": kind})) for kind in "abcxcbaxabc"]
    for kind, consumer in consumers.items():
        assert ids(drain(consumer)) == [i for k, i in sent if k == kind]
    assert bench.seen()["ready"] == 2


def test_F5_a_deep_queue_that_matches_nobody_holds_nothing_back(bench: Bench) -> None:
    for n in range(DEEP):
        bench.send({"kind": "x", "n": n})
    wanted = bench.send({"kind": "a"})
    assert ids(drain(bench.consumer(filter="/kind = 'a'"))) == [wanted]


def test_F5_it_is_said_when_no_filter_matches(bench: Bench) -> None:
    """By the engine itself, so by all that show what it says."""
    bench.define(max_per_subscription_backlog=100)
    for n in range(300):
        bench.send({"n": n})
    two = [bench.consumer(filter=f"/n = {n}") for n in (1_000, 1_001)]
    assert bench.seen()["blocked"] == "no consumer's filter matches"
    assert {q["name"]: q["blocked"] for q in bench.admin.queues()}["orders"] == (
        "no consumer's filter matches"
    ), "in the list as well"
    bench.send({"n": 1_001})
    assert bench.seen()["blocked"] == "no consumer's filter matches", "the one is out"
    assert len(drain(two[1])) == 1
    everything = bench.consumer()
    assert bench.seen()["blocked"] == "every consumer's backlog is full" or drain(everything)


def test_F5_an_unreadable_filter_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError):
        bench.consumer(filter="/kind = ")
    bench.send({"kind": "x"})
    assert bench.seen()["ready"] == 1
