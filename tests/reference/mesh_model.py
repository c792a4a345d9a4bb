"""A naive model of queues over several brokers, written from Q5, H4, L, C3 and B2 alone.

Where several brokers and consumers could serve, the rules leave open who does. So the model does
not foretell: it is told who got what, says whether that was allowed, and when all is quiet whether
somebody should have got more. A queue is a list of messages, each with one owner, one state.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from reference.expressions import evaluate, fields_of


@dataclass(eq=False)
class Taker:
    """A consumer. broker: where it is bound; backlog: how many it holds at most (B2)."""

    queue: str
    broker: str
    backlog: int
    filter: str | None

    def takes(self, body: bytes) -> bool:
        return self.filter is None or evaluate(self.filter, fields_of(json.loads(body))) is True


@dataclass(eq=False)
class Known:
    """A message: its id, place, and owner. taken_at: where it was delivered since all was quiet."""

    id: str
    place: int
    body: bytes
    owner: str
    holder: Taker | None = None
    until: int | None = None
    deliveries: int = 0
    cancels: int = 0
    taken_at: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        return "ready" if self.holder is None else "leased"


@dataclass(eq=False)
class KnownQueue:
    """hosts: by name; owner: who owns all at first, None: who takes it in (Q5)."""

    definition: dict[str, Any]
    hosts: tuple[str, ...]
    owner: str | None
    messages: dict[str, Known] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)


class MeshModel:
    """All queues, all consumers, one clock in ms. going: what was removed since all was quiet; it
    may have been delivered before."""

    def __init__(self) -> None:
        self.queues: dict[str, KnownQueue] = {}
        self.takers: list[Taker] = []
        self.now = 0
        self.places = 0
        self.going: dict[str, Known] = {}

    def define(self, definition: dict[str, Any], hosts: tuple[str, ...]) -> None:
        owner = definition.get("initial_owner")
        if definition.get("type") == "LocalQueue":
            (owner,) = hosts
        self.queues[definition["name"]] = KnownQueue(definition, hosts, owner)

    def send(self, queue: str, number: str, body: bytes, broker: str) -> None:
        """H4: who took it in owns it, or the initial owner."""
        known = self.queues[queue]
        at = broker if broker in known.hosts else None
        owner = known.owner or at or ""
        self.places += 1
        known.messages[number] = Known(number, self.places, body, owner)
        known.counters["spooled"] += 1

    def deliver(self, taker: Taker, number: str, deliveries: int, until: int | None) -> None:
        """A consumer got a message. L3: nobody else has it; F5, B2: it may have it."""
        known = self.queues[taker.queue]
        message = known.messages.get(number) or self.going.get(number)
        assert message is not None, f"{number}: delivered, and not in {taker.queue}"
        assert message.holder is None or number in self.going, f"{number}: delivered to two"
        assert taker.takes(message.body), f"{number}: does not match {taker.filter}"
        assert self.held(taker) < taker.backlog, f"{number}: more than {taker.backlog}"
        assert deliveries == message.deliveries + 1, f"{number}: count {deliveries}"
        known.counters["redelivered"] += bool(message.deliveries)
        message.deliveries += 1
        message.holder, message.until = taker, until
        message.taken_at.add(taker.broker)

    def unseen(self, queue: str, number: str) -> None:
        """L7: it was sent once more to who was just acknowledging it, and so shows it to nobody."""
        message = self.going[number]
        self.queues[queue].counters["redelivered"] += bool(message.deliveries)

    def held(self, taker: Taker) -> int:
        messages = self.queues[taker.queue].messages.values()
        return sum(m.holder is taker for m in messages)

    def settle(self, queue: str, number: str, how: str) -> None:
        """L1, L6, C7: acknowledged, canceled or rejected by its holder."""
        known = self.queues[queue]
        message = known.messages[number]
        known.counters[{"ack": "acknowledged", "cancel": "canceled"}.get(how, how)] += 1
        message.cancels += how == "cancel"
        most = known.definition.get("max_cancels", 0)
        if how == "cancel" and not (most and message.cancels >= most):
            message.holder = None
        else:
            del known.messages[number]

    def acknowledge(self, queue: str, numbers: list[str]) -> None:
        """L8 sublet, L13: whoever has them."""
        for number in numbers:
            message = self.queues[queue].messages.pop(number, None)
            if message is not None:
                self.going[number] = message
                self.queues[queue].counters["acknowledged"] += 1

    def purge(self, queue: str, where: str) -> int:
        messages = self.queues[queue].messages
        gone = [m.id for m in messages.values() if Taker("", "", 0, where).takes(m.body)]
        for number in gone:
            self.going[number] = messages.pop(number)
        return len(gone)

    def close(self, taker: Taker) -> None:
        """C3: what it held returns."""
        self.takers.remove(taker)
        self.give_back(taker)

    def give_back(self, taker: Taker) -> None:
        for message in self.queues[taker.queue].messages.values():
            if message.holder is taker:
                message.holder = None

    def move(self, queue: str, broker: str) -> None:
        """A local queue goes elsewhere: leases end as at a disconnect."""
        known = self.queues[queue]
        if known.owner == broker:
            return
        known.owner, known.hosts = broker, (broker,)
        for taker in self.takers:
            if taker.queue == queue:
                self.give_back(taker)
                taker.broker = broker
        for message in known.messages.values():
            message.owner, message.taken_at = broker, {broker}

    def advance(self, ms: int) -> None:
        """L4: leases end."""
        self.now += ms
        for queue in self.queues.values():
            for message in queue.messages.values():
                if message.holder is not None and (message.until or self.now + 1) <= self.now:
                    message.holder = None

    def quiet(self, owners: dict[str, dict[str, str]]) -> None:
        """Nothing moves any more. owners: of each queue the owner of each message, as shown."""
        self.going = {}
        for name, queue in self.queues.items():
            shown = owners[name]
            assert shown.keys() == queue.messages.keys(), f"{name}: other messages"
            takers = [t for t in self.takers if t.queue == name]
            free = [t for t in takers if self.held(t) < t.backlog]
            for message in queue.messages.values():
                where = shown[message.id]
                if where != message.owner:  # H4: granted where a subscriber asked for such
                    asks = any(t.broker == where and t.takes(message.body) for t in takers)
                    assert asks or where in message.taken_at, f"{message.id}: went to {where}"
                    near = [t for t in free if t.broker == message.owner]
                    assert not any(t.takes(message.body) for t in near), "passed its own consumer"
                message.owner, message.taken_at = where, set()
                if message.holder is not None:
                    assert message.holder.broker == where, f"{message.id}: leased elsewhere"
                    continue
                able = [t for t in free if t.takes(message.body)]
                assert not able, f"{message.id}: waits at {where}, and {able[0]} has room"
