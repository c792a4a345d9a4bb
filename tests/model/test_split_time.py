"""Time can be cut anywhere: one long wait and the same wait in two parts leave the same behind.

That steps can be, by a restart, a mark or a crash: `tests/state/test_twins.py` and `tests/sim`.
"""

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .walk import Operation, Walk, definitions, steps

QUIET = {
    "phases": (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
    ],
}
START: list[Operation] = [("subscribe", 5, 3, 0, 0), ("subscribe", 5, 1, 0, 0), ("burst", 5, 0)]


@settings(max_examples=15, **QUIET)
@given(definitions(), steps(12), st.integers(1, 9999), st.integers(1, 9999))
def test_X_L_time_can_be_cut_anywhere(
    queues: list[dict[str, Any]], before: list[Operation], first: int, second: int
) -> None:
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
