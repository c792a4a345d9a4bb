"""Storms: for some steps Kafka loses a third of all that brokers say. Then brokers fall silent, and
every queue is complete and in use (M2, M5, H4, P1, R3)."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import msgspec
import pytest
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh import keeper
from lakequeue.protocol import LakequeueError, mesh_messages
from lakequeue.protocol import commands as c
from lakequeue.protocol.mesh_messages import Carry, Entries, Heard
from lakequeue.protocol.wire import WireRecord
from lakequeue.state import Limits
from rules.harness import drain
from rules.mesh import BROKERS, Mesh

SEEDS, LENGTH = (0, 15, 25, 27, 32, 36, 40, 50, 52, 55, 59), 50  # some of them found bugs
LOST, STORMS = 0.3, (5, 20, 60)  # part of the records; steps
STEPS_MAX = 300  # of all brokers, for one thing that a client does
QUEUES: list[dict[str, Any]] = [
    {"name": "far", "type": "LocalQueue", "broker": "b"},
    {"name": "keyed", "type": "LocalQueue", "broker": "a", "partition_key": "/k"},
    {"name": "all"},
    *({"name": f"at-{name}", "type": "LocalQueue", "broker": name} for name in BROKERS),
]
COMMON = {"message_type": "json", "max_per_subscription_backlog": 5}
QUEUES = [{"subscriptions": [f"t/{one['name']}"], **COMMON, **one} for one in QUEUES]
MOVED, USED = ("far", "keyed"), ("far", "keyed", "all")


class Walk:
    """One walk. left: how many steps the storm still lasts; steps: since a client did something."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = r = random.Random(seed)
        self.left = self.steps = self.sent = 0
        self.got: dict[int, list[int]] = {}  # by message: its delivery counts
        limits = r.choice((None, Limits(live_rows=4, segment_rows=4)))
        self.mesh = Mesh(limits=limits, queues=QUEUES)
        self.consumers: list[Any] = []
        heard, step = MemoryBroker.tell, MemoryBroker.step

        def tell(broker: Any, record: WireRecord) -> None:
            if self.left <= 0 or r.random() >= LOST:
                heard(broker, record)

        def count(broker: Any, *given: Any) -> Any:
            self.left -= 1
            self.steps += 1
            assert self.steps < STEPS_MAX, "brokers do not fall silent"
            return step(broker, *given)

        monkeypatch.setattr(MemoryBroker, "tell", tell)
        monkeypatch.setattr(MemoryBroker, "step", count)

    def go(self) -> None:
        for _ in range(LENGTH):
            if self.random.random() < 0.15:
                self.left = self.random.choice(STORMS)
            self.steps = 0
            with contextlib.suppress(LakequeueError):
                self.act(self.random.choice(USED))

    def act(self, queue: str) -> None:
        r = self.random
        match r.randrange(10):
            case 0 | 1 | 2 | 3:
                for _ in range(r.choice((1, 1, 5))):
                    self.send(queue, r.choice(BROKERS))
            case 4:
                self.consumers.append(self.mesh.consumer(r.choice(BROKERS), 5, queue))
            case 5 if self.consumers:
                self.consumers.pop(r.randrange(len(self.consumers))).close()
            case 6 | 7:
                self.consume()
            case 8:
                self.ask(c.MoveQueue(queue=r.choice(MOVED), broker=r.choice(BROKERS)))
            case 9:
                self.define(queue, r.choice((50, 60)))
                self.mesh.advance(r.choice(("100ms", "1s", "5s")))

    def send(self, queue: str, broker: str) -> None:
        self.sent += 1
        self.mesh.send(broker, {"n": self.sent, "k": self.random.randrange(2)}, f"t/{queue}")

    def define(self, queue: str, deliveries: int) -> None:
        definition = {"name": queue, "max_deliveries": deliveries}
        self.ask(c.Define(definition=definition, replace=False))

    def ask(self, command: c.Command) -> None:
        self.mesh.at["a"].ask(command, lambda answer: None)

    def consume(self) -> None:
        for consumer in self.consumers:
            for message in drain(consumer):
                number = json.loads(message.payload).get("n")
                self.got.setdefault(number, []).append(message.delivery_count)
                message.ack()

    def end(self) -> None:
        """The storm is over. Each broker says something to each, which shows what was lost."""
        self.left = 0
        for n in range(3):
            for broker in BROKERS:
                for other in BROKERS:
                    self.steps = 0
                    self.mesh.send(broker, queue=f"t/at-{other}")
            self.steps = 0
            self.define("all", 70 + n)
            self.mesh.advance("5s")
        for queue in USED:
            for broker in BROKERS:
                self.steps = 0
                self.send(queue, broker)
        for consumer in self.consumers:
            consumer.close()
        hosts = {name: self.facts(name) for name in BROKERS}
        self.consumers = [
            self.mesh.consumer(name, 5, queue)
            for queue in USED for name in BROKERS
            if hosts[name].brokers[name] in hosts["a"].entries["default"][queue].hosts
        ]  # fmt: skip
        before = -1
        while before < len(self.got):
            before, self.steps = len(self.got), 0
            self.consume()
            self.mesh.advance("10s")

    def facts(self, broker: str) -> Any:
        engine_broker: Any = self.mesh.engine.broker(broker)
        return engine_broker._replica.broker.mesh.facts

    def check(self) -> None:
        first = self.facts("a")
        for name in BROKERS:
            facts = self.facts(name)
            assert facts.entries == first.entries
            assert not facts.waiting, "somebody has no answer"
            moving = facts.moves or facts.coming or facts.leaving or facts.arriving or facts.went
            assert not moving, "a move never ends"
            self.mesh.engine.broker(name).check()
        assert not self.mesh.at["a"].admin().usage()["lanes"]
        assert self.got.keys() >= set(range(1, self.sent + 1)), "messages are lost"
        for counts in self.got.values():
            assert counts.count(1) <= 1, "a message comes again without `redelivered`"


