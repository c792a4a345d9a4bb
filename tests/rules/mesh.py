"""A home of three brokers in memory, a connection to each, and a network that drops the messages a
test chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.mesh.facts import Entry, MeshFacts
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from lakequeue.protocol.messages import HEADER
from lakequeue.protocol.wire import WireRecord
from lakequeue.state import Limits

from .mortal import Fate, MortalEngine

BROKERS = ("a", "b", "c")


def shared(name: str = "orders", *topics: str, **keys: Any) -> dict[str, Any]:
    """Define a queue that all brokers host."""
    one = {"name": name, "message_type": "json", "max_per_subscription_backlog": 100}
    return one | ({"subscriptions": list(topics)} if topics else {}) | keys


def local(name: str, broker: str | None = None, *topics: str, **keys: Any) -> dict[str, Any]:
    """Define a queue of one broker; without a name, the home chooses the broker."""
    at = {} if broker is None else {"broker": broker}
    return shared(name, *topics, type="LocalQueue", **at, **keys)


NEAR = [local(f"at-{name}", name, f"t/{name}") for name in BROKERS]


def ids(messages: list[Any]) -> list[str]:
    return [m.id for m in messages]


def numbers(messages: list[Any]) -> list[int]:
    """The field `n` of each payload, or the payload if it is a number itself."""
    found = [json.loads(m.payload) for m in messages]
    return [one["n"] if isinstance(one, dict) else one for one in found]


def take(consumer: Any) -> list[Any]:
    """All messages that arrive, each acknowledged before the next one."""
    found = []
    while (message := consumer.receive(timeout=0)) is not None:
        message.ack()
        found.append(message)
    return found


class Mesh:
    """Brokers and a connection to each. queues: of the configuration; fate: which broker dies
    when."""

    ENGINE: type[MortalEngine] = MortalEngine

    def __init__(
        self, *queues: dict[str, Any], fate: Fate | None = None, limits: Limits | None = None,
        brokers: Any = BROKERS,
    ) -> None:  # fmt: skip
        config = {"brokers": list(brokers), "queues": list(queues)}
        self.engine = self.ENGINE(parse_configuration(config), limits)
        self.engine.checking = True
        self.engine.fated(fate)
        self.brokers = tuple(brokers)
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in brokers}
        self.admin = self.at["a"].admin()
        self._producers: dict[str, Any] = {}

    def producer(self, broker: str) -> Any:
        if broker not in self._producers:
            self._producers[broker] = self.at[broker].producer()
        return self._producers[broker]

    def send(self, broker: str, to: str = "orders", body: Any = b"{}", **options: Any) -> str:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.producer(broker).send(to, payload, **options).message_id

    def plain(self, to: str, body: bytes = b"{}", partition: int = 0) -> None:
        """Write a record without a producer id or a sequence."""
        meta = b'{"to":"%s"}' % to.encode()
        self.engine.publish("default.publish", body, None, [(HEADER, meta)], partition=partition)

    def consumer(
        self, broker: str, backlog: int = 100, queue: str = "orders", **options: Any
    ) -> Any:
        options.setdefault("ack_mode", "individual")
        return self.at[broker].consumer(queue, max_backlog=backlog, **options)

    def take(self, queue: str, broker: str = "c", rounds: int = 1, wait: str = "1s") -> list[Any]:
        """All messages that a consumer gets in so many rounds, acknowledged."""
        found = []
        with self.consumer(broker, queue=queue) as consumer:
            for n in range(rounds):
                if n:
                    self.advance(wait)
                found += take(consumer)
        return found

    def tell(self, command: c.Command, broker: str = "a") -> list[Any]:
        """Give a command without waiting. Returns the list that its answers are added to."""
        answers: list[Any] = []
        self.at[broker].ask(command, answers.append)
        return answers

    def move(self, queue: str, broker: str, by: str = "a") -> list[Any]:
        return self.tell(c.MoveQueue(queue=queue, broker=broker), by)

    def change(self, name: str, **keys: Any) -> list[Any]:
        """Redefine a queue with these keys changed."""
        return self.tell(c.Define(definition={"name": name, **keys}, replace=False))

    def go_on(self) -> None:
        """Each broker writes to each (into `NEAR`), which reveals lost messages."""
        for sender in self.brokers:
            for to in self.brokers:
                self.send(sender, f"t/{to}")
        self.advance("1s")

    def advance(self, duration: str) -> None:
        self.engine.advance(duration)

    def whole(self, queue: str = "orders") -> dict[str, Any]:
        return self.admin.describe(queue)

    def seen(self, broker: str, queue: str = "orders") -> dict[str, Any]:
        """One broker's own description of a queue."""
        return self.whole(queue)["brokers"][broker]

    def depths(self, queue: str = "orders") -> list[int]:
        return [self.seen(broker, queue)["depth"] for broker in self.brokers]

    def ids(self, queue: str) -> list[str]:
        return ids(self.admin.browse(queue, limit=1_000))

    def bodies(self, queue: str) -> list[bytes]:
        return [m.payload for m in self.admin.browse(queue, limit=1_000)]

    def where(self) -> dict[str, str]:
        """The brokers of each queue, as one word."""
        return {q["name"]: q["broker"] or "".join(q["brokers"]) for q in self.admin.queues()}

    def written(self) -> dict[str, Any]:
        """The records of queues in the directory's topic."""
        found = {}
        for key, value in self.engine.directory("default.directory").items():
            if key.startswith(b"queue/"):
                found[key.decode().removeprefix("queue/")] = one = json.loads(value)
                assert one.pop("edition") > 0
                one.pop("epoch")
        return found

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.engine.journal() if e["event"] in names]

    def state(self, broker: str) -> Any:
        """The state of a broker (`lakequeue.state.Broker`)."""
        return self.engine.broker(broker)._replica.broker  # type: ignore[attr-defined]

    def facts(self, broker: str) -> MeshFacts:
        found: MeshFacts = self.state(broker).mesh.facts
        return found

    def entries(self, broker: str) -> dict[str, Entry]:
        """The directory as this broker knows it."""
        return self.facts(broker).entries["default"]

    def check_directories(self) -> None:
        """All brokers know the same queues."""
        for broker in self.brokers[1:]:
            assert self.entries(broker) == self.entries("a"), broker

    def check_nothing_moves(self) -> None:
        for broker in self.brokers:
            facts = self.facts(broker)
            known = facts.moves, facts.leaving, facts.arriving
            assert not any(known), f"{broker}: {known}"


