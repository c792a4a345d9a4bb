"""The directory is the same at all brokers, whatever Kafka loses and whoever refuses (Q9, S7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh import keeper
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from lakequeue.state import Limits
from rules.mesh import BROKERS, Mesh

ORDERS = {"name": "orders", "message_type": "json"}


class Network:
    """Loses what `is_lost` says: the kind of a record, its sender and its receiver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heal()
        heard = MemoryBroker.tell

        def tell(broker: Any, record: Any) -> None:
            envelope = mesh_messages.decode(record.value)
            if not self.is_lost(envelope.kind, envelope.name, broker.home.name):
                heard(broker, record)
            elif self.is_once:
                self.heal()

        monkeypatch.setattr(MemoryBroker, "tell", tell)

    def lose(self, *record: str, once: bool = False) -> None:
        self.is_lost: Callable[[str, str, str], bool] = lambda *one: one == record
        self.is_once = once

    def heal(self) -> None:
        self.is_lost, self.is_once = lambda *one: False, False


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


def local(name: str, broker: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "type": "LocalQueue", "broker": broker, **keys}


def ask(mesh: Mesh, command: c.Command) -> list[Any]:
    """The answers to a command for the first broker, as they come."""
    answers: list[Any] = []
    mesh.at["a"].ask(command, answers.append)
    return answers


def change(name: str, **keys: Any) -> c.Define:
    return c.Define(definition={"name": name, **keys}, replace=False)


def entries(mesh: Mesh, broker: str) -> dict[str, Any]:
    """The directory as this broker knows it."""
    engine_broker: Any = mesh.engine.broker(broker)
    found: dict[str, Any] = engine_broker._replica.broker.mesh.facts.entries["default"]
    return found


def is_same_everywhere(mesh: Mesh) -> bool:
    return entries(mesh, "a") == entries(mesh, "b") == entries(mesh, "c")


@pytest.mark.parametrize("deleted", ["first", "last"])
@pytest.mark.parametrize("part", [1, 100])
def test_S7_a_queue_whose_deletion_was_lost_goes_at_the_next_change(
    deleted: str, part: int, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "ENTRIES_MAX", part)
    mesh = Mesh(queues=[local(name, "b") for name in ("first", "last")])
    mesh.send("b", queue=deleted)
    network.lose("entries", "a", "b")
    ask(mesh, c.Delete(queue=deleted))
    network.heal()
    mesh.at["a"].admin().define(local("later", "a"))
    assert is_same_everywhere(mesh)
    mesh.at["a"].admin().define(local(deleted, "b"))
    assert mesh.at["a"].admin().describe(deleted)["depth"] == 0


def test_S7_a_queue_of_the_same_name_does_not_have_the_messages_of_one_whose_deletion_was_lost(
    network: Network,
) -> None:
    mesh = Mesh(queues=[local("queue", "b")])
    mesh.send("b", queue="queue")
    network.lose("entries", "a", "b")
    ask(mesh, c.Delete(queue="queue"))
    network.heal()
    mesh.at["a"].admin().define(local("queue", "b", max_deliveries=3))
    assert mesh.at["a"].admin().describe("queue")["depth"] == 0
    assert is_same_everywhere(mesh)


def test_M2_brokers_find_a_queue_whose_creation_was_lost(network: Network) -> None:
    mesh = Mesh(queues=[local("one", "b", subscriptions=["t/one"])])
    mesh.send("b", queue="t/one")
    network.lose("entries", "a", "b")
    ask(mesh, c.Define(definition=local("two", "c", subscriptions=["t/two"])))
    network.lose("heard", "b", "a")  # the first broker does not hear what is missing
    defined = ask(mesh, c.Define(definition=local("three", "c", subscriptions=["t/three"])))
    assert "two" not in entries(mesh, "b")
    mesh.send("b", queue="t/three")
    assert not defined, "answered, though a broker does not know all queues"
    network.heal()
    mesh.engine.instruct("default", c.encode_command(c.Delete(queue="none")), "b")
    mesh.advance("0s")
    assert is_same_everywhere(mesh)
    assert not defined[0]["error"]
    mesh.send("b", queue="t/two")
    assert mesh.at["a"].admin().describe("two")["depth"] == 1


def test_Q2_a_topic_of_a_queue_whose_creation_was_lost_comes_with_the_queue(
    network: Network,
) -> None:
    mesh = Mesh(queues=[local("one", "b", subscriptions=["t/one"])])
    network.lose("entries", "a", "b", once=True)
    ask(mesh, c.Define(definition=local("two", "c")))
    assert "two" not in entries(mesh, "b")
    ask(mesh, c.SubscribeTopic(queue="two", topic="t/two"))
    mesh.advance("0s")
    assert is_same_everywhere(mesh)
    mesh.send("b", queue="t/two")
    assert mesh.at["a"].admin().describe("two")["depth"] == 1


@pytest.mark.parametrize("lost", [("entries", "a", "c"), ("heard", "c", "a")])
@pytest.mark.parametrize("part", [1, 100])
def test_Q9_a_refusal_that_comes_late_is_of_the_definition_that_it_refuses(
    part: int, lost: tuple[str, str, str], network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "ENTRIES_MAX", part)
    mesh = Mesh(queues=[ORDERS, local("near", "a"), local("other", "a")])
    for _ in range(2):
        mesh.send("c")
    network.lose(*lost)
    refused = ask(mesh, change("orders", max_spool_usage=0))
    network.heal()
    accepted = ask(mesh, change("near", max_deliveries=3))
    assert [bool(answer["error"]) for answer in refused + accepted] == [True, False]
    assert is_same_everywhere(mesh)
    assert entries(mesh, "c")["orders"].definition.max_spool_usage
    assert entries(mesh, "c")["near"].definition.max_deliveries == 3


