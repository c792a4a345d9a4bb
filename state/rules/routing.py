"""Routing: the queues that capture a topic or subscribe to it (Q2, Q3).

A queue captures its underlying topic, a topic name or a regular expression. Topics whose names
begin with a VPN's name belong to that VPN: queues of other VPNs never capture them. Topic
subscriptions come on top. They apply to everything that is published to a destination, and to plain
records if a queue of the VPN captures their topic. So a wildcard takes no other tenant's records.

Results are cached until a definition or a subscription changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...definitions import QueueDefinition, is_regex
from ...protocol.messages import QUEUE_ALONE
from ...protocol.outputs import Capture
from ...protocol.patterns import REGEX, TOPIC, compiled, kind_of, wildcard_matches
from ...protocol.topics import is_within
from ..queue.broker import Broker
from ..queue.queue import Queue

FOUND_MAX = 10_000  # topics in the cache
_TABLE = ""  # no VPN has this name


class Patterns:
    """Numbers of queues by pattern. Topics are found by name, wildcards by their first level;
    regular expressions are tried one by one."""

    def __init__(self, kind_of: Callable[[str], str]) -> None:
        self._kind_of = kind_of
        self.topics: dict[str, set[int]] = {}
        self.wildcards: dict[str, dict[str, set[int]]] = {}  # "": the first level is a wildcard
        self.regexes: dict[str, set[int]] = {}

    def _page(self, pattern: str) -> dict[str, set[int]]:
        kind = self._kind_of(pattern)
        if kind == TOPIC:
            return self.topics
        if kind == REGEX:
            return self.regexes
        first = pattern.partition("/")[0]
        return self.wildcards.setdefault("" if first.endswith("*") or first == ">" else first, {})

    def add(self, pattern: str, number: int) -> None:
        """Add a queue's pattern."""
        self._page(pattern).setdefault(pattern, set()).add(number)

    def drop(self, pattern: str, number: int) -> None:
        """Remove a queue's pattern."""
        page = self._page(pattern)
        numbers = page.get(pattern, set())
        numbers.discard(number)
        if not numbers:
            page.pop(pattern, None)

    def find(self, topic: str) -> set[int]:
        """The queues with a pattern that matches a topic."""
        found = set(self.topics.get(topic, ()))
        if self.wildcards:
            levels = topic.split("/")
            for first in ("", levels[0]):
                for pattern, numbers in self.wildcards.get(first, {}).items():
                    if wildcard_matches(pattern.split("/"), levels):
                        found |= numbers
        for pattern, numbers in self.regexes.items():
            if compiled(pattern).fullmatch(topic):
                found |= numbers
        return found


class TopicTable:
    """The captured topics and topic subscriptions of a VPN's queues: the number of each queue, its
    definition and its subscriptions."""

    def __init__(self, queues: Iterable[tuple[int, QueueDefinition, Iterable[str]]]) -> None:
        self.captured = Patterns(lambda topic: REGEX if is_regex(topic) else TOPIC)
        self.subscribed = Patterns(kind_of)
        for number, definition, topics in queues:
            self.captured.add(definition.underlying_topic, number)
            for pattern in topics:
                self.subscribed.add(pattern, number)

    def find(self, topic: str) -> set[int]:
        """The queues that store a message published to a topic."""
        return self.captured.find(topic) | self.subscribed.find(topic)


def _of_vpn(broker: Broker, vpn: str) -> TopicTable:
    found: TopicTable | None = broker.routes.get((_TABLE, vpn))
    if found is None:
        own = [queue for (name, _), queue in broker.names.items() if name == vpn]
        queues = ((one.number, one.definition, one.header.topics) for one in own)
        found = broker.routes[_TABLE, vpn] = TopicTable(queues)
    return found


# ---------------------------------------------------------------- changes


def add_route(broker: Broker, definition: QueueDefinition, number: int) -> None:
    """Let a queue capture its underlying topic."""
    topic = definition.underlying_topic
    broker.emit(Capture(topic))
    _of_vpn(broker, definition.vpn).captured.add(topic, number)
    forget_found(broker)


