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
from ..rules.routing import set_topics

TOPICS_MAX = 10_000  # of one queue


def subscribe_topic(broker: Broker, vpn: str, queue: Queue, command: SubscribeTopic) -> bool:
    """Carry out the command; answers whether the subscription is new."""
    kind_of(command.topic)
    present = queue.header.topics
    if command.topic in present:
        return False
    _check_room(queue, len(present), [command.topic])
    set_topics(broker, queue, [*present, command.topic])
    broker.event("topic_subscribed", vpn, queue.definition.name, topic=command.topic)
    return True


def unsubscribe_topic(broker: Broker, vpn: str, queue: Queue, command: UnsubscribeTopic) -> None:
    """Carry out the command; what was spooled is still delivered (S7). Raises ValueError."""
    present = queue.header.topics
    if command.topic not in present:
        there = ", ".join(map(repr, present[:20])) or "none"
        raise ValueError(
            f"topic: {command.topic[:200]!r} – queue {queue.definition.name!r} has not subscribed "
            f"to it; it has: {there}"
        )
    set_topics(broker, queue, [topic for topic in present if topic != command.topic])
    broker.event("topic_unsubscribed", vpn, queue.definition.name, topic=command.topic)


def _check_room(queue: Queue, present: int, new: list[str]) -> None:
    if new and present + len(new) > TOPICS_MAX:
        raise ValueError(
            f"topic: {new[0]!r} – a queue subscribes to at most {TOPICS_MAX} topics; "
            f"{queue.definition.name!r} has {present}"
        )


def check_definition(queue: Queue, new: QueueDefinition) -> None:
    """Raise ValueError if `follow_definition` could not be done."""
    present = set(queue.header.topics)
    after = _followed(queue, queue.definition, new)
    _check_room(queue, len(present & after), sorted(after - present))


def follow_definition(
    broker: Broker, queue: Queue, old: QueueDefinition | None, new: QueueDefinition
) -> None:
    """Apply what a definition's ``subscriptions`` gained and lost; those added since stay."""
    set_topics(broker, queue, _followed(queue, old, new))


def _followed(queue: Queue, old: QueueDefinition | None, new: QueueDefinition) -> set[str]:
    """The topics of a queue that gets this definition."""
    before, after = set(() if old is None else old.subscriptions), set(new.subscriptions)
    return set(queue.header.topics) - (before - after) | (after - before)
