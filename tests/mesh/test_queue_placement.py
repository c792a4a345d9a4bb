"""Where a queue is placed (M1)."""

from __future__ import annotations

from lakequeue.definitions import parse_definition
from lakequeue.definitions.definition import to_wire
from lakequeue.mesh.facts import Entry, MeshFacts
from lakequeue.mesh.queue_placement import QueuePlacement
from rules.test_directory import local


def test_M1_placing_a_queue_takes_no_look_at_all_others() -> None:
    """A start with ten thousand queues looked at each of them for each."""
    facts = MeshFacts(brokers={"a": 0, "b": 1}, entries={"v": {}})
    placed = QueuePlacement(facts)
    own = parse_definition(local("q", message_type="json", vpn="v"))
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
