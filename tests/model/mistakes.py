"""Mistakes that a real engine could make, each in a naive model. Walks beside the correct model
must find each of them; otherwise their judge is blind."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reference.model import Entry, Model, Queue, Refused, Subscription


@contextmanager
def defined_as(queue: Queue, **keys: Any) -> Iterator[None]:
    """Change the queue's definition for a moment."""
    before, queue.definition = queue.definition, queue.definition | keys
    try:
        yield
    finally:
        queue.definition = before


class EarlyLimit(Model):
    """L5 at the delivery instead of the return."""

    def deliver(self, queue: Queue, entry: Entry, to: Subscription) -> None:
        super().deliver(queue, entry, to)
        if 0 < queue.get("max_deliveries", 0) <= entry.deliveries and entry in queue.entries:
            self.expire(queue, entry, "max_deliveries")


class LosesItsPlace(Model):
    """L7: a returned message goes to the end."""

    def give_back(self, queue: Queue, entry: Entry, pause: int = 0) -> None:
        super().give_back(queue, entry, pause)
        self.arrivals += 1
        entry.arrival = self.arrivals


class NeverStrict(Model):
    """L8: anyone may acknowledge."""

    def acknowledge_one(self, queue: Queue, by: Subscription, entry: Entry) -> None:
        entry.holder = by if entry.holder is not None else None
        super().acknowledge_one(queue, by, entry)


class DefersEverything(Model):
    """L9: remembers ids of messages that have left, and refuses them when they return to the dead
    message queue."""

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

    def give_back(self, queue: Queue, entry: Entry, pause: int = 0) -> None:
        super().give_back(queue, entry)


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
    """F2: every round begins with the first."""

    def choose(self, queue: Queue, able: list[Subscription]) -> Subscription:
        queue.served_last = 0
        return super().choose(queue, able)


class HeadBlocks(Model):
    """F5: a message that nobody takes blocks the others."""

    def deliver_first(self, queue: Queue) -> bool:
        first = next((e for e in queue.in_order() if e.state == "ready"), None)
        if first is not None and not first.is_barrier and not self.able_to_take(queue, first):
            return False
        return super().deliver_first(queue)


class BarrierToOne(Model):
    """O3: a barrier goes to one subscription only."""

    def bound_to(self, queue: Queue) -> list[Subscription]:
        bound = super().bound_to(queue)
        front = queue.in_order()[:1]
        return bound[:1] if front and front[0].is_barrier else bound


class LeasesProtect(Model):
    """X3: a leased message does not expire."""

    def expires_at(self, queue: Queue, entry: Entry) -> int | None:
        return None if entry.holder is not None else super().expires_at(queue, entry)


class EarliestAlways(Model):
    """X2: the smaller value, whatever the model."""

    def life_of(self, queue: Queue, entry: Entry) -> int | None:
        with defined_as(queue, expiration_model="earliest"):
            return super().life_of(queue, entry)


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
    """S7: deleting a subscription removes the messages it brought."""

    def unsubscribe_topic(self, name: str, pattern: str) -> None:
        super().unsubscribe_topic(name, pattern)
        self.queues[name].entries = [
            e for e in self.queues[name].entries if self.queues[name].captures(e.topic)
        ]


class DeadTtlCounts(Model):
    """X5: a dead message keeps its publisher's TTL."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        if entry.was_dead:
            entry.was_dead, entry.ttl_until = False, self.now + 1
        super().take_in(queue, entry)


class TakesOneTooMany(Model):
    """S3: the quota of messages is exceeded by one."""

    def admits(self, queue: Queue, draft: Entry) -> bool:
        with defined_as(queue, max_spool_messages=queue.get("max_spool_messages", 10**9) + 1):
            return super().admits(queue, draft)


class AllAreActive(Model):
    """R5: an expression finds messages that are not active yet."""

    def acknowledge_where(self, subscription: Subscription, where: str) -> None:
        with defined_as(self.queues[subscription.queue], target_queue_depth=None):
            super().acknowledge_where(subscription, where)


class LeasedAreNotCounted(Model):
    """R5: leased messages do not count among the active ones."""

    def deliver_first(self, queue: Queue) -> bool:
        leased = sum(e.state == "leased" for e in queue.entries)
        limit = queue.get("target_queue_depth")
        with defined_as(queue, target_queue_depth=None if limit is None else limit + leased):
            return super().deliver_first(queue)


class ForgetsPriority(Model):
    """Q9, Q6: redefined without priority, stored messages lose theirs."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and "priority" not in definition:
            for entry in queue.entries:
                entry.rank = 0
        super().define(definition)


class AsksPriorityAgain(Model):
    """Q6: redefined with another priority, stored messages get it too."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and definition.get("priority") == "/n":
            for entry in queue.entries:
                entry.rank = int(entry.value("/n") or 0)
        super().define(definition)


class FiltersWhatIsIn(Model):
    """Q9, Q4: a new filter removes stored messages that do not match."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None:
            queue.entries = [e for e in queue.entries if e.matches(definition.get("filter"))]
        super().define(definition)


