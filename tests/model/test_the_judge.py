"""Does the comparison find mistakes? A model with one mistake plays the engine and must be caught.

Each mistake is one that a real engine could make.
"""

import random
from typing import Any

import pytest
from reference import twin
from reference.model import Entry, Model, Queue, Subscription

from . import walk as walking
from .walk import EXCLUSIVE, Operation, Walk, with_companions


class EarlyLimit(Model):
    """L5 at the delivery instead of the return."""

    def deliver(self, queue: Queue, entry: Entry, to: Subscription) -> None:
        super().deliver(queue, entry, to)
        if 0 < queue.get("max_deliveries", 0) <= entry.deliveries and entry in queue.entries:
            self.expire(queue, entry, "max_deliveries")


class LosesItsPlace(Model):
    """L7: a returned message goes to the end."""

    def give_back(self, queue: Queue, entry: Entry, event: str, pause: int = 0) -> None:
        super().give_back(queue, entry, event, pause)
        self.arrivals += 1
        entry.arrival = self.arrivals


class NeverStrict(Model):
    """L8: anyone may acknowledge."""

    def acknowledge_one(self, queue: Queue, by: Subscription, entry: Entry) -> None:
        entry.holder = by if entry.holder is not None else None
        super().acknowledge_one(queue, by, entry)


class DefersEverything(Model):
    """L9: also what is gone is remembered, and comes back to the dead message queue."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        queue.deferred = {i: t for i, t in queue.deferred.items() if i != entry.id}
        super().take_in(queue, entry)


class RenewsFromTheEnd(Model):
    """L10: the period is added to the lease."""

    def renew(self, subscription: Subscription, message_id: int, period: str | float) -> bool:
        entry = self.queues[subscription.queue].find(message_id)
        before = entry.lease_until if entry else None
        done = super().renew(subscription, message_id, period)
        if done and entry is not None and before is not None and entry.lease_until is not None:
            entry.lease_until += before - self.now
        return done


class ForgetsTheDelay(Model):
    """L11: a delay makes the message ready at once."""

    def give_back(self, queue: Queue, entry: Entry, event: str, pause: int = 0) -> None:
        super().give_back(queue, entry, event, 0)


class OneTooMany(Model):
    """B2: one more than the backlog."""

    def able_to_take(self, queue: Queue, entry: Entry) -> list[Subscription]:
        for subscription in self.subscriptions:
            subscription.backlog += 1
        able = super().able_to_take(queue, entry)
        for subscription in self.subscriptions:
            subscription.backlog -= 1
        return able


class TiesToTheLast(Model):
    """F3: ties go to the last found."""

    def choose(self, queue: Queue, able: list[Subscription]) -> Subscription:
        return super().choose(queue, able if queue.fairness != "proportional" else able[::-1])


class TurnStartsAnew(Model):
    """F2: every turn begins with the first."""

    def choose(self, queue: Queue, able: list[Subscription]) -> Subscription:
        queue.served_last = 0
        return super().choose(queue, able)


class HeadBlocks(Model):
    """F5: what nobody takes holds back the rest."""

    def deliver_first(self, queue: Queue) -> bool:
        first = next((e for e in queue.in_order() if e.state == "ready"), None)
        if first is not None and not first.is_barrier and not self.able_to_take(queue, first):
            return False
        return super().deliver_first(queue)


class BarrierToOne(Model):
    """O3: the barrier goes to one subscription."""

    def bound_to(self, queue: Queue) -> list[Subscription]:
        bound = super().bound_to(queue)
        front = queue.in_order()[:1]
        return bound[:1] if front and front[0].is_barrier else bound


class LeasesProtect(Model):
    """X3: what is leased does not expire."""

    def expires_at(self, queue: Queue, entry: Entry) -> int | None:
        return None if entry.holder is not None else super().expires_at(queue, entry)


class EarliestAlways(Model):
    """X2: the smaller, whatever the model."""

    def life_of(self, queue: Queue, entry: Entry) -> int | None:
        before = queue.definition
        queue.definition = before | {"expiration_model": "earliest"}
        try:
            return super().life_of(queue, entry)
        finally:
            queue.definition = before


class KeepsWhatIsLeased(Model):
    """S10: only what is ready is replaced."""

    def replace(self, queue: Queue, entries: list[Entry]) -> None:
        super().replace(queue, [e for e in entries if e.holder is None])


class StarTakesManyLevels(Model):
    """Q2: `*` matches more than one level."""

    def subscribe_topic(self, name: str, pattern: str) -> None:
        super().subscribe_topic(name, pattern)
        if pattern.endswith("/*"):
            self.queues[name].topics.add(pattern[:-1] + ">")


class ForgetsWhatWasSpooled(Model):
    """S7: with a subscription goes what it brought."""

    def unsubscribe_topic(self, name: str, pattern: str) -> None:
        super().unsubscribe_topic(name, pattern)
        self.queues[name].entries = [
            e for e in self.queues[name].entries if self.queues[name].captures(e.topic)
        ]


class DeadTtlCounts(Model):
    """X5: a dead message still has a TTL of its publisher's."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        if entry.was_dead:
            entry.was_dead, entry.ttl_until = False, self.now + 1
        super().take_in(queue, entry)


