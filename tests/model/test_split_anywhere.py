"""Split anywhere: a restart between any two operations changes nothing, not a byte of the state.

A restart loads what a mark wrote, and a mark decides what lies in which block (S8, S12); so the run
that goes on is marked at the same points.
"""

import datetime as dt
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .walk import ON_REFERENCE, Operation, Walk, definitions, steps

QUIET = {
    "phases": (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
    ],
}
START: list[Operation] = [("subscribe", 5, 3, 0, 0), ("subscribe", 5, 1, 0, 0), ("burst", 5, 0)]


@pytest.fixture(scope="module", autouse=True)
def still_clock() -> Iterator[None]:
    """The memory clock starts at the wall clock's; two runs shall start at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_700_000_000.0)
        patch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
        yield


class _Names:
    """What is drawn by chance elsewhere: the same in each run."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self) -> uuid.UUID:
        self.drawn += 1
        return uuid.UUID(int=self.drawn)


@dataclass(frozen=True)
class Run:
    """What one walk showed, and the bytes that it left."""

    observed: list[Any]
    state: bytes
    started: dt.datetime


def observe(queues: list[dict[str, Any]], walked: list[Operation]) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakequeue.client.producer.producer.uuid4", _Names())
        walk = Walk(queues, compare=False)
        started = walk.connection.now()
        return Run(walk.go(walked), walk.connection.engine.dump(), started)


def assert_same(one: Run, other: Run) -> None:
    assert one.observed == other.observed
    if one.started == other.started and not ON_REFERENCE:
        assert one.state == other.state


def test_R_two_runs_start_at_the_same_time() -> None:
    """Else the comparison of bytes would be left out above."""
    queues = [{"name": "orders", "message_type": "json"}]
    assert observe(queues, []).started == observe(queues, []).started


@settings(max_examples=25, **QUIET)
@given(definitions(), steps(30), st.integers(0, 33))
def test_R_split_at_one_point(
    queues: list[dict[str, Any]], after: list[Operation], point: int
) -> None:
    whole = START + after
    split = [*whole[:point], ("restart",), *whole[point:]]
    marked = [*whole[:point], ("mark",), *whole[point:]]
    assert_same(observe(queues, split), observe(queues, marked))


@settings(max_examples=10, **QUIET)
@given(definitions(), steps(30))
def test_R_split_at_every_point(queues: list[dict[str, Any]], after: list[Operation]) -> None:
    whole = START + after
    split: list[Operation] = [step for one in whole for step in (one, ("restart",))]
    marked: list[Operation] = [step for one in whole for step in (one, ("mark",))]
    assert_same(observe(queues, split), observe(queues, marked))


@settings(max_examples=10, **QUIET)
@given(definitions(), steps(30))
def test_R_the_same_again(queues: list[dict[str, Any]], after: list[Operation]) -> None:
    """Same inputs, same outputs, same bytes: nothing comes from the clock or from chance."""
    assert_same(observe(queues, START + after), observe(queues, START + after))


@settings(max_examples=15, **QUIET)
@given(definitions(), steps(12), st.integers(1, 9999), st.integers(1, 9999))
def test_X_L_time_can_be_cut_anywhere(
    queues: list[dict[str, Any]], before: list[Operation], first: int, second: int
) -> None:
    """One long wait and the same wait in two parts leave the same queue behind."""

    def numbers(*waits: int) -> list[Any]:
        walk = Walk(queues, compare=False)
        walk.go(START + before)
        for wait in waits:
            walk.connection.advance(f"{wait}ms")
        walk.connection.engine.check()
        return [
            (walk.described(q["name"]), [m.id for m in walk.admin.browse(q["name"], limit=10_000)])
            for q in queues
        ]

    assert numbers(first + second) == numbers(first, second)
