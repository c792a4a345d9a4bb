"""Ownership moves while brokers die at random: never two owners, never none, nothing lost, and
nothing twice that does not say so (Q5, H4)."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import LeaseLost, Rejected
from lakequeue.state import Batch
from model.limits import TINY

from .harness import drain
from .mesh import BROKERS, Mesh, owned
from .mortal import Fate

FILTERS = (None, None, "/n > 30", "/n % 2 = 0")


class Judge:
    """Looks at who owns what after every step of every broker."""

    def __init__(self, mesh: Mesh) -> None:
        self.engine = mesh.engine
        self.sent: set[str] = set()
        self.looked = 0
        self.moved = 0
        take = self.engine._step

        def watched(broker: MemoryBroker, batch: Batch, checked: bool = True) -> None:
            take(broker, batch, checked)
            self.look()

        self.engine._step = watched  # type: ignore[method-assign]

    def gone(self) -> set[str]:
        """What consumers have settled, by the journal."""
        over = ("acknowledged", "consumer_rejected", "expired")
        return {r["message_id"] for r in self.engine.journal() if r["event"] in over}

    def look(self) -> None:
        found = [owned(broker, self.engine.now) for broker in self.engine.brokers]
        owners = Counter(number for own, _ in found for number in own)
        assert max(owners.values(), default=1) == 1, f"two owners: {owners.most_common(3)}"
        moving = {number for _, away in found for number in away}
        missing = self.sent - set(owners) - moving - self.gone()
        assert not missing, f"no owner: {missing}"
        self.looked += 1
        self.moved += len(moving)


class Traffic:
    """What applications do at random."""

    def __init__(self, mesh: Mesh, judge: Judge, fate: Fate) -> None:
        self.mesh, self.judge, self.random = mesh, judge, fate.random
        self.consumers: list[Any] = []
        self.held: list[tuple[Any, Any]] = []
        self.told: dict[str, int] = {}  # highest delivery count by id
        self.acked: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.n = 0

    def one(self) -> None:
        """Something happens."""
        choice = self.random.choice(["send"] * 4 + ["open", "close", "settle", "settle", "time"])
        getattr(self, choice)()
        for consumer in self.consumers:
            for message in drain(consumer):
                self.receive(consumer, message)

    def receive(self, consumer: Any, message: Any) -> None:
        before = self.told.get(message.id, 0)
        assert not before or message.redelivered, f"{message.id} twice, and does not say so"
        assert message.delivery_count > before, f"{message.id}: count {message.delivery_count}"
        assert message.id not in self.acked, f"{message.id} after its ack"
        self.told[message.id] = message.delivery_count
        self.held.append((consumer, message))

    def send(self) -> None:
        self.n += 1
        broker = self.random.choice(BROKERS)
        with suppress(Rejected):  # by a quota
            body = {"n": self.n, "k": self.n % 3}
            self.judge.sent.add(self.mesh.send(broker, body))

    def open(self) -> None:
        if len(self.consumers) < 4:
            broker, backlog = self.random.choice(BROKERS), self.random.choice([1, 2, 5])
            text = self.random.choice(FILTERS)
            self.consumers.append(self.mesh.consumer(broker, backlog, filter=text))

    def close(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            self.held = [(c, m) for c, m in self.held if c is not consumer]
            consumer.close()

    def settle(self) -> None:
        if self.held:
            _, message = self.held.pop(self.random.randrange(len(self.held)))
            how = self.random.choice(["ack", "ack", "ack", "cancel", "reject"])
            try:
                getattr(message, how)()
            except LeaseLost:  # it has gone on meanwhile
                return
            if how == "ack":
                self.acked[message.id] += 1
            elif how == "reject":
                self.rejected[message.id] += 1

    def time(self) -> None:
        self.mesh.advance("100ms")

    def finish(self) -> None:
        """Everything that is left is consumed at one broker."""
        for consumer in self.consumers:
            consumer.close()
        self.held = []
        last = self.mesh.consumer(self.random.choice(BROKERS), 3)
        while messages := drain(last):
            for message in messages:
                self.receive(last, message)
                message.ack()
                self.acked[message.id] += 1


def in_use(seed: int, **keys: Any) -> tuple[Mesh, Judge, Traffic, Fate]:
    """A queue in use, whose brokers die, and who watches it."""
    fate = Fate(seed, death=0.5)
    mesh = Mesh(fate, TINY if seed % 2 else None, **keys)
    judge = Judge(mesh)
    return mesh, judge, Traffic(mesh, judge, fate), fate


@pytest.mark.parametrize(
    ("seed", "keys"),
    [
        (0, {}),
        (1, {"type": "GroupLocalQueue", "initial_owner": "b"}),
        (2, {"priority": "/n"}),
        (3, {"max_spool_usage": 60, "lease_period": "150ms"}),
        (4, {"max_backlog": 2, "semantics": "at-least-once", "fairness_model": "round-robin"}),
        (5, {"partition_key": "/k"}),
    ],
)
def test_H4_never_two_owners_and_never_none(seed: int, keys: dict[str, Any]) -> None:
    mesh, judge, traffic, fate = in_use(seed, **keys)
    for _ in range(45):
        traffic.one()
    mesh.engine.fated(None)
    traffic.finish()
    assert set(traffic.acked) | set(traffic.rejected) == judge.sent
    assert not set(traffic.acked) & set(traffic.rejected)
    assert set(traffic.acked.values()) <= {1}
    assert mesh.depths() == [0, 0, 0]
    assert judge.moved > 0
    assert fate.deaths > 34  # 200 in all seeds together