def drop_route(broker: Broker, definition: QueueDefinition, number: int) -> None:
    """Let a queue no longer capture its underlying topic."""
    _of_vpn(broker, definition.vpn).captured.drop(definition.underlying_topic, number)
    forget_found(broker)


def has_topic(topics: Sequence[str], topic: str) -> bool:
    """Whether a sorted list contains a topic. It may have ten thousand entries."""
    at = bisect_left(topics, topic)
    return at < len(topics) and topics[at] == topic


def set_topics(broker: Broker, queue: Queue, topics: Iterable[str]) -> None:
    """Replace a queue's topic subscriptions."""
    before, after = set(queue.header.topics), set(topics)
    if before != after:
        change_topics(broker, queue, before - after, after - before)


def change_topics(broker: Broker, queue: Queue, gone: Iterable[str], new: Iterable[str]) -> None:
    """Remove topic subscriptions that a queue has, and add others that it lacks."""
    topics = queue.header.topics
    subscribed = _of_vpn(broker, queue.definition.vpn).subscribed
    for topic in gone:
        del topics[bisect_left(topics, topic)]
        subscribed.drop(topic, queue.number)
    for topic in new:
        insort(topics, topic)
        subscribed.add(topic, queue.number)
    broker.touch(queue)
    forget_found(broker)


def withdraw(broker: Broker, queue: Queue) -> None:
    """Let nothing find a queue any more, by its name or a topic: it is deleted, or has moved."""
    set_topics(broker, queue, [])
    broker.forget_name(queue)
    drop_route(broker, queue.definition, queue.number)
    broker.header.waiting.pop(queue.number, None)


def forget_found(broker: Broker) -> None:
    """Clear the cache of results."""
    for key in [key for key in broker.routes if key[0] != _TABLE]:
        del broker.routes[key]


# ---------------------------------------------------------------- looking


def queues_of_destination(broker: Broker, vpn: str, to: str) -> list[Queue]:
    """The queues for a message sent to a queue (Q3), to exactly one queue (R4), or to a topic."""
    found: list[Queue] | None = broker.routes.get((vpn, to))
    if found is not None:
        return found
    if to.startswith(QUEUE_ALONE):
        alone, topic = broker.find(vpn, to.removeprefix(QUEUE_ALONE)), ""
        found = [] if alone is None or alone.header.stands_for else [alone]
    else:
        named = broker.find(vpn, to)
        topic = (
            broker.mesh.target_of(vpn, to)
            if named is None
            else named.definition.default_publish_target
        )
        found = _queues(broker, _of_vpn(broker, vpn).find(topic))
    found = broker.mesh.with_others(vpn, to, topic, found)
    _remember(broker, (vpn, to), found)
    return found


def queues_of_record(broker: Broker, topic: str) -> list[tuple[str, list[Queue]]]:
    """For a record of a plain Kafka topic, per VPN: the queues that capture the topic and, if there
    is one, those that subscribe to it (Q2)."""
    vpns = broker.header.vpns
    key = (f"/{len(vpns)}", topic)  # a new VPN may own the topic
    found: list[tuple[str, list[Queue]]] | None = broker.routes.get(key)
    if found is not None:
        return found
    found = []
    for vpn in [vpn for vpn in sorted(vpns) if is_within(topic, vpn)] or sorted(vpns):
        of_vpn = _of_vpn(broker, vpn)
        numbers = of_vpn.captured.find(topic)
        if numbers:
            found.append((vpn, _queues(broker, numbers | of_vpn.subscribed.find(topic))))
    _remember(broker, key, found)
    return found


def captures(broker: Broker, vpn: str, queue: Queue, topic: str) -> bool:
    """Whether a queue captures a plain Kafka topic, instead of only subscribing to it."""
    return queue.number in _of_vpn(broker, vpn).captured.find(topic)


def _remember(broker: Broker, key: tuple[str, str], found: Any) -> None:
    if len(broker.routes) >= FOUND_MAX:
        forget_found(broker)
    broker.routes[key] = found


def _queues(broker: Broker, numbers: set[int]) -> list[Queue]:
    return [queue for number in sorted(numbers) if (queue := broker.queue(number)) is not None]
