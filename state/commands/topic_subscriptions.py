"""Topic subscriptions of queues, added and removed while they run (Q2, S1, S7).

Besides its underlying topic a queue takes what is published to the topics it has subscribed to
(`protocol/patterns.py` says how they are written). A message keeps the matches that it was stored
with: removing a subscription takes nothing back.
"""

from __future__ import annotations

from ...definitions import QueueDefinition
from ...protocol.commands import SubscribeTopic, UnsubscribeTopic
from ...protocol.patterns import kind_of
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..rules.routing import add_topic, drop_topic, has_topic, set_topics

TOPICS_MAX = 10_000  # of one queue


def subscribe_topic(broker: Broker, vpn: str, queue: Queue, command: SubscribeTopic) -> bool:
    """Carry out the command; answers whether the subscription is new."""
    kind_of(command.topic)
    present = queue.header.topics
    if has_topic(present, command.topic):
        return False
    check_room(queue.definition.name, len(present), [command.topic])
    add_topic(broker, queue, command.topic)
    broker.event("topic_subscribed", vpn, queue.definition.name, topic=command.topic)
    return True


def unsubscribe_topic(broker: Broker, vpn: str, queue: Queue, command: UnsubscribeTopic) -> None:
    """Carry out the command; what was spooled is still delivered (S7). Raises ValueError."""
    check_subscribed(queue.definition.name, queue.header.topics, command.topic)
    drop_topic(broker, queue, command.topic)
    broker.event("topic_unsubscribed", vpn, queue.definition.name, topic=command.topic)


def check_subscribed(name: str, present: list[str], topic: str) -> None:
    """Raise ValueError if a queue with these topics has not subscribed to this one."""
    if not has_topic(present, topic):
        there = ", ".join(map(repr, present[:20])) or "none"
        raise ValueError(
            f"topic: {topic[:200]!r} – queue {name!r} has not subscribed to it; it has: {there}"
        )


def check_room(name: str, present: int, new: list[str]) -> None:
    """Raise ValueError if a queue that has so many topics cannot have these too."""
    if new and present + len(new) > TOPICS_MAX:
        raise ValueError(
            f"topic: {new[0]!r} – a queue subscribes to at most {TOPICS_MAX} topics; "
            f"{name!r} has {present}"
        )


def check_definition(queue: Queue, new: QueueDefinition) -> None:
    """Raise ValueError if `follow_definition` could not be done."""
    present = set(queue.header.topics)
    after = _followed(queue, queue.definition, new)
    check_room(new.name, len(present & after), sorted(after - present))


def follow_definition(
    broker: Broker, queue: Queue, old: QueueDefinition | None, new: QueueDefinition
) -> None:
    """Apply what a definition's ``subscriptions`` gained and lost; those added since stay."""
    set_topics(broker, queue, _followed(queue, old, new))


def _followed(queue: Queue, old: QueueDefinition | None, new: QueueDefinition) -> set[str]:
    """The topics of a queue that gets this definition."""
    before, after = set(() if old is None else old.subscriptions), set(new.subscriptions)
    return set(queue.header.topics) - (before - after) | (after - before)
