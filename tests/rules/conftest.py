"""Fixtures of the rule tests."""

import pytest
from rules.harness import Bench


@pytest.fixture
def bench() -> Bench:
    """An engine with one queue, `orders`, that gives a consumer up to 100 messages."""
    bench = Bench()
    bench.define(max_per_subscription_backlog=100)
    return bench


@pytest.fixture
def empty() -> Bench:
    """An engine without queues."""
    return Bench()
