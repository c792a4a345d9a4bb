"""A naive model of queues over several brokers, written from Q5, H4, L, X, O2, O3, C3, B alone.

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
    """A message: its id, place, and owner. expires: when its life ends; due: when it is ready
    again; taken_at: where it was delivered since all was quiet."""

    id: str
    place: int
    body: bytes
    owner: str
    expires: int | None = None
    rank: int = 0
    barrier: bool = False
    holder: Taker | None = None
    until: int | None = None
    due: int | None = None
    deliveries: int = 0
    cancels: int = 0
    taken_at: set[str] = field(default_factory=set)

    @property
    def state(self) -> str:
        if self.due is not None:
            return "delayed"
        return "ready" if self.holder is None else "leased"


@dataclass(eq=False)
class KnownQueue:
    """hosts: by name; owner: who owns all at first, None: who takes it in (Q5)."""

    definition: dict[str, Any]
    hosts: tuple[str, ...]
    owner: str | None
    messages: dict[str, Known] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    passed: dict[str, tuple[Known, list[Taker]]] = field(default_factory=dict)
    # Barriers that went out since all was quiet, and to whom.

    def first_barrier(self) -> Known | None:
        waiting = [m for m in self.messages.values() if m.barrier]
        return min(waiting, key=lambda m: m.place, default=None)


class MeshModel:
    """All queues, all consumers, one clock in ms. going: what was removed since all was quiet; it
    may have been delivered before. late: brokers where an ack that goes round made room after
    others may have had some; left: consumers that have gone since all was quiet."""

    def __init__(self) -> None:
        self.queues: dict[str, KnownQueue] = {}
        self.takers: list[Taker] = []
        self.now = 0
        self.places = 0
        self.going: dict[tuple[str, str], Known] = {}
        self.late: set[str] = set()
        self.left: list[Taker] = []

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
        self.enter(known, number, body, owner)

    def enter(self, known: KnownQueue, number: str, body: bytes, owner: str) -> None:
        """X1: its life is counted from here; O2: and so is its rank."""
        self.places += 1
        life, rank = known.definition.get("expiration"), known.definition.get("priority")
        message = known.messages[number] = Known(number, self.places, body, owner)
        message.expires = None if life is None else self.now + int(life.removesuffix("ms"))
        message.rank = 0 if rank is None else evaluate(rank, fields_of(json.loads(body)))
        barrier = known.definition.get("barrier_expression")
        message.barrier = barrier is not None and Taker("", "", 0, barrier).takes(body)
        known.counters["spooled"] += 1

    def die(self, queue: str, message: Known, reason: str) -> None:
        """X5: to the dead message queue of the broker where it was, if there is one."""
        known = self.queues[queue]
        self.go(queue, message.id)
        known.counters[reason] += 1
        dead = known.definition.get("dead_message_queue")
        if dead is not None:
            known.counters["dead_lettered"] += 1
            at = message.owner if message.holder is None else message.holder.broker
            self.enter(self.queues[dead], message.id, message.body, at)

    def go(self, queue: str, number: str) -> None:
        """It is removed."""
        self.going[queue, number] = self.queues[queue].messages.pop(number)

    def come_back(self, queue: str, message: Known) -> None:
        """L5: a message that was delivered too often dies instead."""
        most = self.queues[queue].definition.get("max_deliveries", 0)
        if most and message.deliveries >= most:
            self.die(queue, message, "expired")
        message.holder = None

    def deliver(self, taker: Taker, number: str, deliveries: int, until: int | None) -> None:
        """A consumer got a message. L3: nobody else has it; F5, B2: it may have it."""
        known = self.queues[taker.queue]
        gone = self.going.get((taker.queue, number))
        message = known.messages.get(number) or gone
        assert message is not None, f"{number}: delivered, and not in {taker.queue}"
        assert message.holder is None or gone, f"{number}: delivered to two"
        assert message.due is None, f"{number}: delivered before it is due"
        assert taker.takes(message.body), f"{number}: does not match {taker.filter}"
        assert self.held(taker) < taker.backlog, f"{number}: more than {taker.backlog}"
        first = known.first_barrier()
        assert first is None or message.place < first.place, f"{number}: passed {first.id}"
        assert deliveries == message.deliveries + 1, f"{number}: count {deliveries}"
        known.counters["redelivered"] += bool(message.deliveries)
        message.deliveries += 1
        message.holder, message.until = taker, until
        message.taken_at.add(taker.broker)

    def place(self, queue: str, number: str) -> int:
        """Of a message that is there, or was since all was quiet; 0: of none."""
        known = self.queues[queue]
        passed = known.passed.get(number)
        message = known.messages.get(number) or self.going.get((queue, number))
        message = passed[0] if message is None and passed is not None else message
        return 0 if message is None else message.place

    def tell(self, taker: Taker, number: str) -> None:
        """O3: a barrier came to a consumer: once, and everything before it has left."""
        known = self.queues[taker.queue]
        message = known.messages.get(number)
        if message is not None:
            before = [m.id for m in known.messages.values() if m.place < message.place]
            assert not before, f"barrier {number} came before {before}"
            known.counters["acknowledged"] += 1
            self.go(taker.queue, number)
            known.passed[number] = message, []
        assert number in known.passed, f"barrier {number}: delivered, and not in {taker.queue}"
        assert taker not in known.passed[number][1], f"barrier {number}: twice to one consumer"
        known.passed[number][1].append(taker)

    def unseen(self, queue: str, number: str) -> None:
        """L7: it was sent once more to who was just acknowledging it, and so shows it to nobody."""
        message = self.going[queue, number]
        self.queues[queue].counters["redelivered"] += bool(message.deliveries)

    def held(self, taker: Taker) -> int:
        messages = self.queues[taker.queue].messages.values()
        return sum(m.holder is taker for m in messages)

    def settle(self, queue: str, number: str, how: str, delay: int = 0) -> None:
        """L1, L6, L11, C7: acknowledged, canceled or rejected by its holder."""
        known = self.queues[queue]
        message = known.messages[number]
        if how == "ack":
            known.counters["acknowledged"] += 1
            self.go(queue, number)
        elif how == "reject":
            self.die(queue, message, "consumer_rejected")
        else:
            known.counters["canceled"] += 1
            message.cancels += 1
            most = known.definition.get("max_cancels", 0)
            if most and message.cancels >= most:
                self.die(queue, message, "expired")
                return
            self.come_back(queue, message)
            message.due = self.now + delay if delay else None

    def acknowledge(self, taker: Taker, numbers: list[str]) -> None:
        """L8, L13: whoever has them; strict: but for what others hold."""
        known = self.queues[taker.queue]
        strict = known.definition.get("leasing") == "strict"
        for number in numbers:
            message = known.messages[number]
            if not strict or message.holder in (None, taker):
                self.late |= {message.holder.broker} if message.holder is not None else set()
                known.counters["acknowledged"] += 1
                self.go(taker.queue, number)

    def purge(self, queue: str, where: str) -> int:
        messages = self.queues[queue].messages
        gone = [m.id for m in messages.values() if Taker("", "", 0, where).takes(m.body)]
        for number in gone:
            self.go(queue, number)
        return len(gone)

    def close(self, taker: Taker) -> None:
        """C3: what it held returns."""
        self.takers.remove(taker)
        self.left.append(taker)
        self.give_back(taker)

    def give_back(self, taker: Taker) -> None:
        for message in list(self.queues[taker.queue].messages.values()):
            if message.holder is taker:
                self.come_back(taker.queue, message)

    def move(self, queue: str, broker: str) -> None:
        """A local queue goes elsewhere: its messages return, and nobody is to blame for that."""
        known = self.queues[queue]
        if known.owner == broker:
            return
        known.owner, known.hosts = broker, (broker,)
        for taker in self.takers:
            if taker.queue == queue:
                taker.broker = broker
        for message in known.messages.values():
            message.holder = None
            message.owner, message.taken_at = broker, {broker}

    def advance(self, ms: int) -> None:
        """L4, L11, X1: leases, delays and lives end."""
        self.now += ms
        never = self.now + 1
        for name, queue in self.queues.items():
            for message in list(queue.messages.values()):
                if (message.expires or never) <= self.now:
                    self.die(name, message, "expired")
                elif message.holder is not None and (message.until or never) <= self.now:
                    self.come_back(name, message)
                elif (message.due or never) <= self.now:
                    message.due = None

    def has_room(self, taker: Taker) -> bool:
        """B1, of each broker; B2."""
        messages = self.queues[taker.queue].messages.values()
        there = sum(m.holder is not None and m.holder.broker == taker.broker for m in messages)
        most = self.queues[taker.queue].definition.get("max_backlog", there + 1)
        return self.held(taker) < taker.backlog and there < most

    def quiet(self, owners: dict[str, dict[str, str]]) -> None:
        """Nothing moves any more. owners: of each queue the owner of each message, as shown."""
        self.going = {}
        for name, queue in self.queues.items():
            shown = owners[name]
            assert shown.keys() == queue.messages.keys(), f"{name}: other messages"
            takers = [t for t in self.takers if t.queue == name]
            for barrier, told in queue.passed.values():  # O3: to all that it is for
                for taker in takers:
                    due = taker.takes(barrier.body)
                    assert due == (taker in told), f"barrier {barrier.id}: {taker}, {due}"
            free = [t for t in takers if self.has_room(t)]
            for message in queue.messages.values():
                where = shown[message.id]
                if where != message.owner:  # H4: granted where a subscriber asked for such
                    known = [*takers, *(t for t in self.left if t.queue == name)]
                    asks = any(t.broker == where and t.takes(message.body) for t in known)
                    drains = where in {b.owner for b in self.barriers_behind(queue, message)}
                    reason = asks or drains or where in message.taken_at
                    assert reason, f"{message.id}: went to {where}"
                    near = [t for t in free if t.broker == message.owner]
                    passed = any(t.takes(message.body) for t in near)
                    assert not passed or message.owner in self.late, "passed its own consumer"
                message.owner, message.taken_at = where, set()
                if message.holder is not None:
                    assert message.holder.broker == where, f"{message.id}: leased elsewhere"
                first = queue.first_barrier()
                if message.state != "ready" or (first and first.place < message.place):
                    continue
                if message is first:
                    stays = len(queue.messages) > 1 and any(
                        m.place < first.place for m in queue.messages.values()
                    )
                    goes = not stays and any(t.takes(message.body) for t in takers)
                    assert not goes, f"barrier {message.id}: waits for nothing"
                    continue
                able = [t for t in free if t.takes(message.body)]
                assert not able, f"{message.id}: waits at {where}, and {able[0]} has room"
            queue.passed = {}
        self.late, self.left = set(), []

    def barriers_behind(self, queue: KnownQueue, message: Known) -> list[Known]:
        """Barriers that wait for a message, or waited for it since all was quiet (O3)."""
        there = [*queue.messages.values(), *(barrier for barrier, _ in queue.passed.values())]
        return [b for b in there if b.barrier and b.place > message.place]
