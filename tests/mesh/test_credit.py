"""Brokers forget each other's consumers once these end, recreated queues start anew, and a granted
message that a broker cannot take affects no other (H4, S7)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lakequeue.mesh import credit, handover
from lakequeue.mesh.facts import CREDITS, DIRECTORY, PAGE, Credits, MeshFacts
from lakequeue.protocol import commands as c
from lakequeue.protocol.mesh_messages import HandOver
from mesh.bugs import Bug
from rules.harness import drain
from rules.mesh import (
    BROKERS,
    LATE,
    LOST,
    Mesh,
    Network,
    Word,
    ids,
    local,
    numbers,
    shared,
    take,
)


def test_H4_a_filter_is_forgotten_with_its_last_consumer() -> None:
    mesh = Mesh(shared())
    consumers = [mesh.consumer("b", 2, filter=f"/n = {n}") for n in range(5)]
    consumers.append(mesh.consumer("b", 2))
    sent = [mesh.send("a", body={"n": n}) for n in range(8)]
    assert len([message for consumer in consumers for message in drain(consumer)]) >= 7
    header = mesh.state("a").find("default", "orders").header
    assert sum(one.broker is not None for one in header.subscriptions) >= 6
    for consumer in consumers:
        consumer.close()
    assert [one for one in header.subscriptions if one.broker is not None] == []
    assert [mesh.facts(name).credits.rooms for name in BROKERS] == [{}, {}, {}]
    assert sorted(ids(drain(mesh.consumer("c", 20)))) == sorted(sent)  # and it begins anew


def test_a_mark_writes_the_directory_only_where_it_changed() -> None:
    mesh = Mesh(shared())
    state = mesh.state("a")
    consumer = mesh.consumer("b", 2)
    written: list[set[str]] = []

    def mark() -> None:
        before = dict(state.store.pages)
        state.store.pages.clear()
        state.mesh.mark()
        written.append(set(state.store.pages) & {PAGE, DIRECTORY, CREDITS})
        state.store.pages.update({**before, **state.store.pages})

    mark()
    mark()
    mesh.send("a")
    mark()
    mesh.consumer("a", 2)
    mark()
    mesh.admin.subscribe_topic("orders", "news")
    mark()
    assert written[1:] == [{PAGE}, {PAGE}, {PAGE, CREDITS}, {PAGE, DIRECTORY}]
    assert len(drain(consumer)) == 1


def test_B1_H4_a_host_requests_no_more_than_its_queue_may_lease() -> None:
    """More would wait there, out of reach for consumers of other hosts."""
    mesh = Mesh(shared(max_backlog=2))
    for _ in range(9):
        mesh.send("a")
    eager = mesh.consumer("b", 7)
    got = drain(eager)
    assert (len(got), mesh.depths()) == (2, [7, 2, 0])
    assert len(drain(mesh.consumer("c", 7))) == 2
    for message in got:
        message.ack()
    assert (len(drain(eager)), mesh.depths()) == (2, [3, 2, 2])


# ---------------------------------------------------------------- credit sent, and credit left

ONE, OTHER = "/n = 1", "/n = 2"


@pytest.mark.parametrize(
    ("left", "rooms", "ready", "told", "then"),
    [
        pytest.param({}, {None: 3}, 0, [(None, 3)], {None: 3}, id="the first"),
        pytest.param({None: 5}, {None: 10}, 0, [], {None: 5}, id="half of it is left"),
        pytest.param({None: 4}, {None: 10}, 0, [(None, 10)], {None: 10}, id="less than half"),
        pytest.param({None: 5}, {None: 11}, 0, [(None, 11)], {None: 11}, id="less than 5.5"),
        pytest.param({None: 9}, {None: 2}, 5, [], {None: 9}, id="some, while messages are ready"),
        pytest.param({None: 3}, {None: 0}, 1, [(None, 0)], {None: 0}, id="none, and one is ready"),
        pytest.param({None: 3}, {None: 0}, 0, [], {None: 3}, id="none, and nothing waits"),
        pytest.param({None: 0}, {None: 0}, 1, [], {None: 0}, id="none, as it is known"),
        pytest.param({ONE: 2}, {OTHER: 2}, 0, [(OTHER, 2), (ONE, None)], {OTHER: 2}, id="filters"),
    ],
)
def test_H4_credit_is_sent_when_less_than_half_or_none_of_it_is_left(
    left: credit.Rooms, rooms: credit.Rooms, ready: int, told: Any, then: credit.Rooms
) -> None:
    header = SimpleNamespace(depth=ready + 5, leased=2, delayed=3)
    assert credit._changed(SimpleNamespace(header=header), left, rooms) == told
    assert left == then


def test_H4_arrived_messages_use_up_the_senders_credit() -> None:
    rooms = {("v", "q"): {1: {None: 5, ONE: 2}, 2: {None: 5}}}
    facts = MeshFacts(credits=Credits(rooms=rooms))

    def come(n: int, text: str | None = None, waiting: bool = False, queue: str = "q") -> Any:
        credit.count_come(facts, 1, HandOver("v", queue, waiting, 0, text, b"", [], 0), n)
        return [*facts.credits.rooms["v", "q"].values()]

    assert come(3) == [{None: 2, ONE: 2}, {None: 5}]
    assert come(1, ONE) == [{None: 2, ONE: 1}, {None: 5}]
    assert come(9, ONE) == [{None: 2, ONE: 0}, {None: 5}]
    for other in ({"text": OTHER}, {"waiting": True}, {"queue": "r"}):
        assert come(1, **other) == [{None: 2, ONE: 0}, {None: 5}]


# ---------------------------------------------------------------- recreated queues

NEW = local("new", "b", "news")


def hears_late(network: Network, broker: str) -> None:
    """It gets the keeper's messages later than the other broker's: there is no order between two
    pairs."""
    network.fault = lambda word: LATE if (word.sender, word.to) == ("a", broker) else None


def catch_up(mesh: Mesh, network: Network, wait: str = "0s") -> None:
    network.heal()
    mesh.advance(wait)


def make_anew(mesh: Mesh, definition: dict[str, Any]) -> None:
    mesh.tell(c.Delete(queue="new"))
    mesh.tell(c.Define(definition=definition))


def test_H4_credit_is_sent_to_a_host_that_does_not_know_the_queue_yet(network: Network) -> None:
    mesh = Mesh(shared("other"))
    hears_late(network, "c")
    mesh.tell(c.Define(definition=shared("new")))
    consumer = mesh.consumer("b", 1, "new")
    catch_up(mesh, network)
    sent = mesh.send("c", "new")
    assert ids(drain(consumer)) == [sent]


@pytest.mark.parametrize("late", ["b", "c"])
def test_H4_S7_a_recreated_queue_starts_empty_at_each_host(late: str, network: Network) -> None:
    """Whichever of the two learns of it last, the host with messages or the one with consumers."""
    mesh = Mesh(shared("new"))
    before = mesh.consumer("b", 1, "new")
    for _ in range(5):
        mesh.send("c", "new")
        assert len(take(before)) == 1
    if late == "c":
        before.close()
    hears_late(network, late)
    make_anew(mesh, shared("new"))
    consumer = mesh.consumer("b", 1, "new") if late == "c" else None
    gone = mesh.send("c", "new") if late == "c" else ""  # into the deleted queue
    catch_up(mesh, network)
    consumer = consumer or mesh.consumer("b", 1, "new")
    sent = mesh.send("c", "new")
    assert ids(drain(consumer)) == [sent]
    assert gone != sent


def test_H4_deleting_a_queue_keeps_the_credit_of_queues_with_longer_names(
    network: Network,
) -> None:
    mesh = Mesh(shared(), shared("orders/eu"))
    consumer = mesh.consumer("b", 1, "orders/eu")
    hears_late(network, "c")
    for number in range(5):
        mesh.send("c", "orders/eu")
        assert len(take(consumer)) == 1
        if number == 3:
            mesh.tell(c.Delete(queue="orders"))
    catch_up(mesh, network)
    sent = mesh.send("c", "orders/eu")
    assert ids(drain(consumer)) == [sent]


@pytest.mark.parametrize("late", ["b", "c"])
def test_S7_M2_a_local_queue_is_recreated_while_messages_cross(late: str, network: Network) -> None:
    """No message of the old queue enters the new one, and none of the new one is lost with the old
    one, whichever broker learns of it last: the queue's host or the sender."""
    mesh = Mesh(NEW)
    hears_late(network, late)
    make_anew(mesh, NEW)
    sent = [mesh.send("a", "news")]
    # into the old one, if c does not know the new one yet
    crossed = mesh.send("c", "news")
    if late == "b":
        sent.append(crossed)
    mesh.advance("5s")
    catch_up(mesh, network, "5s")
    sent.append(mesh.send("c", "news"))
    assert sorted(ids(mesh.take("new", "b", rounds=5))) == sorted(sent)


