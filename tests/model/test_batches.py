"""The engine does what the naive model does, batch by batch, whatever its queues become (Q9).

Under budgets a command may take several steps, and more than one order of events is right: see
`test_audit`.
`LAKEQUEUE_WALKS=10` does ten times as many. A walk that fails is made shorter before it is shown.
"""

import os
import random
from typing import Any

import pytest
from lakequeue.state import Limits
from reference.model import Model

from .batches import Batches, Walk, random_batches, random_queues, shortest
from .limits import SMALL_PAGES
from .mistakes import MISTAKES
from .on_model import OnModel

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
MISTAKE_SEEDS = 250
# Walks that are known to find what few do.
FIRST_SEEDS = {
    "ForgetsWhatWasSpooled": 100, "ForgetsBarriers": 40, "EarlyAcksTakeRoom": 37,
    "EndsWhatHasNoEnd": 28,
}  # fmt: skip


def walk(queues: list[dict[str, Any]], batches: Batches, limits: Limits) -> Walk:
    """Go; where that fails, fail with the shortest walk that does."""
    try:
        return Walk(queues, limits=limits).go(batches)
    except Exception:

        def fails(some: Batches) -> bool:
            try:
                Walk(queues, limits=limits).go(some)
            except Exception:
                return True
            return False

        found = shortest(batches, fails)
        try:
            Walk(queues, limits=limits).go(found)
        except Exception as error:
            error.add_note(f"queues {queues[-1]}\nshortest walk {found}")
            raise
        raise


@pytest.mark.parametrize("part", range(2))
def test_L_B_F_O_X_Q9_batches(part: int) -> None:
    """With pages that are small, and loaded: `tests/state/test_twins.py`."""
    for seed in range(part * 25 * TIMES, (part + 1) * 25 * TIMES):
        r = random.Random(seed)
        walk(random_queues(r), random_batches(r, 14, 6, 8), Limits())


@pytest.mark.parametrize("seed", range(TIMES))
def test_L_B_F_O_X_Q9_deep_batches(seed: int) -> None:
    """At least 2,000 messages on the way, in small pages."""
    r = random.Random(50_000 + seed)
    queues = random_queues(r)
    for key in ("max_spool_messages", "max_spool_usage"):
        queues[-1].pop(key, None)
    batches = random_batches(r, 24, 5, 80)
    batches += [[("publish", 80, n, n % 7, n % 9), ("ack_held", n, 15)] for n in range(25)]
    assert walk(queues, batches, SMALL_PAGES).published >= 2_000


# ---------------------------------------------------------------- the judge


def one_walk(model: type[Model], seed: int) -> None:
    r = random.Random(seed)
    Walk(random_queues(r), OnModel(model())).go(random_batches(r, 16, 6, 8))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_mistake_is_found(mistake: type[Model]) -> None:
    first = FIRST_SEEDS.get(mistake.__name__, 0)
    for seed in range(first, first + MISTAKE_SEEDS):
        try:
            one_walk(mistake, seed)
        except AssertionError:
            return
    pytest.fail(f"no walk found it: {mistake.__doc__}")


def test_no_mistake_is_not_found() -> None:
    for seed in range(60):
        one_walk(Model, seed)
