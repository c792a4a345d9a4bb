"""The engine does what the naive model does, batch by batch, whatever its queues become (Q9).

Under budgets a command may take several steps, and more than one order of events is right: see
`test_audit`.
`LAKEQUEUE_WALKS=10` does ten times as many. A walk that fails is made shorter before it is shown.
"""

import os
import random
from typing import Any

import pytest
from lakequeue.state import Limits
from reference.model import Entry, Model, Queue, Refused, Subscription

from .batches import Batches, Walk, random_batches, random_queues, shortest
from .limits import SMALL_PAGES
from .on_model import OnModel

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
MISTAKE_SEEDS = 250


def walk(queues: list[dict[str, Any]], batches: Batches, limits: Limits) -> Walk:
    """Go; where that fails, fail with the shortest walk that does."""
    try:
        return Walk(queues, limits=limits).go(batches)
    except Exception:

        def fails(some: Batches) -> bool:
            try:
                Walk(queues, limits=limits).go(some)
            except Exception:
                return True
            return False

        found = shortest(batches, fails)
        try:
            Walk(queues, limits=limits).go(found)
        except Exception as error:
            error.add_note(f"queues {queues[-1]}\nshortest walk {found}")
            raise
        raise


@pytest.mark.parametrize("part", range(2))
def test_L_B_F_O_X_Q9_batches(part: int) -> None:
    """With pages that are small, and loaded: `tests/state/test_twins.py`."""
    for seed in range(part * 25 * TIMES, (part + 1) * 25 * TIMES):
        r = random.Random(seed)
        walk(random_queues(r), random_batches(r, 14, 6, 8), Limits())


@pytest.mark.parametrize("seed", range(TIMES))
def test_L_B_F_O_X_Q9_deep_batches(seed: int) -> None:
    """At least 2,000 messages on the way, in small pages."""
    r = random.Random(50_000 + seed)
    queues = random_queues(r)
    for key in ("max_spool_messages", "max_spool_usage"):
        queues[-1].pop(key, None)
    batches = random_batches(r, 24, 5, 80)
    batches += [[("publish", 80, n, n % 7, n % 9), ("ack_held", n, 15)] for n in range(25)]
    assert walk(queues, batches, SMALL_PAGES).published >= 2_000


# ---------------------------------------------------------------- the judge


class ForgetsPriority(Model):
    """Q9, Q6: defined again without priority, what is in loses its own."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and "priority" not in definition:
            for entry in queue.entries:
                entry.rank = 0
        super().define(definition)


class AsksPriorityAgain(Model):
    """Q6: defined again with another priority, what is in gets it too."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and definition.get("priority") == "/n":
            for entry in queue.entries:
                entry.rank = int(entry.value("/n") or 0)
        super().define(definition)


