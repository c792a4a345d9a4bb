"""Who may do what, on brokers that are clients of their neighbours.

The tests are those of `rules`; what is otherwise is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lakequeue.memory import MemoryEngine
from lakequeue.memory.mesh_broker import MeshBroker
from rules import test_permissions_of_brokers

OTHERWISE = {
    "test_a_new_broker_asks_as_the_others_do": "M4: brokers are added at rest",
    "test_what_is_signed_for_a_broker_that_was_removed_is_heard_by_the_first": "M4: at rest",
}

for name, test in vars(test_permissions_of_brokers).items():
    if name.startswith("test_") and name not in OTHERWISE:
        globals()[name] = test
del name, test


@pytest.fixture(autouse=True)
def of_neighbours() -> Iterator[None]:
    """Brokers are those of `mesh`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryEngine, "BROKER", MeshBroker)
        yield
