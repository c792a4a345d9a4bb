"""Queues move between brokers that are clients of their neighbours (M5, L5, P1).

The tests are those of `rules`, on `mesh`; what is otherwise is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mortal_mesh import MortalMeshBroker
from rules import mortal, test_moving

OTHERWISE = {
    "test_L9_acks_that_came_early_go_along_and_are_forgotten_in_time": "looks into the other core",
}

for name, test in vars(test_moving).items():
    if name.startswith("test_") and name not in OTHERWISE:
        globals()[name] = test
mesh = test_moving.mesh
del name, test


@pytest.fixture(autouse=True)
def of_neighbours() -> Iterator[None]:
    """Brokers are those of `mesh`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mortal.MortalEngine, "BROKER", MortalMeshBroker)
        yield