class FiltersWhatIsIn(Model):
    """Q9, Q4: a new filter throws out what does not match."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None:
            queue.entries = [e for e in queue.entries if e.matches(definition.get("filter"))]
        super().define(definition)


class OvertakesBarriers(Model):
    """O3: what has a priority goes before a barrier that entered before it."""

    def take_in(self, queue: Queue, entry: Entry) -> None:
        super().take_in(queue, entry)
        if entry.rank and not entry.is_barrier:
            entry.arrival = -entry.arrival


class ForgetsBarriers(Model):
    """O3: defined again without barriers, those in the queue are none any more."""

    def define(self, definition: dict[str, Any]) -> None:
        queue = self.queues.get(definition["name"])
        if queue is not None and "barrier_expression" not in definition:
            for entry in queue.entries:
                entry.is_barrier = False
        super().define(definition)


class CountsTheUntouched(Model):
    """L5: what is handed back untouched was an attempt."""

    def hand_back(self, subscription: Subscription, message_id: int) -> None:
        entry = self.queues[subscription.queue].find(message_id)
        if entry is not None and entry.holder is subscription:
            entry.deliveries += 1
        super().hand_back(subscription, message_id)


class EndsWhatHasNoEnd(Model):
    """L10: a renewal gives an end to a lease that had none."""

    def renew(self, subscription: Subscription, message_id: int, period: str | float) -> bool:
        entry = self.queues[subscription.queue].find(message_id)
        if entry is not None and entry.holder is subscription:
            entry.lease_until = entry.lease_until or self.now
        return super().renew(subscription, message_id, period)


class NewPeriodForOldLeases(Model):
    """Q9, L4: a new lease period changes leases that were given."""

    def define(self, definition: dict[str, Any]) -> None:
        super().define(definition)
        queue = self.queues[definition["name"]]
        for entry in queue.entries:
            if entry.holder is not None and queue.period("lease_period"):
                entry.lease_until = self.now + (queue.period("lease_period") or 0)


class DefinitionsFirst(Model):
    """Q9: what is said after a redefinition, and before it, is done under the old one."""

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
    """S7: a queue that is defined anew has what the deleted one had."""

    def delete(self, name: str) -> None:
        self.subscriptions = [s for s in self.subscriptions if s.queue != name]
        for entry in self.queues[name].entries:
            entry.holder = entry.lease_until = None


class EarlyAcksTakeRoom(Model):
    """L9, S3: what was acknowledged before it came counts against the quota."""

    def admits(self, queue: Queue, draft: Entry) -> bool:
        most = queue.get("max_spool_messages")
        waiting = queue.deferred.get(self.ids + 1, -1) > self.now
        if most is not None and waiting and len(queue.entries) + 1 >= most:
            raise Refused("queue_quota", queue.name)
        return super().admits(queue, draft)


class EarlyAcksAreForgotten(Model):
    """L9: an early ack of a range keeps only its first."""

    def acknowledge(self, subscription: Subscription, ids: list[int]) -> None:
        super().acknowledge(subscription, ids)
        self.queues[subscription.queue].deferred.pop(self.ids + 1, None)


class NoOrderPerKey(Model):
    """O4: keys are not looked at."""

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
    """O4: while a message is delayed, the next of its key goes."""

    def give_back(self, queue: Queue, entry: Entry, event: str, pause: int = 0) -> None:
        super().give_back(queue, entry, event, pause)
        if pause:
            entry.partition = None


class StuckKeysHoldTheQueue(Model):
    """O4: a key that is held back holds back what comes after it."""

    def deliver_first(self, queue: Queue) -> bool:
        for entry in queue.active():
            if entry.state == "ready" and queue.held_back(entry):
                return False
            if entry.state == "ready":
                break
        return super().deliver_first(queue)


MISTAKES: list[type[Model]] = [
    ForgetsPriority, AsksPriorityAgain, FiltersWhatIsIn, OvertakesBarriers, ForgetsBarriers,
    CountsTheUntouched, EndsWhatHasNoEnd, NewPeriodForOldLeases, DefinitionsFirst,
    KeepsTheDeleted, EarlyAcksAreForgotten, EarlyAcksTakeRoom,
]  # fmt: skip
OF_KEYS: list[type[Model]] = [NoOrderPerKey, NullIsAKey, DelayedKeysGoOn, StuckKeysHoldTheQueue]


def one_walk(model: type[Model], seed: int) -> None:
    r = random.Random(seed)
    Walk(random_queues(r), OnModel(model())).go(random_batches(r, 16, 6, 8))


@pytest.mark.parametrize("mistake", MISTAKES + OF_KEYS, ids=lambda m: m.__name__)
def test_a_mistake_is_found(mistake: type[Model]) -> None:
    for seed in range(MISTAKE_SEEDS):
        try:
            one_walk(mistake, seed)
        except AssertionError:
            return
    pytest.fail(f"no walk found it: {mistake.__doc__}")


def test_no_mistake_is_not_found() -> None:
    for seed in range(60):
        one_walk(Model, seed)
