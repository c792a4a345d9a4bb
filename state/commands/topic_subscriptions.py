"""Topic subscriptions of queues, added and removed at run time (Q2, S1, S7).

Besides its underlying topic, a queue takes messages that are published to its topic subscriptions
(`protocol/patterns.py` describes the patterns). A message keeps the matches that it was stored
with, so removing a subscription removes no message.
"""

from __future__ import annotations

from ...definitions import QueueDefinition
from ...protocol.commands import SubscribeTopic, UnsubscribeTopic
from ...protocol.patterns import kind_of
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..rules.routing import change_topics, has_topic, set_topics

TOPICS_MAX = 10_000  # of one queue


def subscribe_topic(broker: Broker, queue: Queue, command: SubscribeTopic) -> bool:
    """Add a topic subscription; answers whether it is new."""
    kind_of(command.topic)
    present = queue.header.topics
    if has_topic(present, command.topic):
        return False
    check_room(queue.definition.name, len(present), [command.topic])
    change_topics(broker, queue, [], [command.topic])
    broker.queue_event(queue, "topic_subscribed", topic=command.topic)
    return True


def unsubscribe_topic(broker: Broker, queue: Queue, command: UnsubscribeTopic) -> None:
    """Remove a topic subscription. Stored messages are still delivered (S7)."""
    check_subscribed(queue.definition.name, queue.header.topics, command.topic)
    change_topics(broker, queue, [command.topic], [])
    broker.queue_event(queue, "topic_unsubscribed", topic=command.topic)


def check_subscribed(name: str, present: list[str], topic: str) -> None:
    """Raise ValueError if a queue with these topics does not subscribe to this one."""
    if not has_topic(present, topic):
        there = ", ".join(map(repr, present[:20])) or "none"
        raise ValueError(
            f"topic: {topic[:200]!r} – queue {name!r} does not subscribe to it; it has: {there}"
        )


def check_room(name: str, present: int, new: list[str]) -> None:
    """Raise ValueError if a queue with ``present`` topics cannot have these as well."""
    if new and present + len(new) > TOPICS_MAX:
        raise ValueError(
            f"topic: {new[0]!r} – queue {name!r} has {present} topic subscriptions; at most "
            f"{TOPICS_MAX} are allowed"
        )


def check_definition(queue: Queue, new: QueueDefinition) -> None:
    """Raise ValueError if `follow_definition` would fail."""
    present = set(queue.header.topics)
    after = _followed(queue, queue.definition, new)
    check_room(new.name, len(present & after), sorted(after - present))


def follow_definition(
    broker: Broker, queue: Queue, old: QueueDefinition | None, new: QueueDefinition
) -> None:
    """Apply the changes of a definition's ``subscriptions``. Subscriptions added at run time
    stay."""
    set_topics(broker, queue, _followed(queue, old, new))


def _followed(queue: Queue, old: QueueDefinition | None, new: QueueDefinition) -> set[str]:
    """The topics of a queue under its new definition."""
    before, after = set(() if old is None else old.subscriptions), set(new.subscriptions)
    return set(queue.header.topics) - (before - after) | (after - before)
