"""A broker loaded from a mark does the same as the one that wrote it, byte for byte (R).

So a replica that takes the same steps reaches the same state, wherever it began. Walks with tiny
limits: cold rows, filters, keys, barriers, delays, early acks, work over several steps, transport
acks, lost sessions. `LAKEQUEUE_WALKS=10` makes ten times as many.
"""

import random
from typing import Any

import pytest
from model.audit import Trouble
from model.batches import TIMES, Walk, random_batches, random_queues

from .twin_steps import LIMITS, TwinSteps

# Walks that found what no other test did: keys that wait behind cold ones, also after merges.
FOUND = (1023, 1052, 1104, 1153, 1286, 1361, 1366, 1415)
pytestmark = pytest.mark.usefixtures("small_active_sets")


@pytest.mark.parametrize("name", LIMITS)
def test_R_L_X_S_twins_agree_and_every_life_is_complete(name: str) -> None:
    loaded = 0
    for seed in range(2 * TIMES):
        havoc = Trouble(seed, TwinSteps, limits=LIMITS[name], chance=0.1, checked=seed % 3 == 0)
        try:
            havoc.go(20, 14)
            havoc.steps.check_marks()
            havoc.check_drained()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        loaded += havoc.steps.loaded
    assert loaded > 5


class ColdWalk(Walk):
    """A walk where messages may be cold."""

    def order_is_silent(self, entries: list[Any]) -> bool:
        """A browse shows cold delayed messages after all others."""
        return super().order_is_silent(entries) or any(e.state == "delayed" for e in entries)


def check_batches(name: str, seed: int, chance: float = 0.1) -> None:
    r = random.Random(seed)
    steps = TwinSteps(limits=LIMITS[name], chance=chance, seed=seed, checked=seed % 4 == 0)
    walk = ColdWalk(random_queues(r), steps)
    try:
        walk.go(random_batches(r, 14, 6, 8))
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("seed", FOUND)
def test_L_B_F_O_X_R5_Q9_batches_that_once_failed(seed: int) -> None:
    check_batches("storage", seed)


@pytest.mark.parametrize("part", range(6))
def test_L_B_F_O_X_R5_Q9_batches_on_mostly_cold_queues(part: int) -> None:
    """The naive model defines what is right, whether messages are live or cold, loaded or not."""
    for seed in range(3 * TIMES):
        check_batches("storage", part + 6 * seed)


def test_L_B_F_O_X_Q9_batches() -> None:
    for seed in range(2 * TIMES):
        check_batches("usual", seed)
