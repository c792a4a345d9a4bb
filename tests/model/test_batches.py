"""The engine agrees with the naive model, batch by batch, also with very many messages; and such
walks find each mistake that an engine could make.

Short walks: `test_administered`; walks on mostly cold queues: `tests/state/test_twins.py`. Under
budgets a command may take several steps, and more than one order of events is right: `audit.py`.
`LAKEQUEUE_WALKS=10` does ten times as many.
"""

import random

import pytest
from reference.model import Model

from .batches import TIMES, Walk, random_batches, random_queues
from .limits import SMALL_PAGES
from .mistakes import MISTAKES
from .on_model import OnModel

MISTAKE_SEEDS = 20
# Walks known to find mistakes that few others find.
FIRST_SEEDS = {
    "ForgetsWhatWasSpooled": 100, "ForgetsBarriers": 40, "EarlyAcksTakeRoom": 37,
    "EndsWhatHasNoEnd": 28,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(TIMES))
def test_L_B_F_O_X_Q9_deep_batches(seed: int) -> None:
    """At least 1,000 messages stored or leased, in small pages."""
    r = random.Random(50_000 + seed)
    queues = random_queues(r)
    for key in ("max_spool_messages", "max_spool_usage"):
        queues[-1].pop(key, None)
    batches = random_batches(r, 24, 5, 80)
    batches += [[("publish", 80, n, n % 7, n % 9), ("ack_held", n, 15)] for n in range(13)]
    assert Walk(queues, limits=SMALL_PAGES).go(batches).published >= 1_000


# ---------------------------------------------------------------- the judge


def check_walk(model: type[Model], seed: int) -> None:
    r = random.Random(seed)
    Walk(random_queues(r), OnModel(model())).go(random_batches(r, 16, 6, 8))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_walks_find_a_planted_mistake(mistake: type[Model]) -> None:
    first = FIRST_SEEDS.get(mistake.__name__, 0)
    for seed in range(first, first + MISTAKE_SEEDS):
        try:
            check_walk(mistake, seed)
        except AssertionError:
            return
    pytest.fail(f"no walk found it: {mistake.__doc__}")


def test_walks_find_nothing_in_a_correct_model() -> None:
    for seed in (*range(MISTAKE_SEEDS), *FIRST_SEEDS.values()):
        check_walk(Model, seed)
