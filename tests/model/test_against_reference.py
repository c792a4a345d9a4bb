"""The engine does what the naive model does, step by step.

Short walks find what is wrong and shrink well; long ones reach states that short ones do not.
`LAKEQUEUE_WALKS=10` does ten times as many.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .walk import Operation, Walk, definitions, operations
from .walk import steps as steps_of

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
QUIET = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
}
# A long walk is not made shorter: that takes minutes, and a short one mostly finds the same.
AS_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
SHORTENED = (*AS_FOUND, Phase.shrink)
START: list[Operation] = [("subscribe", 5, 3, 0, 0), ("subscribe", 5, 1, 0, 0), ("burst", 5, 0)]


@settings(max_examples=80 * TIMES, phases=SHORTENED, **QUIET)
@given(definitions(), steps_of(60))
def test_L_B_F_O_X_short_walks(queues: list[dict[str, Any]], steps: list[Operation]) -> None:
    Walk(queues).go(START + steps)


@settings(max_examples=8 * TIMES, phases=AS_FOUND, **QUIET)
@given(definitions(), st.lists(operations(), min_size=200, max_size=240))
def test_L_B_F_O_X_long_walks(queues: list[dict[str, Any]], steps: list[Operation]) -> None:
    Walk(queues).go(START + steps)


@pytest.mark.parametrize("wrong", ["browse", "describe"])
def test_a_difference_is_seen(wrong: str) -> None:
    """The judge of the judge."""
    queues = [{"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}]
    walk = Walk(queues)
    walk.go([("subscribe", 5, 3, 0, 0), ("burst", 3, 0)])
    queue = walk.model.queues["orders"]
    if wrong == "browse":
        queue.entries[0].rank = -1
    else:
        queue.counters["canceled"] += 1
    with pytest.raises(AssertionError):
        walk.look()