class TakesOneTooMany(Model):
    """S3: the quota of messages is exceeded by one."""

    def admits(self, queue: Queue, draft: Entry) -> bool:
        before = queue.definition
        if "max_spool_messages" in before:
            queue.definition = before | {"max_spool_messages": before["max_spool_messages"] + 1}
        try:
            return super().admits(queue, draft)
        finally:
            queue.definition = before


class AllAreActive(Model):
    """R5: an expression finds what is not active yet."""

    def acknowledge_where(self, subscription: Subscription, where: str) -> None:
        definition = self.queues[subscription.queue].definition
        limit = definition.pop("target_queue_depth", None)
        super().acknowledge_where(subscription, where)
        if limit is not None:
            definition["target_queue_depth"] = limit


class LeasedAreNotCounted(Model):
    """R5: the active set is so many besides those that are leased."""

    def deliver_first(self, queue: Queue) -> bool:
        before = queue.definition
        limit = before.get("target_queue_depth")
        if limit is not None:
            leased = sum(e.state == "leased" for e in queue.entries)
            queue.definition = before | {"target_queue_depth": limit + leased}
        try:
            return super().deliver_first(queue)
        finally:
            queue.definition = before


MISTAKES = [
    EarlyLimit,
    LosesItsPlace,
    NeverStrict,
    DefersEverything,
    RenewsFromTheEnd,
    ForgetsTheDelay,
    OneTooMany,
    TiesToTheLast,
    TurnStartsAnew,
    HeadBlocks,
    BarrierToOne,
    LeasesProtect,
    EarliestAlways,
    KeepsWhatIsLeased,
    StarTakesManyLevels,
    ForgetsWhatWasSpooled,
    DeadTtlCounts,
    TakesOneTooMany,
    AllAreActive,
    LeasedAreNotCounted,
]


NAMES = (
    *["send"] * 4,
    *["burst", "subscribe", "subscribe", "close", "settle", "settle", "ack", "done", "done"],
    *["ack_of_another", "ack_range", "ack_early", "ack_where", "cancel", "cancel", "renew"],
    *["backlog", "advance", "advance", "redefine"],
    *["topic", "topic", "untopic", "send_to", "send_to", "redrive"],
)


def random_operation(generator: random.Random) -> Operation:
    """Like `walk.operations`, from a seed."""
    small = [generator.randint(0, 15) for _ in range(4)]
    name = generator.choice(NAMES)
    match name:
        case "send":
            return (name, generator.randint(0, 99), *small[:3])
        case "burst":
            return (name, generator.randint(2, 8), small[0])
        case "subscribe":
            return (name, *small)
        case "backlog":
            return (name, small[0], generator.randint(1, 9))
        case "cancel" | "renew" | "ack_range":
            return (name, *small[:3])
        case "close" | "settle" | "advance" | "redefine":
            return (name, small[0])
        case _:
            return (name, *small[:2])


def random_queues(generator: random.Random) -> list[dict[str, Any]]:
    keys: dict[str, list[Any]] = {
        "max_backlog": [None, None, 3, 8],
        "max_per_subscription_backlog": [2, 5, 20],
        "lease_period": [None, "900ms", "2300ms"],
        "max_deliveries": [None, None, 2, 4],
        "leasing": [None, "strict"],
        "expiration": [None, "2500ms", "8s"],
        "expiration_model": [None, "queue", "latest", "default"],
        "dead_message_queue": [None, "dead"],
        "fairness_model": [None, None, "fast", "round-robin"],
        "priority": [None, "/p"],
        "barrier_expression": [None, "/kind >= 3"],
        "max_spool_usage": [None, None, None, 0],
        "max_spool_messages": [None, None, 4],
        "target_queue_depth": [None, 3],
    }
    orders = {"name": "orders", "message_type": "json"}
    for key, values in keys.items():
        value = generator.choice(values)
        if value is not None and not (key in EXCLUSIVE and set(EXCLUSIVE) & set(orders)):
            orders[key] = value
    return with_companions(orders)


def walk_once(seed: int) -> None:
    generator = random.Random(seed)
    queues = random_queues(generator)
    start: list[Operation] = [("subscribe", 5, 3, 0, 0), ("subscribe", 5, 1, 0, 0)]
    steps = [random_operation(generator) for _ in range(generator.choice([20, 60, 120]))]
    Walk(queues).go(start + steps)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.__name__)
def test_a_mistake_is_found(mistake: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "ON_REFERENCE", True)
    monkeypatch.setattr(twin, "Model", mistake)
    for seed in range(120):
        try:
            walk_once(seed)
        except AssertionError:
            return
    pytest.fail(f"no walk found it: {mistake.__doc__}")


def test_no_mistake_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "ON_REFERENCE", True)
    for seed in range(40):
        walk_once(seed)
