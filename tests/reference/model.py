"""A naive model of one broker, written from the rules of semantics.md alone.

A queue is a list of entries that is sorted and scanned again in every step. There is no index and
no counter that could disagree with the list. It is slow, and obvious. Times are milliseconds, `now`
moves only by `advance`. Where the rules are silent, the choice made here is marked "Silent:".

How the model reads Q9, about a queue that holds messages when it is redefined: an expression is
evaluated once, when a message enters (Q6), and its value holds as long as the message stays. So

- a message keeps the priority with which it entered, also while the queue has none; one that
  entered without a priority has 0; the order is by the messages' own priorities (O2), then O1;
- a barrier stays one: it waits for all that entered before it, and nothing that entered after it
  goes before it, whatever its priority (O3). Later messages stay behind earlier ones, also
  when the barrier has left without being delivered; an empty queue forgets its barriers;
- a message keeps its partition key (O4). Of the messages with one key, one at a time is under way:
  leased, or delivered before and returned, maybe with a delay; it goes first. If none is under way,
  the first in the queue's order is next. If that is not due yet (L12), those behind it wait;
- the queue's filter is applied when a message enters (Q4), and never again.

Limits, periods and policies are those of the present definition, but times already set stay: a
lease keeps its end, and one without an end gets none (L10); a message expires by the definition
under which it entered (X1, X4), an early ack by the one under which it came (L9).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from reference.expressions import evaluate, fields_of

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNITS_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20}
UNSIGNED_MAX = 2**64 - 1
REGEX_SIGNS = set("^$*+?()[]{}|\\")
HEARTBEAT_TIMEOUT_MS = 15_000
PRIORITY_DEFAULT = 4
COUNTED = (
    "spooled", "delivered", "redelivered", "acknowledged", "canceled", "expired", "dead_lettered",
    "discarded", "replaced", "redriven", "purged", "moved",
)  # fmt: skip


def milliseconds(duration: str | float) -> int:
    """Q8: `500ms`, `30s`, `15m`, `2h`, `1d`; a bare number is in seconds."""
    if isinstance(duration, int | float):
        return round(duration * 1000)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", duration)
    if match is None:
        raise ValueError(f"{duration!r} is not a duration")
    return round(float(match[1]) * UNITS_MS[match[2]])


def size_bytes(size: str | int) -> int:
    """Q8: `64KB`, `10MB`, `4KiB` or a number of bytes."""
    if isinstance(size, int):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", size)
    if match is None:
        raise ValueError(f"{size!r} is not a size")
    return round(float(match[1]) * UNITS_BYTES[match[2]])


def subscribed(pattern: str, topic: str) -> bool:
    """Whether a subscription matches a topic. It is a wildcard pattern if `*` only ends levels and
    `>` only ends it; otherwise a regular expression as in Q2."""
    special = REGEX_SIGNS & set(pattern)
    if not special - {"*"} and ".*" not in pattern:
        levels = [re.escape(level) for level in pattern.split("/")]
        text = "/".join(level.replace(r"\*", "[^/]*") for level in levels)
        pattern = text[:-1] + ".*" if text.endswith(">") else text
    return re.fullmatch(pattern, topic) is not None


class Refused(Exception):
    """The producer gets a nack."""

    def __init__(self, reason: str, queue: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.queue = reason, queue


@dataclass(eq=False)
class Subscription:
    """One consumer's flow bound to a queue."""

    number: int
    name: str
    queue: str
    backlog: int
    filter: str | None = None
    no_ack: bool = False
    priority: int = 0
    dead_at: int | None = None
    inbox: list["Delivery"] = field(default_factory=list)


@dataclass(frozen=True)
class Delivery:
    """A delivery, as the consumer sees it."""

    entry: "Entry"
    id: int
    count: int
    is_barrier: bool
    lease_until: int | None


