"""What brokers remember of each other's consumers goes with them, and a mark writes what changed
(H4)."""

from __future__ import annotations

from typing import Any

from lakequeue.mesh.facts import CREDITS, DIRECTORY, PAGE, MeshFacts
from rules.harness import drain
from rules.mesh import BROKERS, Mesh


def facts_of(mesh: Mesh, name: str) -> MeshFacts:
    broker: Any = mesh.engine.broker(name)
    return broker._replica.broker.beyond._others.facts


def test_H4_what_is_known_of_a_filter_goes_with_its_last_consumer() -> None:
    mesh = Mesh()
    consumers = [mesh.consumer("b", 2, filter=f"/n = {n}") for n in range(5)]
    consumers.append(mesh.consumer("b", 2))
    sent = [mesh.send("a", {"n": n}) for n in range(8)]
    got = [message for consumer in consumers for message in drain(consumer)]
    assert len(got) >= 7
    broker: Any = mesh.engine.broker("a")
    queue = broker._replica.broker.find("default", "orders")
    assert sum(one.broker is not None for one in queue.header.subscriptions) >= 6
    for consumer in consumers:
        consumer.close()
    assert [one for one in queue.header.subscriptions if one.broker is not None] == []
    for name in BROKERS:
        facts = facts_of(mesh, name)
        assert (facts.asked, facts.lent, facts.filters) == ({}, {}, {}), name
    again = mesh.consumer("c", 20)  # and it begins anew
    left = sorted([*(m.id for m in drain(again))])
    assert left == sorted(sent)


def test_a_mark_writes_the_directory_only_where_it_changed() -> None:
    mesh = Mesh()
    broker: Any = mesh.engine.broker("a")
    consumer = mesh.consumer("b", 2)
    written: list[set[str]] = []

    def mark() -> None:
        live = broker._replica.broker
        before = dict(live.store.pages)
        live.store.pages.clear()
        live.beyond.mark()
        written.append(set(live.store.pages) & {PAGE, DIRECTORY, CREDITS})
        live.store.pages.update({**before, **live.store.pages})

    mark()
    mark()
    mesh.send("a")
    mark()
    mesh.at["a"].admin().subscribe_topic("orders", "news")
    mark()
    assert written[1:] == [{PAGE}, {PAGE, CREDITS}, {PAGE, DIRECTORY}]
    assert len(drain(consumer)) == 1
