"""Which queues take a message: topics, and the queues that capture or subscribe to them (Q2, Q3).

A queue captures its underlying topic, a topic or a regular expression. Topics whose names begin
with a VPN's are its own: no other VPN's queue captures them, so a definition is no way there. Topic
subscriptions come on top: of whatever is published to a destination, and of plain records where a
queue of the VPN captures their topic, so that a wildcard takes nothing of another tenant's.

What was found for a topic is remembered until a definition or a subscription changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Any

from ...definitions import QueueDefinition, is_regex
from ...protocol.messages import QUEUE_ALONE
from ...protocol.outputs import Capture
from ...protocol.patterns import REGEX, TOPIC, compiled, kind_of, wildcard_matches
from ...protocol.topics import is_within
from ..queue.broker import Broker
from ..queue.queue import Queue

FOUND_MAX = 10_000  # topics that are remembered
_TABLE = ""  # no VPN has this name


class Patterns:
    """Numbers of queues by pattern: topics by name, wildcards by their first level, the rest tried
    one by one."""

    def __init__(self) -> None:
        self.topics: dict[str, set[int]] = {}
        self.wildcards: dict[str, dict[str, set[int]]] = {}  # "": those without a first level
        self.regexes: dict[str, set[int]] = {}

    def _page(self, kind: str, pattern: str) -> dict[str, set[int]]:
        if kind == TOPIC:
            return self.topics
        if kind == REGEX:
            return self.regexes
        first = pattern.partition("/")[0]
        return self.wildcards.setdefault("" if first.endswith("*") or first == ">" else first, {})

    def add(self, kind: str, pattern: str, number: int) -> None:
        self._page(kind, pattern).setdefault(pattern, set()).add(number)

    def drop(self, kind: str, pattern: str, number: int) -> None:
        page = self._page(kind, pattern)
        numbers = page.get(pattern, set())
        numbers.discard(number)
        if not numbers:
            page.pop(pattern, None)

    def find(self, topic: str) -> set[int]:
        """The queues of which a pattern matches a topic."""
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


class _OfVpn:
    """What the queues of a VPN take."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.captured, self.subscribed = Patterns(), Patterns()
        for queue in queues:
            topic = queue.definition.underlying_topic
            self.captured.add(kind_of_captured(topic), topic, queue.number)
            for pattern in queue.header.topics:
                self.subscribed.add(kind_of(pattern), pattern, queue.number)


def kind_of_captured(topic: str) -> str:
    return REGEX if is_regex(topic) else TOPIC


def _of_vpn(broker: Broker, vpn: str) -> _OfVpn:
    known: _OfVpn | None = broker.routes.get((_TABLE, vpn))
    if known is None:
        queues = (queue for (name, _), queue in broker.names.items() if name == vpn)
        known = broker.routes[_TABLE, vpn] = _OfVpn(queues)
    return known


# ---------------------------------------------------------------- changes


def add_route(broker: Broker, definition: QueueDefinition, number: int) -> None:
    """A queue captures its underlying topic from now on."""
    topic = definition.underlying_topic
    broker.emit(Capture(topic))
    known: _OfVpn | None = broker.routes.get((_TABLE, definition.vpn))
    if known is not None:
        known.captured.add(kind_of_captured(topic), topic, number)
    forget_found(broker)


def drop_route(broker: Broker, definition: QueueDefinition, number: int) -> None:
    """A queue no longer captures its underlying topic."""
    topic = definition.underlying_topic
    known: _OfVpn | None = broker.routes.get((_TABLE, definition.vpn))
    if known is not None:
        known.captured.drop(kind_of_captured(topic), topic, number)
    forget_found(broker)


def has_topic(topics: Sequence[str], topic: str) -> bool:
    """Whether it is among these, which are sorted; there may be ten thousand."""
    at = bisect_left(topics, topic)
    return at < len(topics) and topics[at] == topic