@dataclass(eq=False)
class Entry:
    """A message in one queue. Fields without a parameter do not follow it into another queue."""

    id: int
    topic: str
    payload: bytes
    headers: dict[str, str]
    key: str | None
    publisher_priority: int = PRIORITY_DEFAULT
    ttl_until: int | None = None
    delayed_until: int | None = None
    may_be_dead: bool = True  # P7: may go to a dead message queue
    was_dead: bool = False
    arrival: int = field(default=0, init=False)
    entered: int = field(default=0, init=False)
    rank: int = field(default=0, init=False)
    is_barrier: bool = field(default=False, init=False)
    behind: int = field(default=0, init=False)  # barriers that entered before it
    partition: Any = field(default=None, init=False)
    expires: int | None = field(default=None, init=False)
    known: dict[str, Any] = field(default_factory=dict, init=False)
    holder: Subscription | None = field(default=None, init=False)
    lease_until: int | None = field(default=None, init=False)
    deliveries: int = field(default=0, init=False)
    delivered_at_step: int = field(default=0, init=False)
    cancels: int = field(default=0, init=False)

    @property
    def state(self) -> str:
        if self.holder is not None:
            return "leased"
        return "delayed" if self.delayed_until is not None else "ready"

    def value(self, expression: str) -> Any:
        """Q6: all fields of a payload that is not JSON are NULL. The result never changes."""
        if expression not in self.known:
            self.known[expression] = self.worked_out(expression)
        return self.known[expression]

    def worked_out(self, expression: str) -> Any:
        document = json.loads(self.payload) if self.is_json else None
        lookup = fields_of(document)
        special = {"/@priority": self.publisher_priority, "@key": self.key}
        return evaluate(expression, lambda path: special[path] if path in special else lookup(path))

    @property
    def is_json(self) -> bool:
        try:
            json.loads(self.payload)
        except ValueError:
            return False
        return True

    def matches(self, expression: str | None) -> bool:
        return expression is None or self.value(expression) is True

    def size(self) -> int:
        """Q8: payload and application headers; the engine's own `lq-` headers do not count."""
        own = {k: v for k, v in self.headers.items() if not k.startswith("lq-")}
        return len(self.payload) + sum(len(k.encode()) + len(v.encode()) for k, v in own.items())


