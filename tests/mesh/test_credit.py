"""What brokers remember of each other's consumers goes with them, and a mark writes what changed
(H4)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.mesh.facts import CREDITS, DIRECTORY, PAGE, MeshFacts
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from rules.harness import drain
from rules.mesh import BROKERS, Mesh


def facts_of(mesh: Mesh, name: str) -> MeshFacts:
    broker: Any = mesh.engine.broker(name)
    return broker._replica.broker.mesh.facts


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
        assert facts_of(mesh, name).credits.rooms == {}, name
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
        live.mesh.mark()
        written.append(set(live.store.pages) & {PAGE, DIRECTORY, CREDITS})
        live.store.pages.update({**before, **live.store.pages})

    mark()
    mark()
    mesh.send("a")
    mark()
    mesh.consumer("a", 2)
    mark()
    mesh.at["a"].admin().subscribe_topic("orders", "news")
    mark()
    assert written[1:] == [{PAGE}, {PAGE}, {PAGE, CREDITS}, {PAGE, DIRECTORY}]
    assert len(drain(consumer)) == 1


def queue(name: str) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "max_per_subscription_backlog": 10}


class LateKeeper:
    """One broker hears what the keeper says later than what the other says: nothing is promised
    between two pairs."""

    def __init__(self, mesh: Mesh, late: str) -> None:
        # type: ignore[var-annotated]
        self.mesh, self.broker, self.held = mesh, mesh.engine.broker(late), []
        hear = type(self.broker).tell

        def tell(record: Any) -> None:
            if mesh_messages.decode(record.value).name == "a":
                self.held.append(record)
            else:
                hear(self.broker, record)

        self.broker.tell = tell  # type: ignore[method-assign]

    def tell(self, command: c.Command) -> None:
        self.mesh.at["a"].ask(command, lambda answer: None)

    def end(self) -> None:
        del self.broker.tell  # type: ignore[method-assign]
        for record in self.held:
            self.broker.tell(record)
        self.mesh.engine.advance("0s")


def test_H4_room_is_told_to_a_host_that_has_yet_to_hear_of_the_queue() -> None:
    mesh = Mesh(queues=[queue("other")])
    late = LateKeeper(mesh, "c")
    late.tell(c.Define(definition=queue("new")))
    consumer = mesh.consumer("b", 1, "new")
    late.end()
    sent = mesh.send("c", queue="new")
    assert [m.id for m in drain(consumer)] == [sent]


@pytest.mark.parametrize("late", ["b", "c"])
def test_H4_S7_a_queue_that_is_made_anew_begins_anew_at_each_host(late: str) -> None:
    """Whichever of the two, who has messages and who has consumers, hears of it last."""
    mesh = Mesh(queues=[queue("new")])
    before = mesh.consumer("b", 1, "new")
    for _ in range(5):
        mesh.send("c", queue="new")
        (message,) = drain(before)
        message.ack()
    if late == "c":
        before.close()
    keeper = LateKeeper(mesh, late)
    keeper.tell(c.Delete(queue="new"))
    keeper.tell(c.Define(definition=queue("new")))
    consumer = mesh.consumer("b", 1, "new") if late == "c" else None
    gone = mesh.send("c", queue="new") if late == "c" else ""  # into the queue that is deleted
    keeper.end()
    consumer = consumer or mesh.consumer("b", 1, "new")
    sent = mesh.send("c", queue="new")
    assert [m.id for m in drain(consumer)] == [sent]
    assert gone != sent
    for name in BROKERS:
        assert facts_of(mesh, name).early_rooms == []


def test_H4_a_deleted_queue_takes_no_room_from_one_whose_name_begins_alike() -> None:
    mesh = Mesh(queues=[queue("orders"), queue("orders/eu")])
    consumer = mesh.consumer("b", 1, "orders/eu")
    keeper = LateKeeper(mesh, "c")
    for number in range(5):
        mesh.send("c", queue="orders/eu")
        (message,) = drain(consumer)
        message.ack()
        if number == 3:
            keeper.tell(c.Delete(queue="orders"))
    keeper.end()
    sent = mesh.send("c", queue="orders/eu")
    assert [m.id for m in drain(consumer)] == [sent]


NEWS = {"subscriptions": ["news"], "max_per_subscription_backlog": 9}


@pytest.mark.parametrize("late", ["b", "c"])
def test_S7_M2_a_queue_on_one_broker_is_made_anew_while_messages_cross(late: str) -> None:
    """Nothing of the old one comes into the new one, and nothing of the new one is lost with the
    old one: whichever hears of it last, the broker that has the queue or the one that sends."""
    one = {"name": "new", "message_type": "json", "type": "LocalQueue", "broker": "b"} | NEWS
    mesh = Mesh(queues=[one])
    keeper = LateKeeper(mesh, late)
    keeper.tell(c.Delete(queue="new"))
    keeper.tell(c.Define(definition=one))
    sent = [mesh.send("a", queue="news")]
    old = mesh.send("c", queue="news") if late == "c" else ""
    if late == "b":
        sent.append(mesh.send("c", queue="news"))
    mesh.advance("5s")
    keeper.end()
    mesh.advance("5s")
    sent.append(mesh.send("c", queue="news"))
    consumer = mesh.consumer("b", 9, "new")
    found = []
    for _ in range(5):
        for message in drain(consumer):
            message.ack()
            found.append(message.id)
        mesh.advance("1s")
    assert sorted(found) == sorted(sent)
    assert old not in found


def test_S7_an_answer_about_an_earlier_queue_takes_nothing_back(monkeypatch: Any) -> None:
    """A broker refuses what waited for the old queue; the new one, whose stand-in was made in the
    same moment, has messages under way of its own."""
    one = {"name": "new", "message_type": "json", "type": "LocalQueue", "broker": "b"} | NEWS
    full = one | {"max_spool_messages": 1}
    mesh = Mesh(queues=[full])
    for _ in range(3):
        mesh.send("c", queue="news")
    keeper = LateKeeper(mesh, "c")
    keeper.tell(c.Delete(queue="new"))
    keeper.tell(c.Define(definition=one))
    for _ in range(3):
        mesh.advance("1s")
    keeper.end()
    sent = [mesh.send("c", queue="news") for _ in range(3)]
    mesh.advance("1s")
    consumer = mesh.consumer("b", 9, "new")
    found = []
    for _ in range(5):
        for message in drain(consumer):
            message.ack()
            found.append(message.id)
        mesh.advance("1s")
    assert found == sent


def test_Q2_each_host_of_a_queue_says_which_topics_it_takes() -> None:
    mesh = Mesh()
    admin = mesh.at["c"].admin()
    assert admin.subscribe_topic("orders", "news") is True
    assert admin.subscribe_topic("orders", "news") is False
    admin.unsubscribe_topic("orders", "news")
    events = [(e["event"], e.get("topic")) for e in admin.events()]
    for event in ("topic_subscribed", "topic_unsubscribed"):
        assert events.count((event, "news")) == len(BROKERS)


def test_B1_H4_a_host_asks_for_no_more_than_its_queue_may_lease() -> None:
    """What is more would wait there, and consumers of other hosts could not have it."""
    mesh = Mesh(max_backlog=2)
    for _ in range(9):
        mesh.send("a")
    eager = mesh.consumer("b", 7)
    got = drain(eager)
    assert (len(got), mesh.depths()) == (2, [7, 2, 0])
    assert len(drain(mesh.consumer("c", 7))) == 2
    for message in got:
        message.ack()
    assert (len(drain(eager)), mesh.depths()) == (2, [3, 2, 2])
