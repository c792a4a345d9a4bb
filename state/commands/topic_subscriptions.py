"""Topic subscriptions of queues, added and removed while they run (Q2, S1, S7).

Besides its underlying topic a queue takes what is published to the topics it has subscribed to
(`protocol/patterns.py` says how they are written). Subscriptions stand in value pages, so that a
topic is compared with few of them: plain topics by name, wildcards by their first level, the rest
in one list each for wildcards without a first level and for regular expressions. The header counts
them, so that a VPN without any reads nothing.

A message keeps the matches that it was stored with: removing a subscription takes nothing back.
"""

from __future__ import annotations

from ...definitions import QueueDefinition
from ...protocol.commands import SubscribeTopic, UnsubscribeTopic
from ...protocol.patterns import compiled, kind_of, wildcard_matches
from ..broker import Broker, bucket
from ..mesh.topic_routes import changed, kind_of_topics, slot_of
from ..queue import Queue

TOPICS_MAX = 10_000  # of one queue

_TOPICS, _WILDCARDS, _ANY_FIRST, _REGEXES = range(4)  # places in the header's counts


def topics_of(broker: Broker, queue: Queue) -> list[str]:
    """The topics that a queue has subscribed to, sorted."""
    if queue.definition.vpn not in broker.header.topics:
        return []  # spares a read
    return list(broker.values.read(f"u/{queue.number}") or [])


def _change(broker: Broker, vpn: str, queue: Queue, pattern: str, add: bool) -> None:
    kind = kind_of_topics(pattern)
    which, slot = slot_of(kind, pattern)
    changed(broker, vpn, kind, pattern)
    key = f"t/{vpn}/{slot}"
    entries = dict(broker.values.read(key) or {})
    others = [n for n in entries.pop(pattern, []) if n != queue.number]
    if add:
        others = sorted([*others, queue.number])
    if others:
        entries[pattern] = others
    broker.values.write(key, entries)
    counts = broker.header.topics.setdefault(vpn, [0, 0, 0, 0])
    counts[which] += 1 if add else -1
    if not any(counts):
        del broker.header.topics[vpn]


def add(broker: Broker, vpn: str, queue: Queue, patterns: list[str]) -> list[str]:
    """Subscribe a queue to topics; returns those that are new. Raises ValueError."""
    present = topics_of(broker, queue)
    new = sorted(set(patterns) - set(present))
    _room_for(queue, len(present), new)
    for pattern in new:
        _change(broker, vpn, queue, pattern, add=True)
    if new:
        broker.values.write(f"u/{queue.number}", sorted([*present, *new]))
        _begin_to_read(broker, vpn, queue, new)
    return new


def _begin_to_read(broker: Broker, vpn: str, queue: Queue, patterns: list[str]) -> None:
    from ..mesh.captures import begin_to_read

    begin_to_read(broker, vpn, queue, patterns)


def _room_for(queue: Queue, present: int, new: list[str]) -> None:
    if new and present + len(new) > TOPICS_MAX:
        raise ValueError(
            f"topic: {new[0]!r} – a queue subscribes to at most {TOPICS_MAX} topics; "
            f"{queue.definition.name!r} has {present}"
        )


def check_definition(broker: Broker, queue: Queue | None, new: QueueDefinition) -> None:
    """Raise ValueError if `follow_definition` could not be done."""
    if queue is not None:
        present = set(topics_of(broker, queue))
        kept = present - (set(queue.definition.subscriptions) - set(new.subscriptions))
        _room_for(queue, len(kept), sorted(set(new.subscriptions) - kept))


def remove(broker: Broker, vpn: str, queue: Queue, patterns: list[str]) -> list[str]:
    """End subscriptions; returns those that were there."""
    present = topics_of(broker, queue)
    gone = sorted(set(patterns) & set(present))
    for pattern in gone:
        _change(broker, vpn, queue, pattern, add=False)
    if gone:
        broker.values.write(f"u/{queue.number}", sorted(set(present) - set(gone)))
    return gone


def subscribe_topic(broker: Broker, vpn: str, queue: Queue, command: SubscribeTopic) -> bool:
    """Carry out the command; answers whether the subscription is new."""
    kind_of(command.topic)
    new = add(broker, vpn, queue, [command.topic])
    if new:
        broker.event("topic_subscribed", vpn, queue.definition.name, topic=command.topic)
        _tell_base(broker, vpn, queue)
    return bool(new)


def unsubscribe_topic(broker: Broker, vpn: str, queue: Queue, command: UnsubscribeTopic) -> None:
    """Carry out the command; what was spooled is still delivered (S7). Raises ValueError."""
    if not remove(broker, vpn, queue, [command.topic]):
        there = ", ".join(map(repr, topics_of(broker, queue)[:20])) or "none"
        raise ValueError(
            f"topic: {command.topic[:200]!r} – queue {queue.definition.name!r} has not subscribed "
            f"to it; it has: {there}"
        )
    broker.event("topic_unsubscribed", vpn, queue.definition.name, topic=command.topic)
    _tell_base(broker, vpn, queue)


def _tell_base(broker: Broker, vpn: str, queue: Queue) -> None:
    from ..bridges.trails import tell_base

    tell_base(broker, vpn, queue)


def follow_definition(
    broker: Broker, vpn: str, queue: Queue, old: QueueDefinition | None, new: QueueDefinition
) -> None:
    """Apply what a definition's ``subscriptions`` gained and lost; those added since stay."""
    before = set(old.subscriptions) if old else set()
    remove(broker, vpn, queue, sorted(before - set(new.subscriptions)))
    add(broker, vpn, queue, sorted(set(new.subscriptions) - before))


def subscribed(broker: Broker, vpn: str, topic: str) -> set[int]:
    """The numbers of the queues of a VPN that have subscribed to a topic."""
    counts = broker.header.topics.get(vpn)
    if counts is None:
        return set()
    read = broker.values.read
    found: set[int] = set()
    if counts[_TOPICS]:
        found.update((read(f"t/{vpn}/t{bucket(topic)}") or {}).get(topic, ()))
    levels = topic.split("/")
    slots = [f"w{bucket(levels[0])}"] if counts[_WILDCARDS] else []
    slots += ["*"] if counts[_ANY_FIRST] else []
    for slot in slots:
        for pattern, numbers in (read(f"t/{vpn}/{slot}") or {}).items():
            if wildcard_matches(pattern.split("/"), levels):
                found.update(numbers)
    if counts[_REGEXES]:
        for pattern, numbers in (read(f"t/{vpn}/r") or {}).items():
            if compiled(pattern).fullmatch(topic):
                found.update(numbers)
    return found