@dataclass(eq=False)
class Queue:
    """Definition, stored messages, and counters."""

    name: str
    definition: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)
    held_ever: set[int] = field(default_factory=set)
    deferred: dict[int, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    served_last: int = 0
    barriers: int = 0  # entered since it was last empty
    is_shut: bool = False  # H5: its ingress
    is_silent: bool = False  # H5: its egress
    counters: Counter[str] = field(default_factory=Counter)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.definition.get(key)
        return default if value is None else value

    def period(self, key: str) -> int | None:
        value = self.get(key)
        return None if value is None else milliseconds(value)

    @property
    def at_most_once(self) -> bool:
        return bool(self.get("semantics", "at-least-once") == "at-most-once")

    @property
    def fairness(self) -> str:
        default = "round-robin" if self.at_most_once else "proportional"
        return str(self.get("fairness_model", default))

    def captures(self, topic: str) -> bool:
        """Q2: a regular expression matches the whole topic name; topic subscriptions too."""
        if any(subscribed(pattern, topic) for pattern in self.topics):
            return True
        pattern = self.get("underlying_topic", self.name)
        if REGEX_SIGNS & set(pattern):
            return re.fullmatch(pattern, topic) is not None
        return bool(pattern == topic)

    def in_order(self) -> list[Entry]:
        """O1, O2: higher priority first, then order of entry; O3: only up to a barrier."""
        return sorted(self.entries, key=lambda e: (e.behind, e.is_barrier, -e.rank, e.arrival))

    def held_back(self, entry: Entry) -> bool:
        """O4: another message of the same key is under way (leased, or delivered before and
        returned) or, if none is, comes before it."""
        if entry.partition is None:
            return False
        same = [e for e in self.in_order() if e.partition == entry.partition]
        begun = [e for e in same if e.holder is not None or e.deliveries > 0]
        return (begun or same)[0] is not entry

    def active(self) -> list[Entry]:
        """R5: the first messages of the queue, leased and delayed ones too. Silent: this limits
        deliveries, browsing and filters, but not acks by id, purges by id, or time."""
        return self.in_order()[: self.get("target_queue_depth")]

    def find(self, message_id: int) -> Entry | None:
        return next((e for e in self.entries if e.id == message_id), None)

    def held(self, subscription: Subscription) -> int:
        return sum(e.holder is subscription for e in self.entries)

    def allowance(self, subscription: Subscription) -> int:
        """B2: the lower of the queue's and the subscription's own; B4: never above the flow's."""
        return min(
            subscription.backlog,
            self.get("max_per_subscription_backlog", 1),
            self.get("max_delivered_unacked_per_flow", 10_000),
        )

    @property
    def keeps_last(self) -> bool:
        """S10: quota 0."""
        return size_bytes(self.get("max_spool_usage", "5000MB")) == 0

    def full_for(self, size: int) -> bool:
        """S3: the queue's quota, in bytes and in messages."""
        if self.keeps_last:
            return False
        stored = sum(e.size() for e in self.entries)
        if stored + size > size_bytes(self.get("max_spool_usage", "5000MB")):
            return True
        return len(self.entries) >= self.get("max_spool_messages", 10**9)

    def refusal(self, entry: Entry) -> str | None:
        """S3, S11: the first of the queue's own checks that fails."""
        if self.full_for(entry.size()):
            return "queue_quota"
        if entry.size() > size_bytes(self.get("max_message_size", "10MB")):
            return "message_too_large"
        if self.is_shut:
            return "queue_shutdown"
        limit = self.get("reject_low_priority_msg_limit")
        is_over = limit is not None and len(self.entries) >= limit
        is_low = entry.publisher_priority < PRIORITY_DEFAULT
        return "low_priority_limit" if is_over and is_low else None

    @property
    def discards(self) -> bool:
        """S4: the reasons to discard a message without a nack."""
        policy = self.get("reject_msg_to_sender_on_discard", "when-queue-enabled")
        return policy == "never" or (policy == "when-queue-enabled" and self.is_shut)


class Model:
    """A broker: queues, subscriptions, a clock."""

    def __init__(self) -> None:
        self.now = 0
        self.queues: dict[str, Queue] = {}
        self.subscriptions: list[Subscription] = []
        self.ids = 0
        self.arrivals = 0
        self.steps = 0
        self.joining = False

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Everything inside comes in one batch: due work and deliveries follow all of it."""
        self.joining = True
        try:
            yield
        finally:
            self.joining = False
        self.tick()

    # Definitions and subscriptions

    def define(self, definition: dict[str, Any]) -> None:
        """Q9: a redefined queue keeps its messages; new periods hold from then on."""
        name = definition.get("name") or definition["topic"]
        if name in self.queues:
            self.queues[name].definition = dict(definition)
        else:
            self.queues[name] = Queue(name, dict(definition))
        self.dispatch()

    def subscribe_topic(self, name: str, pattern: str) -> None:
        self.queues[name].topics.add(pattern)

    def unsubscribe_topic(self, name: str, pattern: str) -> None:
        """S7: stored messages stay."""
        self.queues[name].topics.remove(pattern)

    def delete(self, name: str) -> None:
        """S7: a deleted queue's messages are gone."""
        del self.queues[name]
        self.subscriptions = [s for s in self.subscriptions if s.queue != name]

    def shutdown(self, name: str, ingress: bool, egress: bool) -> None:
        """H5: sets both."""
        self.queues[name].is_shut, self.queues[name].is_silent = ingress, egress
        self.dispatch()

    def subscribe(
        self, queue: str, name: str = "", backlog: int = 1, filter: str | None = None,
        no_ack: bool = False, priority: int = 0,
    ) -> Subscription:  # fmt: skip
        self.steps += 1
        subscription = Subscription(self.steps, name, queue, backlog, filter, no_ack, priority)
        self.subscriptions.append(subscription)
        self.dispatch()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """C3: its leased messages return at once."""
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            queue = self.queues[subscription.queue]
            for entry in list(queue.entries):
                if entry.holder is subscription:
                    self.give_back(queue, entry)
            self.dispatch()

    def kill(self, subscription: Subscription) -> None:
        subscription.dead_at = self.now + HEARTBEAT_TIMEOUT_MS

    def set_backlog(self, subscription: Subscription, backlog: int) -> None:
        """B3: while it holds more, delivery waits; it keeps its messages."""
        subscription.backlog = backlog
        self.dispatch()

    # Publishing

    def publish(
        self, topic: str, payload: bytes, ttl: str | float | None = None,
        priority: int = PRIORITY_DEFAULT, headers: dict[str, str] | None = None,
        key: str | None = None, due: int | None = None, dmq: bool = True,
    ) -> int | None:  # fmt: skip
        """Returns the message's id; None where no queue stored it. Raises Refused for a nack. due:
        when it is ready (L12)."""
        if topic in self.queues:
            addressed = self.queues[topic]
            default = addressed.get("underlying_topic", addressed.name)
            topic = addressed.get("default_publish_target", default)
        until = None if ttl is None else self.now + milliseconds(ttl)
        delay = due if due is not None and due > self.now else None
        draft = Entry(0, topic, payload, headers or {}, key, priority, until, delay, dmq)
        matching = [
            q for q in self.queues.values() if q.captures(topic) and draft.matches(q.get("filter"))
        ]
        if not matching:
            raise Refused("no_matching_destination")
        keepers = [queue for queue in matching if self.admits(queue, draft)]
        for queue in matching:
            queue.counters["discarded"] += queue not in keepers
        if not keepers:
            return None
        self.ids += 1
        for queue in keepers:
            self.take_in(queue, replace(draft, id=self.ids))
        self.dispatch()
        return self.ids

    def admits(self, queue: Queue, draft: Entry) -> bool:
        """S3, S4: False where the queue discards the message; raises where the producer gets a
        nack."""
        reason = queue.refusal(draft)
        if reason is not None and queue.discards:
            return False
        if reason is None and queue.get("on_invalid") == "nack" and not draft.is_json:
            reason = "malformed"
        if reason is not None:
            raise Refused(reason, queue.name)
        return True

    def take_in(self, queue: Queue, entry: Entry) -> None:
        """Expressions are evaluated here and never again (Q6)."""
        self.arrivals += 1
        entry.arrival, entry.entered = self.arrivals, self.now
        queue.counters["spooled"] += 1
        queue.held_ever.add(entry.id)
        if queue.deferred.pop(entry.id, -1) > self.now:
            queue.counters["acknowledged"] += 1
            return
        if priority := queue.get("priority"):
            entry.rank = unsigned(entry.value(priority))
        if barrier := queue.get("barrier_expression"):
            entry.is_barrier = entry.matches(barrier)
        queue.barriers = queue.barriers if queue.entries else 0
        entry.behind = queue.barriers
        queue.barriers += entry.is_barrier
        if (key := queue.get("partition_key")) and not entry.is_barrier:
            entry.partition = entry.value(key)
        entry.expires = self.life_of(queue, entry)
        queue.entries.append(entry)
        if queue.keeps_last:
            self.replace(queue, queue.entries[:-1])

    def replace(self, queue: Queue, entries: list[Entry]) -> None:
        """S10: in whatever state; Silent: neither acknowledged nor dead."""
        for entry in entries:
            queue.entries.remove(entry)
            queue.counters["replaced"] += 1

    # Administration

    def meant(self, name: str, where: str | None, ids: list[int] | None) -> list[Entry]:
        """R5: an expression selects among active messages."""
        queue = self.queues[name]
        entries = queue.entries if where is None else queue.active()
        found = [e for e in entries if e.matches(where) and (ids is None or e.id in ids)]
        return sorted(found, key=lambda e: e.arrival)

    def purge(self, name: str, where: str | None, ids: list[int] | None) -> int:
        """R6: in any state."""
        queue, found = self.queues[name], self.meant(name, where, ids)
        for entry in found:
            queue.entries.remove(entry)
            queue.counters["purged"] += 1
        self.dispatch()
        return len(found)

    def move(
        self, name: str, to: str, where: str | None, ids: list[int] | None
    ) -> tuple[int, dict[str, int]]:
        """R6: at the end, as if it entered anew; a running TTL continues."""
        source, target = self.queues[name], self.queues[to]
        stayed: Counter[str] = Counter()
        moved = 0
        for entry in self.meant(name, where, ids):
            if why := self.why_not_there(entry, target):
                stayed[why] += 1
                continue
            moved += 1
            source.entries.remove(entry)
            source.counters["moved"] += 1
            is_dead = entry.was_dead or "lq-dead-reason" in entry.headers
            self.take_in(target, replace(entry, was_dead=is_dead or due(entry.ttl_until, self.now)))
        self.dispatch()
        return moved, dict(stayed)

    def redrive(self, name: str, ids: list[int] | None = None) -> dict[str, int]:
        """X6: each as a new message of the queue in which it died; with the reasons why others
        stay, and their number."""
        source = self.queues[name]
        stayed: Counter[str] = Counter()
        for entry in self.meant(name, None, ids):
            target = self.queues.get(entry.headers.get("lq-dead-queue", ""))
            if reason := self.why_not_back(entry, target):
                stayed[reason] += 1
                continue
            assert target is not None
            own = {k: v for k, v in entry.headers.items() if not k.startswith("lq-dead-")}
            own = {k.replace("lq-first-dead-", "lq-dead-"): v for k, v in own.items()}
            source.entries.remove(entry)
            source.counters["redriven"] += 1
            self.take_in(target, self.without_times(entry, own))
        self.dispatch()
        return dict(stayed)

    def without_times(self, entry: Entry, headers: dict[str, str]) -> Entry:
        """X5: as it is when it died; neither its TTL nor its delay continues."""
        return replace(entry, headers=headers, ttl_until=None, delayed_until=None, was_dead=True)

    def why_not_back(self, entry: Entry, target: Queue | None) -> str | None:
        if "lq-dead-queue" not in entry.headers:
            return "not_dead"
        if entry.holder is not None:
            return "leased"
        return "no_such_queue" if target is None else self.why_not_there(entry, target)

    def why_not_there(self, entry: Entry, target: Queue) -> str | None:
        if entry.holder is not None:
            return "leased"
        if target.find(entry.id) is not None:
            return "already_there"
        if why := target.refusal(entry):
            return why
        if target.keeps_last and target.entries:
            return "keeps_last_message"
        return None if entry.matches(target.get("filter")) else "filter"

    # Commands of consumers

    def acknowledge(self, subscription: Subscription, ids: list[int]) -> None:
        """L8, L9: by id; an id that the queue never had is remembered."""
        queue = self.queues[subscription.queue]
        for message_id in ids:
            entry = queue.find(message_id)
            if entry is not None:
                self.acknowledge_one(queue, subscription, entry)
            elif message_id not in queue.held_ever:
                until = self.now + milliseconds(queue.get("deferred_ack_expiration", "1d"))
                queue.deferred[message_id] = until
        self.dispatch()

    def acknowledge_one(self, queue: Queue, by: Subscription, entry: Entry) -> None:
        others = entry.holder is not None and entry.holder is not by
        if not (others and queue.get("leasing", "sublet") == "strict"):
            queue.entries.remove(entry)
            queue.counters["acknowledged"] += 1

    def acknowledge_up_to(self, subscription: Subscription, message_id: int) -> None:
        """L13. Silent: of what it holds, in the order of delivery."""
        queue = self.queues[subscription.queue]
        last = queue.find(message_id)
        if last is None or last.holder is not subscription:
            return
        for entry in queue.in_order():
            mine = entry.holder is subscription
            if mine and entry.delivered_at_step <= last.delivered_at_step:
                self.acknowledge_one(queue, subscription, entry)
        self.dispatch()

    def acknowledge_where(self, subscription: Subscription, where: str) -> None:
        """L13. Silent: everything it may acknowledge by the leasing model, leased or not."""
        queue = self.queues[subscription.queue]
        for entry in queue.active():
            if entry.matches(where):
                self.acknowledge_one(queue, subscription, entry)
        self.dispatch()

    def cancel(
        self, subscription: Subscription, message_id: int, delay: str | float | None = None
    ) -> None:
        """L6, L11: only its holder can cancel a lease."""
        queue = self.queues[subscription.queue]
        entry = queue.find(message_id)
        if entry is None or entry.holder is not subscription:
            return
        entry.cancels += 1
        queue.counters["canceled"] += 1
        if 0 < queue.get("max_cancels", 0) <= entry.cancels:
            self.expire(queue, entry, "max_cancels")
        else:
            pause = self.back_off(queue, entry) if delay is None else milliseconds(delay)
            self.give_back(queue, entry, pause)
        self.dispatch()

    def back_off(self, queue: Queue, entry: Entry) -> int:
        """L11. Silent: after n deliveries it is delay x multiplier^(n-1)."""
        base = queue.period("redelivery_delay") or 0
        factor = Fraction(str(queue.get("redelivery_delay_multiplier", 1)))
        pause = int(base * factor ** (entry.deliveries - 1))
        longest = queue.period("redelivery_delay_max")
        return pause if longest is None else min(pause, longest)

    def reject(self, subscription: Subscription, message_id: int, detail: str = "") -> None:
        """C7: straight to the DMQ."""
        queue = self.queues[subscription.queue]
        entry = queue.find(message_id)
        if entry is not None and entry.holder is subscription:
            queue.counters["refused_by_consumer"] += 1
            self.bury(queue, entry, "rejected", detail)
            self.dispatch()

    def renew(self, subscription: Subscription, message_id: int, period: str | float) -> bool:
        """L10: from now; only by its holder. A lease without an end keeps none."""
        entry = self.queues[subscription.queue].find(message_id)
        if entry is None or entry.holder is not subscription:
            return False
        if entry.lease_until is not None:
            entry.lease_until = self.now + milliseconds(period)
        return True

    def hand_back(self, subscription: Subscription, message_id: int) -> None:
        """L5: returned unread, so no attempt; also if it has returned already. Silent: where
        `max_deliveries` was lowered below its count, it is delivered once more."""
        entry = self.queues[subscription.queue].find(message_id)
        if entry is not None and entry.holder is not subscription:
            entry.deliveries -= entry.deliveries > (entry.holder is not None)
        elif entry is not None:
            entry.deliveries -= 1
            entry.holder, entry.lease_until = None, None
            self.dispatch()

    # How a message comes back or leaves

    def give_back(self, queue: Queue, entry: Entry, pause: int = 0) -> None:
        """L5 is decided here, on the return; L7: the entry keeps its place."""
        entry.holder, entry.lease_until = None, None
        if 0 < queue.get("max_deliveries", 0) <= entry.deliveries:
            self.expire(queue, entry, "max_deliveries")
        elif pause > 0:
            entry.delayed_until = self.now + pause

    def expire(self, queue: Queue, entry: Entry, reason: str) -> None:
        queue.counters["expired"] += 1
        self.bury(queue, entry, reason)

    def bury(self, queue: Queue, entry: Entry, reason: str, detail: str = "") -> None:
        """X5, P7, H5: to the dead message queue if that can be used, otherwise removed."""
        queue.entries.remove(entry)
        target = self.queues.get(queue.get("dead_message_queue", ""))
        is_usable = target is not None and not target.is_shut and not target.full_for(entry.size())
        if target is None or not is_usable or not entry.may_be_dead:
            queue.counters["discarded"] += 1
            return
        queue.counters["dead_lettered"] += 1
        first = {}
        if not any(k.startswith("lq-first-dead-") for k in entry.headers):
            before = {k: v for k, v in entry.headers.items() if k.startswith("lq-dead-")}
            first = {k.replace("lq-dead-", "lq-first-dead-"): v for k, v in before.items()}
        last = {
            "lq-dead-reason": reason, "lq-dead-queue": queue.name, "lq-dead-detail": detail,
            "lq-dead-deliveries": str(entry.deliveries),
        }  # fmt: skip
        # Silent: a queue holds a message once, so the second match to die into it joins the first.
        if target.find(entry.id) is None:
            self.take_in(target, self.without_times(entry, entry.headers | first | last))

    # Time

    def expires_at(self, queue: Queue, entry: Entry) -> int | None:
        return entry.expires

    def life_of(self, queue: Queue, entry: Entry) -> int | None:
        """X2: the four models; a missing value is unlimited."""
        period = queue.period("expiration")
        own = None if period is None else entry.entered + period
        theirs = entry.ttl_until
        if entry.was_dead:  # X5: only the queue's own TTL counts, in any model
            return own
        match queue.get("expiration_model", "default"):
            case "queue":
                return own
            case "latest":
                return None if own is None or theirs is None else max(own, theirs)
            case "earliest":
                return min((t for t in (own, theirs) if t is not None), default=None)
            case _:
                return own if theirs is None else theirs

    def next_deadline(self) -> int | None:
        times: list[int | None] = [s.dead_at for s in self.subscriptions]
        for queue in self.queues.values():
            for e in queue.entries:
                times += [self.expires_at(queue, e), e.lease_until, e.delayed_until]
        return min((t for t in times if t is not None), default=None)

    def advance(self, duration: str | float) -> None:
        """Move the clock, with a stop at each deadline."""
        target = self.now + milliseconds(duration)
        while (deadline := self.next_deadline()) is not None and deadline <= target:
            self.now = max(self.now, deadline)
            self.tick()
        self.now = target

    def tick(self) -> None:
        """Silent: of the work due in the same millisecond, expiry comes first, then order of
        entry."""
        self.joining = True
        for queue in list(self.queues.values()):
            for entry in list(queue.entries):
                if due(self.expires_at(queue, entry), self.now):
                    self.expire(queue, entry, "expired")
        for subscription in list(self.subscriptions):
            if due(subscription.dead_at, self.now):
                subscription.dead_at = None
                self.unsubscribe(subscription)
        for queue in list(self.queues.values()):
            for entry in list(queue.entries):
                if due(entry.lease_until, self.now):
                    self.give_back(queue, entry)
                if due(entry.delayed_until, self.now):
                    entry.delayed_until = None
        self.joining = False
        self.dispatch()

    # Delivery

    def dispatch(self) -> None:
        if self.joining:
            return
        for queue in list(self.queues.values()):
            while self.deliver_first(queue):
                pass

    def deliver_first(self, queue: Queue) -> bool:
        """Deliver the first message that can be delivered; False where there is none."""
        if queue.is_silent:
            return False
        nothing_before = True
        for entry in queue.active():
            if entry.is_barrier:
                return nothing_before and self.deliver_barrier(queue, entry)
            free = entry.state == "ready" and not queue.held_back(entry)
            if free and (able := self.able_to_take(queue, entry)):
                self.deliver(queue, entry, self.choose(queue, able))
                return True
            nothing_before = False
        return False

    def deliver_barrier(self, queue: Queue, entry: Entry) -> bool:
        """O3: to all current subscriptions that match, at once, without leases."""
        receivers = [s for s in self.bound_to(queue) if entry.matches(s.filter)]
        if entry.state != "ready" or not receivers:
            return False
        queue.entries.remove(entry)
        queue.counters["acknowledged"] += 1
        queue.counters["barriers"] += 1
        queue.counters["barrier_deliveries"] += len(receivers)
        for subscription in receivers:
            subscription.inbox.append(Delivery(entry, entry.id, 1, True, None))
        return True

    def bound_to(self, queue: Queue) -> list[Subscription]:
        return [s for s in self.subscriptions if s.queue == queue.name]

    def able_to_take(self, queue: Queue, entry: Entry) -> list[Subscription]:
        """B1, B2, F5. At-most-once and no_ack take no lease, so their backlog is never full."""
        leased = sum(e.holder is not None for e in queue.entries)
        limit = queue.get("max_backlog")
        if limit is not None and leased >= limit:
            return []
        return [
            s
            for s in self.bound_to(queue)
            if entry.matches(s.filter)
            and (queue.at_most_once or s.no_ack or queue.held(s) < queue.allowance(s))
        ]

    def choose(self, queue: Queue, able: list[Subscription]) -> Subscription:
        """F1 to F3. `able`: in the order of subscribing."""
        match queue.fairness:
            case "fast":
                return max(able, key=lambda s: s.priority)
            case "round-robin":
                later = [s for s in able if s.number > queue.served_last]
                return (later or able)[0]
            case _:
                return min(able, key=lambda s: Fraction(queue.held(s), queue.allowance(s)))

    def deliver(self, queue: Queue, entry: Entry, to: Subscription) -> None:
        self.steps += 1
        queue.served_last = to.number
        entry.deliveries += 1
        entry.delivered_at_step = self.steps
        queue.counters["delivered"] += 1
        queue.counters["redelivered"] += entry.deliveries > 1
        if queue.at_most_once or to.no_ack:
            queue.entries.remove(entry)
            queue.counters["acknowledged"] += 1
        else:
            period = queue.period("lease_period")
            entry.holder = to
            entry.lease_until = None if period is None else self.now + period
        to.inbox.append(Delivery(entry, entry.id, entry.deliveries, False, entry.lease_until))

    # Checks

    def describe(self, name: str) -> dict[str, int]:
        queue = self.queues[name]
        states = Counter(e.state for e in queue.entries)
        return {key: queue.counters[key] for key in COUNTED} | {
            "depth": len(queue.entries),
            "active": len(queue.active()),
            "ready": states["ready"],
            "leased": states["leased"],
            "delayed": states["delayed"],
            "spool_bytes": sum(e.size() for e in queue.entries),
        }

    def browse(self, name: str) -> list[int]:
        return [e.id for e in self.queues[name].active()]

    def check(self) -> None:
        """The invariants after every step."""
        for queue in self.queues.values():
            seen = self.describe(queue.name)
            gone = seen["acknowledged"] + seen["expired"] + queue.counters["refused_by_consumer"]
            gone += seen["replaced"] + seen["redriven"] + seen["purged"] + seen["moved"]
            assert seen["spooled"] == seen["depth"] + gone, queue.name
            assert seen["depth"] == seen["ready"] + seen["leased"] + seen["delayed"]
            for entry in queue.entries:
                assert entry.holder is None or entry.holder in self.subscriptions
                assert entry.holder is None or entry.delayed_until is None
                assert entry.holder is None or not entry.is_barrier
            leased = [e.partition for e in queue.entries if e.holder and e.partition is not None]
            assert len(leased) == len(set(leased)), f"{queue.name}: a key is leased twice"


def due(deadline: int | None, now: int) -> bool:
    return deadline is not None and deadline <= now


def unsigned(value: Any) -> int:
    """O2: fractions are truncated, too large values clamped, anything else is 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return min(max(int(min(value, UNSIGNED_MAX)), 0), UNSIGNED_MAX)