def test_S7_an_answer_about_a_deleted_queue_does_not_affect_the_new_one(network: Network) -> None:
    """A broker refuses messages for the old queue; the new one, whose stand-in was made at the same
    moment, has messages in transit of its own."""
    mesh = Mesh(NEW | {"max_spool_messages": 1})
    for _ in range(3):
        mesh.send("c", "news")
    hears_late(network, "c")
    make_anew(mesh, NEW)
    mesh.advance("3s")
    catch_up(mesh, network)
    sent = [mesh.send("c", "news") for _ in range(3)]
    mesh.advance("1s")
    assert ids(mesh.take("new", "b", rounds=5)) == sent


def test_Q2_each_host_of_a_queue_reports_a_topic_subscription() -> None:
    mesh = Mesh(shared())
    admin = mesh.at["c"].admin()
    assert admin.subscribe_topic("orders", "news") is True
    assert admin.subscribe_topic("orders", "news") is False
    admin.unsubscribe_topic("orders", "news")
    events = [(e["event"], e.get("topic")) for e in admin.events()]
    for event in ("topic_subscribed", "topic_unsubscribed"):
        assert events.count((event, "news")) == len(BROKERS)


# ---------------------------------------------------------------- failures


def test_H4_a_failure_at_one_broker_leaves_the_others_alone(bug: Bug) -> None:
    """Messages that b could not store go to the dead message queue, with the reason; its consumers
    get the next messages."""
    mesh = Mesh(shared(dead_message_queue="dead"), local("dead", "a"))
    bug.plant(
        handover, "take_in", "b",
        lambda queue, row, content, waiting: not waiting and int(content[0]) < 3,
    )  # fmt: skip
    consumers = [mesh.consumer("b", 3)]
    for n in range(12):
        if n == 3:
            consumers.append(mesh.consumer("c", 3))
        mesh.send("a", body=n)
    got: list[Any] = []
    for _ in range(10):
        got += [message for consumer in consumers for message in take(consumer)]
        mesh.advance("1s")
    assert not any(message.redelivered for message in got)
    dead = mesh.take("dead")
    assert sorted(numbers(got + dead)) == list(range(12))
    assert {m.headers["lq-dead-reason"] for m in dead} <= {"malformed"}
    assert 1 <= bug.failures <= 30
    assert mesh.depths() == [0, 0, 0]