def add_topic(broker: Broker, queue: Queue, topic: str) -> None:
    """A queue subscribes to one more topic; what it has subscribed to already costs nothing."""
    topics = queue.header.topics
    if has_topic(topics, topic):
        return
    insort(topics, topic)
    broker.touch(queue)
    known: _OfVpn | None = broker.routes.get((_TABLE, broker.vpn_of(queue)))
    if known is not None:
        known.subscribed.add(kind_of(topic), topic, queue.number)
    forget_found(broker)


def drop_topic(broker: Broker, queue: Queue, topic: str) -> None:
    """A queue subscribes to one topic less."""
    topics = queue.header.topics
    if not has_topic(topics, topic):
        return
    del topics[bisect_left(topics, topic)]
    broker.touch(queue)
    known: _OfVpn | None = broker.routes.get((_TABLE, broker.vpn_of(queue)))
    if known is not None:
        known.subscribed.drop(kind_of(topic), topic, queue.number)
    forget_found(broker)


def set_topics(broker: Broker, queue: Queue, topics: Iterable[str]) -> None:
    """A queue has subscribed to these topics now."""
    before, after = set(queue.header.topics), set(topics)
    if before == after:
        return
    queue.header.topics = sorted(after)
    broker.touch(queue)
    known: _OfVpn | None = broker.routes.get((_TABLE, broker.vpn_of(queue)))
    if known is not None:
        for pattern in sorted(before - after):
            known.subscribed.drop(kind_of(pattern), pattern, queue.number)
        for pattern in sorted(after - before):
            known.subscribed.add(kind_of(pattern), pattern, queue.number)
    forget_found(broker)


def forget_found(broker: Broker) -> None:
    """What was found for topics may be another now."""
    for key in [key for key in broker.routes if key[0] != _TABLE]:
        del broker.routes[key]


# ---------------------------------------------------------------- looking


def queues_of_destination(broker: Broker, vpn: str, to: str) -> list[Queue]:
    """The queues for a message addressed to a queue (Q3), to one alone (R4), or to a topic."""
    found: list[Queue] | None = broker.routes.get((vpn, to))
    if found is not None:
        return found
    if to.startswith(QUEUE_ALONE):
        alone = broker.find(vpn, to.removeprefix(QUEUE_ALONE))
        found = [] if alone is None or alone.header.stands_for else [alone]
    else:
        named = broker.find(vpn, to)
        topic = (
            _topic_of(broker, vpn, to) if named is None else named.definition.default_publish_target
        )
        of_vpn = _of_vpn(broker, vpn)
        found = _queues(broker, of_vpn.captured.find(topic) | of_vpn.subscribed.find(topic))
    if broker.mesh is not None:
        found = broker.mesh.with_others(vpn, to, found)
    _remember(broker, (vpn, to), found)
    return found


def _topic_of(broker: Broker, vpn: str, to: str) -> str:
    return to if broker.mesh is None else broker.mesh.target_of(vpn, to)


def queues_of_record(broker: Broker, topic: str) -> list[tuple[str, list[Queue]]]:
    """For a record on a plain Kafka topic: per VPN, the queues that take it (Q2): those that
    capture the topic, and where one does, those that have subscribed to it."""
    vpns = broker.header.vpns
    key = (f"/{len(vpns)}", topic)  # one more VPN may own the topic
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
    """Whether a queue captures a plain Kafka topic, and has not only subscribed to it."""
    return queue.number in _of_vpn(broker, vpn).captured.find(topic)


def _remember(broker: Broker, key: tuple[str, str], found: Any) -> None:
    if len(broker.routes) >= FOUND_MAX:
        forget_found(broker)
    broker.routes[key] = found


def _queues(broker: Broker, numbers: set[int]) -> list[Queue]:
    queues = [broker.queue(number) for number in sorted(numbers)]
    return [queue for queue in queues if queue is not None]
