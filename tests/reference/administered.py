"""The naive model, and what an administrator may do to a queue that is in use.

Purge, move and shutdown (R6, H5), and the publishers' options that meet them: priority, delay,
whether a message may go to a dead message queue (P7, L12, S11). Besides, `hand_back` is silent on
L5 where `max_deliveries` was lowered below what a message has: it goes out once more.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from .model import Entry, Model, Queue, Refused, Subscription, milliseconds, size_bytes

LOW = 4


class Administered(Model):
    """shut: queues whose ingress is shut down; silent: those whose egress is; kept_out: ids that
    may not go to a dead message queue."""

    def __init__(self) -> None:
        super().__init__()
        self.shut: set[str] = set()
        self.silent: set[str] = set()
        self.kept_out: set[int] = set()

    def delete(self, name: str) -> None:
        super().delete(name)
        self.shut.discard(name)
        self.silent.discard(name)

    def shutdown(self, name: str, ingress: bool, egress: bool) -> None:
        """H5: sets both."""
        for found, is_down in ((self.shut, ingress), (self.silent, egress)):
            found.discard(name)
            found.update([name] if is_down else [])
        self.dispatch()

    # What comes in

    def refusal(self, queue: Queue, size: int, priority: int) -> str | None:
        """S3, S11: the first of the queue's own checks that fails."""
        if queue.full_for(size):
            return "queue_quota"
        if size > size_bytes(queue.get("max_message_size", "10MB")):
            return "message_too_large"
        if queue.name in self.shut:
            return "queue_shutdown"
        limit = queue.get("reject_low_priority_msg_limit")
        is_over = limit is not None and len(queue.entries) >= limit
        return "low_priority_limit" if is_over and priority < LOW else None

    def discards(self, queue: Queue) -> bool:
        """S4."""
        policy = queue.get("reject_msg_to_sender_on_discard", "when-queue-enabled")
        return policy == "never" or (policy == "when-queue-enabled" and queue.name in self.shut)

    def publish_with(
        self, topic: str, payload: bytes, ttl: str | None, key: str, priority: int = LOW,
        due: int | None = None, dmq: bool = True,
    ) -> int | None:  # fmt: skip
        """As `publish`; due: when it is ready (L12)."""
        if topic in self.queues:
            addressed = self.queues[topic]
            default = addressed.get("underlying_topic", addressed.name)
            topic = addressed.get("default_publish_target", default)
        until = None if ttl is None else self.now + milliseconds(ttl)
        draft = Entry(0, topic, payload, {}, key, priority, self.now, until)
        matching = [
            q for q in self.queues.values() if q.captures(topic) and draft.matches(q.get("filter"))
        ]
        if not matching:
            raise Refused("no_matching_destination")
        why = {q.name: self.why_not(q, draft) for q in matching}
        refusing = [q for q in matching if why[q.name] and not self.discards(q)]
        invalid = [q for q in matching if why[q.name] == "malformed"]
        for queue in matching:
            if queue in refusing or queue in invalid:
                raise Refused(str(why[queue.name]), queue.name)
        keepers = [q for q in matching if why[q.name] is None]
        for queue in matching:
            queue.counters["discarded"] += queue not in keepers
        if not keepers:
            return None
        self.ids += 1
        if not dmq:
            self.kept_out.add(self.ids)
        for queue in keepers:
            entry = Entry(self.ids, topic, payload, {}, key, priority, self.now, until)
            entry.delayed_until = due if due is not None and due > self.now else None
            self.take_in(queue, entry)
        self.dispatch()
        return self.ids

    def why_not(self, queue: Queue, draft: Entry) -> str | None:
        """`refusal`, or what `on_invalid` says of a payload that is no JSON."""
        why = self.refusal(queue, draft.size(), draft.publisher_priority)
        is_strict = queue.get("on_invalid") == "nack" and not is_json(draft.payload)
        return "malformed" if why is None and is_strict else why

    # What goes out

    def deliver_first(self, queue: Queue) -> bool:
        return queue.name not in self.silent and super().deliver_first(queue)

    def back_off(self, queue: Queue, entry: Entry) -> int:
        """A factor for each delivery."""
        factor = queue.get("redelivery_delay_multiplier", 1)
        pause = int((queue.period("redelivery_delay") or 0) * factor ** (entry.deliveries - 1))
        longest = queue.period("redelivery_delay_max")
        return pause if longest is None else min(pause, longest)

    def hand_back(self, subscription: Subscription, message_id: int) -> None:
        queue = self.queues[subscription.queue]
        kept = queue.definition
        queue.definition = {k: v for k, v in kept.items() if k != "max_deliveries"}
        super().hand_back(subscription, message_id)
        queue.definition = kept

    def bury(self, queue: Queue, entry: Entry, reason: str, detail: str = "") -> None:
        """X5, P7, H5: each for itself."""
        if entry.id in self.kept_out or queue.get("dead_message_queue") in self.shut:
            queue.entries.remove(entry)
            queue.counters["discarded"] += 1
        else:
            super().bury(queue, entry, reason, detail)

    # What an administrator does

    def meant(self, name: str, where: str | None, ids: list[int] | None) -> list[Entry]:
        """R5: an expression means active messages."""
        queue = self.queues[name]
        entries = queue.entries if where is None else queue.active()
        found = [e for e in entries if e.matches(where) and (ids is None or e.id in ids)]
        return sorted(found, key=lambda e: e.arrival)

    def purge(self, name: str, where: str | None, ids: list[int] | None) -> int:
        """R6: in whatever state."""
        queue, found = self.queues[name], self.meant(name, where, ids)
        for entry in found:
            queue.entries.remove(entry)
            queue.counters["purged"] += 1
        self.dispatch()
        return len(found)

    def move(
        self, name: str, to: str, where: str | None, ids: list[int] | None
    ) -> tuple[int, dict[str, int]]:
        """R6: behind all others, as if it entered anew; a TTL that still runs goes on."""
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
            is_dead = "lq-dead-reason" in entry.headers
            is_spent = entry.ttl_until is not None and entry.ttl_until <= self.now
            new = Entry(
                entry.id, entry.topic, entry.payload, dict(entry.headers), entry.key,
                entry.publisher_priority, entry.published, entry.ttl_until,
                was_dead=is_dead or is_spent,
            )  # fmt: skip
            new.delayed_until = entry.delayed_until
            self.take_in(target, new)
        self.dispatch()
        return moved, dict(stayed)

    def why_not_there(self, entry: Entry, target: Queue) -> str | None:
        if entry.holder is not None:
            return "leased"
        if target.find(entry.id) is not None:
            return "already_there"
        if why := self.refusal(target, entry.size(), entry.publisher_priority):
            return why
        if target.keeps_last and target.entries:
            return "keeps_last_message"
        return None if entry.matches(target.get("filter")) else "filter"

    def why_not_back(self, entry: Entry, target: Queue | None) -> str | None:
        if "lq-dead-queue" not in entry.headers:
            return "not_dead"
        if entry.holder is not None:
            return "leased"
        return "no_such_queue" if target is None else self.why_not_there(entry, target)

    # Looking

    def describe(self, name: str) -> dict[str, int]:
        counters = self.queues[name].counters
        return super().describe(name) | {key: counters[key] for key in ("purged", "moved")}


def is_json(payload: bytes) -> bool:
    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


def shown(entry: Entry, at: int) -> dict[str, Any]:
    """What `Browse` shows of it; at: the epoch of the model's time."""

    def time(own: int | None) -> int | None:
        return None if own is None else at + own

    return {
        "state": entry.state, "delivery_count": entry.deliveries, "is_barrier": entry.is_barrier,
        "expires": time(entry.expires), "lease_until": time(entry.lease_until),
        "ready_at": time(entry.delayed_until), "entered": time(entry.entered),
        "holder": entry.holder and entry.holder.name,
        "reason": entry.headers.get("lq-dead-reason"), "queue": entry.headers.get("lq-dead-queue"),
        "first": entry.headers.get("lq-first-dead-queue"),
    }  # fmt: skip