# ---------------------------------------------------------------- the network between brokers

LOST, UNREADABLE, LATE = "lost", "unreadable", "late"


class Word(NamedTuple):
    sender: str
    to: str
    kind: str
    body: Any


class Network:
    """The messages between brokers. fault: what happens to a message instead of its arrival: one of
    the three above, or another record; left: the losses still to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Word] = []
        self.late: list[tuple[Any, WireRecord]] = []
        self.left: list[Any] = []
        self.fault: Callable[[Word], Any] = lambda word: None
        self._heard = MemoryBroker.tell
        monkeypatch.setattr(MemoryBroker, "tell", lambda *given: self._tell(*given))

    def _tell(self, broker: Any, record: WireRecord) -> None:
        envelope = mesh_messages.decode(record.value)
        body = mesh_messages.decode_body(envelope.kind, envelope.body)
        self.said.append(Word(envelope.name, broker.home.name, envelope.kind, body))
        fault = self.fault(self.said[-1])
        if isinstance(fault, mesh_messages.MeshMessage):
            home = envelope.sender, envelope.name, envelope.epoch, envelope.number
            record = msgspec.structs.replace(record, value=mesh_messages.encode(*home, fault))
        if fault == LATE:
            self.late.append((broker, record))
        elif fault != LOST:
            self._heard(broker, unreadable(record) if fault == UNREADABLE else record)

    def lose(
        self, kind: str = "", sender: str = "", to: str = "", times: int = 1, faults: Any = (),
    ) -> None:  # fmt: skip
        """Drop the next messages of this kind between these two brokers. faults: what happens to
        them instead, one by one."""
        self.left = list(faults) or [LOST] * times

        def fault(word: Word) -> Any:
            wanted = zip((sender, to, kind), word, strict=False)
            is_wanted = all(one in ("", found) for one, found in wanted)
            return self.left.pop(0) if self.left and is_wanted else None

        self.fault = fault

    def heal(self) -> None:
        """From now on everything arrives, delayed messages first."""
        self.left, self.fault = [], lambda word: None
        late, self.late = self.late, []
        for broker, record in late:
            self._heard(broker, record)

    def let(self, mesh: Mesh, to: str, sender: str) -> None:
        """Let the delayed messages of one broker to another arrive."""
        late, self.late = self.late, []
        for broker, record in late:
            between = broker.home.name, mesh_messages.decode(record.value).name
            if between == (to, sender):
                self._heard(broker, record)
            else:
                self.late.append((broker, record))
        mesh.advance("0s")

    def of(self, sender: str, to: str, kind: str) -> list[Any]:
        return [word.body for word in self.said if word[:3] == (sender, to, kind)]


def unreadable(record: WireRecord) -> WireRecord:
    """A record with an invalid body."""
    broken = msgspec.structs.replace(mesh_messages.decode(record.value), body=msgspec.Raw(b"\x01"))
    return msgspec.structs.replace(record, value=msgspec.msgpack.encode(broken))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)
