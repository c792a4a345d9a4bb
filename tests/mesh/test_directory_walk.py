"""Random walks: queues come, change, move and go, while brokers are cut off, brokers refuse, and
Kafka loses what they say of the directory. In the end all know the same queues, and have them."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import LakequeueError, mesh_messages
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from rules.mesh import BROKERS, Mesh

SEEDS, LENGTH = (*range(34, 66), 2013), 40  # some of them found bugs
NAMES = ("one", "two", "three")
OF_DIRECTORY = ("entries", "heard")
KINDS: tuple[dict[str, Any], ...] = ({}, {}, {"type": "LocalQueue"}, {"partition_key": "/k"})
CHANGES: tuple[dict[str, Any], ...] = (
    {"max_spool_usage": 0}, {"max_spool_usage": "1MB"}, {"max_deliveries": 2}, {"filter": "/k = 1"},
    {"dead_message_queue": None}, *({"dead_message_queue": name} for name in NAMES),
    *({"subscriptions": [f"t/{name}"]} for name in NAMES),
)  # fmt: skip


class Walk:
    """One walk. lost: the part of the records about the directory that Kafka loses."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = r = random.Random(seed)
        self.lost, self.cut = r.choice((0.0, 0.1, 0.3)), set[str]()
        limits = Limits(queues=r.choice((2, 3, 100)), live_rows=4, segment_rows=4)
        heard = MemoryBroker.tell

        def tell(broker: Any, record: Any) -> None:
            kind = mesh_messages.decode(record.value).kind
            if kind not in OF_DIRECTORY or r.random() >= self.lost:
                heard(broker, record)

        monkeypatch.setattr(MemoryBroker, "tell", tell)
        self.mesh = Mesh(limits=limits, queues=[{"name": "base", "message_type": "json"}])

    def go(self) -> None:
        for _ in range(LENGTH):
            with contextlib.suppress(LakequeueError):  # a message that no queue takes, for instance
                self.step(self.random.choice(NAMES))
        self.lost = 0.0
        for broker in sorted(self.cut):
            self.mesh.engine.mend(broker)
        for n in range(3):  # only what is said next tells of a lost word
            self.define({"name": "base", "max_deliveries": n + 1}, replace=False)
            for broker in BROKERS:
                self.mesh.engine.instruct("default", c.encode_command(c.Delete(queue="no")), broker)
            self.mesh.advance("5s")

    def step(self, name: str) -> None:
        r, mesh = self.random, self.mesh
        match r.randrange(14):
            case 0 | 1:
                kind = r.choice(KINDS)
                if "type" in kind:
                    kind = {**kind, "broker": r.choice(BROKERS)}
                self.define({"name": name, "message_type": "json", **kind, **r.choice(CHANGES)})
            case 2 | 3 | 4:
                self.define({"name": name, **r.choice(CHANGES)}, replace=False)
            case 5:
                self.ask(c.Delete(queue=name))
            case 6:
                self.ask(c.MoveQueue(queue=name, broker=r.choice(BROKERS)))
            case 7:
                ingress, egress = r.random() < 0.3, r.random() < 0.3
                self.ask(c.Shutdown(queue=name, ingress=ingress, egress=egress))
            case 8:
                which = r.choice((c.SubscribeTopic, c.UnsubscribeTopic))
                self.ask(which(queue=name, topic=f"t/{r.choice(NAMES)}"))
            case 9 | 10:
                mesh.send(r.choice(BROKERS), {"k": r.randrange(3)}, r.choice((name, f"t/{name}")))
            case 11:
                self.cut.add(broker := r.choice(BROKERS))
                mesh.engine.cut(broker)
            case 12 if self.cut:
                self.cut.discard(broker := r.choice(sorted(self.cut)))
                mesh.engine.mend(broker)
            case 13:
                mesh.advance("1s")

    def define(self, definition: dict[str, Any], replace: bool = True) -> None:
        self.ask(c.Define(definition=definition, replace=replace))

    def ask(self, command: c.Command) -> None:
        self.mesh.at["a"].ask(command, lambda answer: None)

    def judge(self) -> None:
        brokers = {name: self.mesh.engine.broker(name)._replica.broker for name in BROKERS}
        known = {name: broker.mesh.facts for name, broker in brokers.items()}  # type: ignore[attr-defined]
        assert known["a"].entries == known["b"].entries == known["c"].entries
        assert not known["a"].waiting, "somebody has no answer"
        for name, broker in brokers.items():
            self.mesh.engine.broker(name).check()
            facts = known[name]
            moving = facts.moves or facts.coming or facts.leaving or facts.arriving
            assert not moving, "a move never ends"
            for queue, entry in facts.entries["default"].items():
                there = broker.find("default", queue)
                assert (there is not None) == (broker.header.number in entry.hosts)
                if there is not None:
                    header = there.header
                    assert (header.definition, header.topics) == (entry.definition, entry.topics)
                    assert (header.ingress, header.egress) == (entry.ingress, entry.egress)


def test_Q9_S7_M5_H5_all_brokers_have_the_queues_of_one_directory() -> None:
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            walk = Walk(seed, monkeypatch)
            try:
                walk.go()
                walk.judge()
            except AssertionError as error:
                error.add_note(f"seed {seed}")
                raise