def test_Q9_a_new_queue_that_a_broker_refuses_late_goes_though_it_is_defined_again(
    network: Network,
) -> None:
    """The broker never had the first definition, so it refused that to which the queue went back
    as well."""
    mesh = Mesh(limits=Limits(queues=3), queues=[local(f"near{n}", "b") for n in range(3)])
    network.lose("entries", "a", "b")
    asked = [ask(mesh, c.Define(definition=ORDERS))]
    network.heal()
    mesh.engine.cut("b")
    asked += [ask(mesh, change("orders", max_deliveries=n)) for n in (3, 4)]
    mesh.engine.mend("b")
    for (answer,) in asked:
        assert "nothing is changed" in answer["error"]
    assert is_same_everywhere(mesh)
    assert "orders" not in entries(mesh, "a")


def test_M5_a_new_queue_does_not_move_before_all_brokers_have_it() -> None:
    """Its broker refuses it, so it would never arrive."""
    mesh = Mesh(limits=Limits(queues=3), queues=[local(f"near{n}", "b") for n in range(3)])
    mesh.engine.cut("b")
    defined = ask(mesh, c.Define(definition=local("new", "b")))
    moved = ask(mesh, c.MoveQueue(queue="new", broker="c"))
    assert "try again later" in moved[0]["error"]
    mesh.engine.mend("b")
    assert "nothing is changed" in defined[0]["error"]
    assert is_same_everywhere(mesh)
    assert "new" not in entries(mesh, "a")
    mesh.at["a"].admin().define(local("new", "c"))
    ask(mesh, c.MoveQueue(queue="new", broker="a"))
    assert mesh.at["a"].admin().describe("new")["depth"] == 0


def test_Q9_X5_a_definition_that_is_taken_back_makes_no_ring_of_dead_message_queues() -> None:
    """Giving it back failed, and nobody was answered any more."""
    mesh = Mesh(queues=[{**ORDERS, "dead_message_queue": "dead"}, {**ORDERS, "name": "dead"}])
    for _ in range(2):
        mesh.send("c")
    mesh.engine.cut("c")
    first = ask(mesh, change("orders", max_spool_usage=0, dead_message_queue=None))
    ring = ask(mesh, change("dead", dead_message_queue="orders"))
    mesh.engine.mend("c")
    assert "nothing is changed" in first[0]["error"]
    assert "dead → orders → dead" in ring[0]["error"]
    assert is_same_everywhere(mesh)
    mesh.at["a"].admin().define({"name": "dead", "max_deliveries": 3})
    assert all(entries(mesh, b)["dead"].definition.max_deliveries == 3 for b in BROKERS)


@pytest.mark.parametrize("cut", BROKERS)
@pytest.mark.parametrize("first", ["moves", "is defined"])
def test_Q9_S10_M5_a_queue_with_several_messages_keeps_them_though_it_is_moving(
    cut: str, first: str
) -> None:
    """Its old broker had given them away, and its new one had not got them yet."""
    mesh = Mesh(queues=[local("queue", "b")])
    for _ in range(2):
        mesh.send("b", queue="queue")
    mesh.engine.cut(cut)
    commands = [c.MoveQueue(queue="queue", broker="c"), change("queue", max_spool_usage=0)]
    for command in commands if first == "moves" else reversed(commands):
        ask(mesh, command)
    mesh.engine.mend(cut)
    for _ in range(3):
        mesh.send("c", queue="queue")
    assert mesh.at["a"].admin().describe("queue")["depth"] == 5
    assert is_same_everywhere(mesh)
    assert entries(mesh, "a")["queue"].hosts == [2]


@pytest.mark.parametrize("host", ["a", "b"])
@pytest.mark.parametrize("kind", ["carry", "come", "has_moved"])
def test_M5_a_move_ends_whatever_was_lost_of_it(kind: str, host: str, network: Network) -> None:
    """The queue was nowhere, or without its messages."""
    near = [local(f"at-{broker}", broker, subscriptions=[f"t/{broker}"]) for broker in BROKERS]
    mesh = Mesh(queues=[local("queue", host), *near])
    mesh.send(host, queue="queue")
    ends = {"carry": (host, "c"), "come": ("c", host), "has_moved": ("c", "a")}
    network.lose(kind, *ends[kind], once=True)
    moved = ask(mesh, c.MoveQueue(queue="queue", broker="c"))
    for sender, to in ("ac", "bc", "cb", "ca"):  # only what is said next tells of a lost word
        mesh.send(sender, queue=f"t/{to}")
    mesh.advance("0s")
    assert not moved[0]["error"]
    assert entries(mesh, "a")["queue"].hosts == [2]
    assert is_same_everywhere(mesh)
    mesh.send("a", queue="queue")
    assert mesh.at["a"].admin().describe("queue")["depth"] == 2
    brokers: list[Any] = mesh.engine.brokers
    assert not any(one._replica.broker.mesh.facts.went for one in brokers)
    for one in brokers:
        one.check()
