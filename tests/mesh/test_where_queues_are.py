"""The directory, on brokers that are clients of their neighbours (Q5, Q7, S7).

The tests are those of `rules`; what is otherwise is named, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lakequeue.definitions import parse_definition
from lakequeue.definitions.definition import to_wire
from lakequeue.mesh.directory import _Placed
from lakequeue.mesh.facts import Entry, MeshFacts
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


def test_M1_placing_a_queue_takes_no_look_at_all_others() -> None:
    """A start with ten thousand queues looked at each of them for each."""
    facts = MeshFacts(brokers={"a": 0, "b": 1}, entries={"v": {}})
    placed = _Placed(facts)
    own = parse_definition(test_directory.local("q", message_type="json", vpn="v"))
    for number, name in ((0, "x"), (1, "y"), (1, "z")):
        placed.change("v", name, None, Entry(own, [number]))
    placed.change("v", "z", Entry(own, [1]), Entry(own, [0]))
    placed.change("v", "y", Entry(own, [1]), None)
    assert dict(placed.loads) == {0: 2, 1: 0}
    with_dead = parse_definition(to_wire(own) | {"dead_message_queue": "d"})
    placed.change("v", "w", None, Entry(with_dead, [1]))
    assert placed.dying["v", "d"] == {"w"}
    placed.change("v", "w", Entry(with_dead, [1]), None)
    assert not placed.dying["v", "d"]
