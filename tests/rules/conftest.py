"""Fixtures of the rule tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from cores import core, pytest_generate_tests
from kept_pages import VerifiedMemo, use
from rules.harness import Bench

__all__ = ["core", "pytest_generate_tests"]


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


@pytest.fixture(scope="session", autouse=True)
def pages_are_what_their_bytes_say() -> Iterator[None]:
    """Whatever a step finds in the memo is held to it."""
    with pytest.MonkeyPatch.context() as patch:
        use(patch, VerifiedMemo())
        yield
