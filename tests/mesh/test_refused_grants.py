"""A broker that was granted messages of a distributed queue cannot take some of them in (H4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh import handover
from lakequeue.protocol import mesh_messages
from rules.harness import drain
from rules.mesh import BROKERS, Mesh
from rules.mortal import Fate


class Failing:
    """Taking in fails at these brokers, at messages of these numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: str, numbers: set[int]) -> None:
        self.failures = 0
        take_in = handover.take_in

        def fails(
            broker: Any, queue: Any, row: Any, content: Any, waiting: bool, *more: bool
        ) -> None:
            said = json.loads(content[0])
            if broker.header.name in brokers and not waiting and said.get("n") in numbers:
                self.failures += 1
                raise RuntimeError("a bug")
            take_in(broker, queue, row, content, waiting, *more)

        monkeypatch.setattr(handover, "take_in", fails)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("together", [True, False])
def test_H4_what_cannot_be_taken_in_takes_nothing_else_along(
    seed: int | None, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other messages are delivered once, and consumers go on to get messages."""
    mesh = Mesh(Fate(seed) if seed else None)
    failing = Failing(monkeypatch, "bc", {3, 11})
    consumers = {name: mesh.consumer(name, 4) for name in "bc"}
    got: list[int] = []
    again: list[int] = []

    def consume() -> None:
        for consumer in consumers.values():
            for message in drain(consumer):
                (again if message.redelivered else got).append(json.loads(message.payload)["n"])
                message.ack()

    for n in range(40):
        mesh.send("a", {"n": n})
        if not together or n % 7 == 6:
            consume()
    for _ in range(30):
        mesh.advance("1s")
        consume()
    assert sorted(got) == [n for n in range(40) if n not in (3, 11)]
    assert mesh.depths() == [0, 0, 0]
    assert 2 <= failing.failures <= 30
    counters = mesh.seen("a")["counters"]
    assert counters["expired"] == counters["discarded"] == 2


def test_H4_a_failure_at_one_broker_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it could not take in goes to the dead message queue, with the reason; its consumers are
    given the next messages."""
    one: dict[str, Any] = {"message_type": "json", "max_per_subscription_backlog": 100}
    dead_queue = {"name": "dead", "type": "LocalQueue", "broker": "a"}
    mesh = Mesh(queues=[one | {"name": "orders", "dead_message_queue": "dead"}, one | dead_queue])
    Failing(monkeypatch, "b", {0, 1, 2})
    first, second = mesh.consumer("b", 3), None
    for n in range(3):
        mesh.send("a", {"n": n})
    second = mesh.consumer("c", 3)
    for n in range(3, 12):
        mesh.send("a", {"n": n})
    got: list[int] = []
    for _ in range(10):
        for consumer in (first, second):
            for message in drain(consumer):
                assert not message.redelivered
                got.append(json.loads(message.payload)["n"])
                message.ack()
        mesh.advance("1s")
    dead = mesh.at["a"].consumer("dead", ack_mode="individual", max_backlog=9)
    found = drain(dead)
    assert sorted(got + [json.loads(m.payload)["n"] for m in found]) == list(range(12))
    assert {m.headers["lq-dead-reason"] for m in found} <= {"malformed"}


@pytest.mark.parametrize(("owner", "other"), [("a", "c"), ("c", "a")])
def test_H4_R3_what_two_hosts_grant_to_each_other_is_still_there(
    owner: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first grant is lost, so its owner does not know that it went, and there it
    is granted back."""
    mesh = Mesh()
    sent = mesh.send(owner, {"n": 1})
    heard, phases = MemoryBroker.tell, ["answer", "hand_over"]

    def tell(self: Any, record: Any) -> None:
        """Kafka loses what the other one says to the owner, from its answer to its own grant."""
        envelope = mesh_messages.decode(record.value)
        is_back = (envelope.name, self.home.name) == (other, owner)
        if is_back and phases and envelope.kind == phases[0]:
            del phases[0]
        if not is_back or len(phases) != 1:
            heard(self, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    away = mesh.consumer(other, 1)
    assert [m.id for m in drain(away)] == [sent]
    away.close()  # it is ready there; here it is in transit
    back = mesh.consumer(owner, 1)  # asks for it
    taken = [m.id for m in drain(back)]
    back.close()
    assert not phases
    mesh.advance("1s")
    taken += [m.id for name in BROKERS for m in drain(mesh.consumer(name, 10))]
    assert set(taken) == {sent}
    assert sum(mesh.depths()) == 1


@pytest.mark.parametrize(("owner", "other"), [("a", "c"), ("c", "a")])
def test_H4_L5_a_late_repetition_of_a_grant_takes_nothing_back(
    owner: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost record makes the owner repeat a grant while its answer is under way. Meanwhile the
    message is granted back. The repetition must not look like a grant that crosses this one."""
    mesh = Mesh()
    heard, lost, held = MemoryBroker.tell, ["hand_over"], []
    is_slow = False

    def tell(self: Any, record: Any) -> None:
        """Kafka loses the first grant. What the other one says to the owner may be slow."""
        envelope = mesh_messages.decode(record.value)
        way = envelope.name, self.home.name
        if way == (owner, other) and lost == [envelope.kind]:
            lost.clear()
        elif way == (other, owner) and is_slow:
            held.append((self, record))
        else:
            heard(self, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    away = mesh.consumer(other, 5)
    first = mesh.send(owner, {"n": 1})
    is_slow = True
    second = mesh.send(owner, {"n": 2})
    taken = [(m.id, m.redelivered) for m in drain(away)]
    assert (lost, taken) == ([], [(second, False)])
    away.close()
    back = mesh.consumer(owner, 5)  # asks for it, and gets it in one of the slow records
    found = []
    for _ in range(4):
        slow, held = held, []
        for at, record in slow:
            heard(at, record)
        mesh.advance("1s")
        for message in drain(back):
            found.append((message.id, message.redelivered))
            message.ack()
        mesh.advance("1s")
    assert sorted(found) == sorted([(first, False), (second, True)])
    assert sum(mesh.depths()) == 0