class OvertakesBarriers(Model):
    """O3: a message with priority overtakes an earlier barrier."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        super().take_in(queue, entry)
        if entry.rank and not entry.is_barrier:
            entry.arrival = -entry.arrival


class ForgetsBarriers(Model):
    """O3: redefined without barriers, stored barriers become ordinary messages."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and "barrier_expression" not in definition:
            for entry in queue.entries:
                entry.is_barrier = False
        super().define(definition)


class CountsTheUntouched(Model):
    """L5: a message handed back unread counts an attempt."""

    def hand_back(self, subscription: Subscription, message_id: int) -> None:
        entry = self.queues[subscription.queue].find(message_id)
        if entry is not None and entry.holder is subscription:
            entry.deliveries += 1
        super().hand_back(subscription, message_id)


class EndsWhatHasNoEnd(Model):
    """L10: a renewal limits a lease that had no end."""

    def renew(self, subscription: Subscription, message_id: int, period: str | float) -> bool:
        entry = self.queues[subscription.queue].find(message_id)
        if entry is not None and entry.holder is subscription:
            entry.lease_until = entry.lease_until or self.now
        return super().renew(subscription, message_id, period)


class NewPeriodForOldLeases(Model):
    """Q9, L4: a new lease period changes existing leases."""

    def define(self, definition: dict[str, Any]) -> None:
        super().define(definition)
        queue = self.queues[definition["name"]]
        for entry in queue.entries:
            if entry.holder is not None and queue.period("lease_period"):
                entry.lease_until = self.now + (queue.period("lease_period") or 0)


class DefinitionsFirst(Model):
    """Q9: commands after a redefinition are carried out under the old definition."""

    def cancel(self, subscription: Subscription, message_id: int, delay: Any = None) -> None:
        queue = self.queues[subscription.queue]
        now, queue.definition = queue.definition, getattr(queue, "before", queue.definition)
        super().cancel(subscription, message_id, delay)
        queue.definition = now

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None:
            queue.before = queue.definition
        super().define(definition)


class KeepsTheDeleted(Model):
    """S7: a queue that is defined anew has the deleted one's messages."""

    def delete(self, name: str) -> None:
        self.subscriptions = [s for s in self.subscriptions if s.queue != name]
        for entry in self.queues[name].entries:
            entry.holder = entry.lease_until = None


class EarlyAcksTakeRoom(Model):
    """L9, S3: early acks count against the quota."""

    def admits(self, queue: Queue, draft: Entry) -> bool:
        most = queue.get("max_spool_messages")
        waiting = queue.deferred.get(self.ids + 1, -1) > self.now
        if most is not None and waiting and len(queue.entries) + 1 >= most:
            raise Refused("queue_quota", queue.name)
        return super().admits(queue, draft)


class EarlyAcksAreForgotten(Model):
    """L9: an early ack of a range remembers only its first id."""

    def acknowledge(self, subscription: Subscription, ids: list[int]) -> None:
        super().acknowledge(subscription, ids)
        self.queues[subscription.queue].deferred.pop(self.ids + 1, None)


class NoOrderPerKey(Model):
    """O4: keys are ignored."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        super().take_in(queue, entry)
        entry.partition = None


class NullIsAKey(Model):
    """O4: messages without a key wait for one another."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        super().take_in(queue, entry)
        if queue.get("partition_key") and entry.partition is None and not entry.is_barrier:
            entry.partition = ""


class DelayedKeysGoOn(Model):
    """O4: while a message is delayed, the next of its key is delivered."""

    def give_back(self, queue: Queue, entry: Entry, pause: int = 0) -> None:
        super().give_back(queue, entry, pause)
        if pause:
            entry.partition = None


class StuckKeysHoldTheQueue(Model):
    """O4: a key that waits blocks the messages behind it."""

    def deliver_first(self, queue: Queue) -> bool:
        for entry in queue.active():
            if entry.state == "ready" and queue.held_back(entry):
                return False
            if entry.state == "ready":
                break
        return super().deliver_first(queue)


MISTAKES: list[type[Model]] = [
    EarlyLimit, LosesItsPlace, NeverStrict, DefersEverything, RenewsFromTheEnd, ForgetsTheDelay,
    OneTooMany, TiesToTheLast, TurnStartsAnew, HeadBlocks, BarrierToOne, LeasesProtect,
    EarliestAlways, KeepsWhatIsLeased, StarTakesManyLevels, ForgetsWhatWasSpooled,
    DeadTtlCounts, TakesOneTooMany, AllAreActive, LeasedAreNotCounted, ForgetsPriority,
    AsksPriorityAgain, FiltersWhatIsIn, OvertakesBarriers, ForgetsBarriers, CountsTheUntouched,
    EndsWhatHasNoEnd, NewPeriodForOldLeases, DefinitionsFirst, KeepsTheDeleted,
    EarlyAcksTakeRoom, EarlyAcksAreForgotten, NoOrderPerKey, NullIsAKey, DelayedKeysGoOn,
    StuckKeysHoldTheQueue,
]  # fmt: skip