@pytest.mark.parametrize("seed", SEEDS)
def test_M2_M5_H4_P1_R3_brokers_fall_silent_after_a_storm(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(seed, monkeypatch)
    walk.go()
    walk.end()
    walk.check()


class Words:
    """What brokers say, by sender and receiver; `is_lost` says what Kafka loses of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[str, str, Any]] = []
        self.is_lost: Any = lambda sender, to, word: False
        heard = MemoryBroker.tell

        def tell(broker: Any, record: WireRecord) -> None:
            envelope = mesh_messages.decode(record.value)
            word = mesh_messages.decode_body(envelope)
            self.said.append((envelope.name, broker.home.name, word))
            if not self.is_lost(*self.said[-1]):
                heard(broker, record)

        monkeypatch.setattr(MemoryBroker, "tell", tell)

    def of(self, sender: str, to: str, kind: type) -> list[Any]:
        return [w for a, b, w in self.said if (a, b) == (sender, to) and isinstance(w, kind)]


def local(name: str, broker: str, **keys: Any) -> dict[str, Any]:
    one = {"name": name, "type": "LocalQueue", "broker": broker, "subscriptions": [f"t/{name}"]}
    return COMMON | one | keys


def test_R3_what_was_lost_in_one_step_is_repeated_twice_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repetition for each gap would lose more records than were lost before."""
    words = Words(monkeypatch)
    mesh = Mesh(queues=[local("far", "b"), local("near", "a")])
    mesh.engine.cut("b")
    for _ in range(20):
        mesh.send("a", queue="t/far")
    words.said, lost = [], set(range(1, 20, 2))
    words.is_lost = lambda sender, to, word: len(words.said) in lost
    mesh.engine.mend("b")
    for sender, to in (("a", "b"), ("b", "a")):
        assert 1 <= sum(word.again for word in words.of(sender, to, Heard)) <= 2
    assert mesh.at["a"].admin().describe("far")["depth"] == 20


@pytest.mark.parametrize("lost", [("c", "a"), ("b", "a"), ("a", "b")])
def test_M5_R3_a_move_that_has_ended_is_called_back_though_the_keeper_does_not_know(
    lost: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old host and the first broker forwarded the command to each other without end."""
    words = Words(monkeypatch)
    mesh = Mesh(queues=[local("queue", "b"), *(local(f"at-{name}", name) for name in BROKERS)])
    words.is_lost = lambda sender, to, word: (sender, to) == lost
    answers: list[Any] = []
    mesh.at["a"].ask(c.MoveQueue(queue="queue", broker="c"), answers.append)
    words.said, words.is_lost = [], lambda sender, to, word: False
    mesh.at["a"].ask(c.MoveQueue(queue="queue", broker="b"), answers.append)
    assert len(words.said) < 60
    for sender in BROKERS:
        for to in BROKERS:
            mesh.send(sender, queue=f"t/at-{to}")
    mesh.at["a"].admin().move_queue("queue", "c")
    mesh.send("a", queue="t/queue")
    assert mesh.at["c"].admin().describe("queue")["depth"] == 1
    assert len(answers) == 2


def test_M5_Q9_a_queue_is_defined_again_while_what_completes_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new host took it for complete, and the first broker did not repeat the record."""
    words = Words(monkeypatch)
    mesh = Mesh(queues=[local("queue", "a"), *(local(f"at-{name}", name) for name in BROKERS)])
    for _ in range(3):
        mesh.send("a", queue="t/queue")
    words.is_lost = lambda sender, to, word: isinstance(word, Carry) and word.whole
    mesh.at["a"].ask(c.MoveQueue(queue="queue", broker="b"), lambda answer: None)
    words.is_lost = lambda sender, to, word: False
    definition = {"name": "queue", "max_deliveries": 3}
    mesh.at["a"].ask(c.Define(definition=definition, replace=False), lambda answer: None)
    for sender in BROKERS:
        for to in BROKERS:
            mesh.send(sender, queue=f"t/at-{to}")
    found = mesh.at["a"].admin().describe("queue")
    assert (found["depth"], found["definition"]["max_deliveries"]) == (3, 3)
    mesh.at["a"].admin().move_queue("queue", "a")


def test_M5_the_first_broker_does_not_write_to_itself_that_a_move_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No later record would show that this one was lost."""
    words = Words(monkeypatch)
    mesh = Mesh(queues=[local("queue", "b")])
    for to in ("a", "c", "a"):
        mesh.at["b"].admin().move_queue("queue", to)
    assert not [word for a, b, word in words.said if a == b]
    assert mesh.at["a"].admin().describe("queue")["depth"] == 0


def test_S7_the_whole_directory_crosses_in_records_that_kafka_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = Words(monkeypatch)
    limits = mesh_messages.PART_ROWS, 40_000
    monkeypatch.setattr(mesh_messages.slices, "__defaults__", limits)
    topics = [f"{'t' * 200}/{n}" for n in range(100)]
    queues = [local(f"q{n}", "b", subscriptions=[f"t/q{n}", *topics]) for n in range(5)]
    mesh = Mesh(queues=[local("far", "b"), *queues])
    words.is_lost = lambda sender, to, word: isinstance(word, Entries) and to == "b"
    mesh.at["a"].ask(c.Delete(queue="q3"), lambda answer: None)
    words.said, words.is_lost = [], lambda sender, to, word: False
    mesh.send("a", queue="t/far")
    parts = [word for word in words.of("a", "b", Entries) if word.after is not None]
    assert len(parts) > 2
    assert all(len(one.entries) < keeper.ENTRIES_MAX for one in parts)
    for one in parts:
        sizes = [len(entry.entry) for entry in one.entries]
        assert len(sizes) == 1 or sum(sizes) <= 40_000
    brokers: list[Any] = mesh.engine.brokers
    known = [one._replica.broker.mesh.facts.entries["default"] for one in brokers]
    assert known[0] == known[1] == known[2]
    assert "q3" not in known[1]


def test_Q9_R3_what_an_earlier_version_wrote_of_the_directory_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its records said only why, for the newest edition."""
    mesh = Mesh(queues=[COMMON | {"name": "orders"}])
    for _ in range(2):
        mesh.send("c")
    heard = MemoryBroker.tell

    def tell(broker: Any, record: WireRecord) -> None:
        envelope = mesh_messages.decode(record.value)
        if envelope.kind == Heard.kind:
            word = mesh_messages.decode_body(envelope)
            assert isinstance(word, Heard)
            why = "".join(why for _, why in word.refused)
            earlier = Heard(word.edition, why, word.waited, word.missed, word.again)
            home = envelope.sender, envelope.name, envelope.epoch, envelope.number
            record = msgspec.structs.replace(record, value=mesh_messages.encode(*home, earlier))
        heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    answers: list[Any] = []
    for keys in ({"max_spool_usage": 0}, {"max_deliveries": 3}):
        command = c.Define(definition={"name": "orders", **keys}, replace=False)
        mesh.at["a"].ask(command, answers.append)
    assert [bool(answer["error"]) for answer in answers] == [True, False]
