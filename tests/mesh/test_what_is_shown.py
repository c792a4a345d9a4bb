"""What pages, terminal and commands show of several brokers, on brokers that are clients of their
neighbours: the tests are those of `monitor`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lakequeue.memory.in_process import MemoryEngine
from lakequeue.memory.live_broker import LiveBroker
from monitor.test_several_brokers import mesh as mesh
from monitor.test_several_brokers import sight as sight

from monitor import test_several_brokers

for name, test in vars(test_several_brokers).items():
    if name.startswith("test_"):
        globals()[name] = test
del name, test


@pytest.fixture(autouse=True)
def of_neighbours() -> Iterator[None]:
    """Brokers are those of `mesh`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryEngine, "BROKER", LiveBroker)
        yield
