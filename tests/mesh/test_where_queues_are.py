"""The directory, on brokers that are clients of their neighbours (Q5, Q7, S7).

The tests are those of `rules`; what is otherwise is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lakequeue.definitions.definition import to_wire
from lakequeue.protocol import commands as c
from mortal_mesh import MortalMeshBroker
from rules import mortal, test_directory

TAKEN_IN = "M2: the broker that is asked takes a message in, wherever its queue is"
OTHERWISE = {
    "test_clients_of_any_broker_find_a_queue": TAKEN_IN,
    "test_a_queue_that_is_defined_later_is_found_by_who_is_there": TAKEN_IN,
}

for name, test in vars(test_directory).items():
    if name.startswith("test_") and name not in OTHERWISE:
        globals()[name] = test
mesh = test_directory.mesh
del name, test


@pytest.fixture(autouse=True)
def of_neighbours() -> Iterator[None]:
    """Brokers are those of `mesh`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mortal.MortalEngine, "BROKER", MortalMeshBroker)
        yield


def test_Q9_what_a_configuration_says_again_is_told_to_nobody() -> None:
    """At each start: thousands of queues, and all brokers know them."""
    mesh = test_directory.Mesh(
        test_directory.local("q", broker="b"), {"name": "all", "message_type": "json"}
    )
    facts = mesh.engine.brokers[0]._replica.broker.beyond._others.facts
    before = facts.edition
    entry = facts.entries["default"]["q"]
    for changed, editions in ({}, 0), ({"max_spool_messages": 7}, 1):
        definition = to_wire(entry.definition) | changed
        mesh.engine.instruct("default", c.encode_command(c.Define(definition=definition)), "a")
        mesh.engine.advance("0s")
        assert facts.edition == before + editions
    assert mesh.admin.describe("q")["definition"]["max_spool_messages"] == 7