# ---------------------------------------------------------------- two hosts grant to each other


@pytest.mark.parametrize(("owner", "other"), [("a", "c"), ("c", "a")])
def test_H4_R3_messages_granted_back_and_forth_survive(
    owner: str, other: str, network: Network
) -> None:
    """The answer to the first grant is lost, so the owner does not know that the message has left,
    and gets it granted back."""
    mesh = Mesh(shared())
    phases = ["answer", "hand_over"]

    def fault(word: Word) -> str | None:
        """The other one's messages to the owner, from its answer to its own grant."""
        if (word.sender, word.to) != (other, owner):
            return None
        if phases and word.kind == phases[0]:
            del phases[0]
        return LOST if len(phases) == 1 else None

    network.fault = fault
    sent = mesh.send(owner)
    with mesh.consumer(other, 1) as away:
        assert ids(drain(away)) == [sent]
    with mesh.consumer(owner, 1) as back:  # it is ready there; here it is in transit
        taken = ids(drain(back))
    assert not phases
    mesh.advance("1s")
    taken += [m.id for name in BROKERS for m in drain(mesh.consumer(name, 10))]
    assert set(taken) == {sent}
    assert sum(mesh.depths()) == 1


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
def test_H4_a_message_that_returns_before_its_answer_is_refused(
    order: tuple[str, str, str], network: Network
) -> None:
    """Its owner grants it to a second host, that to a third, and that to the first one again, while
    the second one's answer is slow. If the first one took it for its own, the answer would remove
    the only copy."""
    first, second, third = order
    mesh = Mesh(shared())

    def slow(word: Word) -> str | None:
        return LATE if (word.sender, word.to) == (second, first) else None

    away = mesh.consumer(second, 1)
    network.fault = slow
    sent = mesh.send(first)
    away.close()
    away = mesh.consumer(third, 1)
    mesh.advance("1s")
    away.close()
    back = mesh.consumer(first, 5)
    mesh.advance("1s")
    assert not take(back)
    network.heal()
    mesh.advance("10s")
    assert ids(take(back)) == [sent]
    assert sum(mesh.depths()) == 0
