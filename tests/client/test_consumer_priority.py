"""F1: under `fast` the consumer with the higher priority of its own is asked first."""

from typing import Any

import pytest
from lakequeue.protocol import ConfigError
from rules.harness import Bench, drain, ids

FAST = {"fairness_model": "fast", "max_per_subscription_backlog": 100}


def test_F1_the_higher_is_asked_first(empty: Bench) -> None:
    empty.define(**FAST)
    low = empty.consumer(name="low", backlog=2)
    high = empty.consumer(name="high", backlog=2, priority=9)
    middle = empty.consumer(name="middle", backlog=2, priority=5)
    sent = [empty.send({"n": n}) for n in range(5)]
    assert ids(drain(high)) == sent[:2]
    assert ids(drain(middle)) == sent[2:4]
    assert ids(drain(low)) == sent[4:]


def test_F1_F5_among_those_whose_filter_matches(empty: Bench) -> None:
    empty.define(**FAST)
    low = empty.consumer(name="low", backlog=9)
    high = empty.consumer(name="high", backlog=9, priority=9, filter="/n > 1")
    sent = [empty.send({"n": n}) for n in range(4)]
    assert ids(drain(high)) == sent[2:]
    assert ids(drain(low)) == sent[:2]


def test_F1_also_for_what_waited_in_the_queue(empty: Bench) -> None:
    empty.define(**FAST)
    sent = [empty.send({"n": n}) for n in range(3)]
    low = empty.consumer(name="low", backlog=1)
    high = empty.consumer(name="high", backlog=9, priority=1)
    assert ids(drain(high)) == sent[1:]
    low.close()
    assert ids(drain(high)) == sent[:1]


@pytest.mark.parametrize("model", ["proportional", "round-robin"])
def test_F1_another_model_refuses_it(empty: Bench, model: str) -> None:
    empty.define(fairness_model=model, max_per_subscription_backlog=9)
    with pytest.raises(ConfigError, match=f"priority: 1 – allowed with .* has '{model}'"):
        empty.consumer(priority=1)
    assert empty.seen()["consumers"] == []
    assert empty.consumer(priority=0) is not None


@pytest.mark.parametrize("wrong", [-1, 256, True, "9", 1.5])
def test_F1_a_priority_is_a_number(empty: Bench, wrong: Any) -> None:
    empty.define(**FAST)
    with pytest.raises(ConfigError, match=r"priority: .* – allowed are 0 to 255"):
        empty.consumer(priority=wrong)
