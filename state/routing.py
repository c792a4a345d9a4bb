"""Which queues take a message: topics and the queues that capture them (Q2, Q3).

Queues that name a topic stand in buckets by topic; queues with a regular expression stand in one
list per VPN and are tried against each topic that comes by, once per step. Topics whose names begin
with a VPN's are its own: no other VPN's queue captures them, so a definition is no way there. Topic
subscriptions come on top (`topic_subscriptions`): of whatever is published to a destination, and of
plain records where a queue of the VPN captures their topic, on this broker or another
(`mesh.captures`), so that a wildcard takes nothing of another tenant's.
"""

from __future__ import annotations

from ..definitions import QueueDefinition, is_regex
from ..protocol.messages import QUEUE_ALONE
from ..protocol.outputs import Capture
from ..protocol.patterns import compiled
from ..protocol.topics import is_within
from .bridges.bases import of_base
from .bridges.endpoint import is_endpoint
from .broker import Broker, bucket
from .commands.topic_subscriptions import subscribed
from .mesh.captures import is_captured
from .mesh.known_places import find
from .mesh.topic_routes import changed_capture
from .queue import Queue


def add_route(broker: Broker, definition: QueueDefinition, number: int, reads: bool = True) -> None:
    """A queue captures its underlying topic from now on. reads: plain records are read for it
    here."""
    topic, vpn = definition.underlying_topic, definition.vpn
    changed_capture(broker, vpn, definition.name, topic)
    if reads:
        broker.emit(Capture(topic))
    if is_regex(topic):
        key = f"R/{vpn}"
        entries = dict(broker.values.read(key) or {})
        entries[number] = topic
        broker.values.write(key, entries)
        if vpn not in broker.header.regex_vpns:
            broker.header.regex_vpns.append(vpn)
        return
    key = f"r/{vpn}/{bucket(topic)}"
    entries = dict(broker.values.read(key) or {})
    entries[topic] = sorted({*entries.get(topic, []), number})
    broker.values.write(key, entries)


def drop_route(broker: Broker, definition: QueueDefinition, number: int) -> None:
    """A queue no longer captures its underlying topic."""
    topic, vpn = definition.underlying_topic, definition.vpn
    changed_capture(broker, vpn, definition.name, topic)
    if is_regex(topic):
        entries = dict(broker.values.read(f"R/{vpn}") or {})
        entries.pop(number, None)
        broker.values.write(f"R/{vpn}", entries)
        if not entries:
            broker.header.regex_vpns.remove(vpn)
        return
    key = f"r/{vpn}/{bucket(topic)}"
    entries = dict(broker.values.read(key) or {})
    numbers = [n for n in entries.pop(topic, []) if n != number]
    if numbers:
        entries[topic] = numbers
    broker.values.write(key, entries)


class Routes:
    """The queues of topics, looked up once per topic and step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._of_destination: dict[tuple[str, str], list[Queue]] = {}
        self._of_bridge: dict[tuple[str, str], list[Queue]] = {}
        self._of_record: dict[tuple[str, bool], list[tuple[str, list[Queue]]]] = {}

    def of_destination(self, vpn: str, to: str) -> list[Queue]:
        """The queues for a message addressed to a queue (Q3), to one alone (R4), or to a topic."""
        found = self._of_destination.get((vpn, to))
        if is_endpoint(to.removeprefix(QUEUE_ALONE)):
            return []  # nobody but its bridge puts anything there
        if found is None:
            if to.startswith(QUEUE_ALONE):
                alone = self._broker.find(vpn, to.removeprefix(QUEUE_ALONE))
                found = self._of_destination[vpn, to] = [] if alone is None else [alone]
                return found
            found = self._of_destination[vpn, to] = self.of_topic(vpn, self.target_of(vpn, to))
        return found

    def of_topic(self, vpn: str, topic: str) -> list[Queue]:
        """The queues that take a topic, whatever is called like it."""
        return self._queues(self._taking(vpn, topic).difference(self._broker.header.trails))

    def of_bridge(self, vpn: str, to: str) -> list[Queue]:
        """The queues for a message that a bridge brings to this broker (H1)."""
        if to.startswith(QUEUE_ALONE):
            return self.of_destination(vpn, to)
        found = self._of_bridge.get((vpn, to))
        if found is None:
            queues = self._queues(self._taking(vpn, self.target_of(vpn, to)))
            found = self._of_bridge[vpn, to] = of_base(self._broker, queues)
        return found

    def _taking(self, vpn: str, topic: str) -> set[int]:
        return {*self._capturing(vpn, topic), *subscribed(self._broker, vpn, topic)}

    def target_of(self, vpn: str, to: str) -> str:
        """The topic that a message addressed to a queue (Q3) or a topic goes to."""
        named = self._broker.find(vpn, to)
        if named is not None:
            return named.definition.default_publish_target
        there = find(self._broker, vpn, to) if self._broker.header.peers else None
        return to if there is None else there.target or to

    def of_record(self, topic: str, anyway: bool = False) -> list[tuple[str, list[Queue]]]:
        """For a record on a plain Kafka topic: per VPN, the queues here that take it (Q2): those
        that capture the topic, and where any queue of the home does, those that have subscribed to
        it. anyway: these also where none does any more."""
        found = self._of_record.get((topic, anyway))
        if found is None:
            found = []
            links, trails = self._broker.header.links, self._broker.header.trails
            for vpn in self._may_capture(topic):
                numbers = set(self._capturing(vpn, topic))
                of_topics = subscribed(self._broker, vpn, topic)
                if of_topics and (numbers or anyway or is_captured(self._broker, vpn, topic)):
                    # each broker reads such a topic by itself: bridges do not carry it (H1)
                    numbers |= of_topics.difference(links.keys() - trails.keys())
                if numbers:
                    found.append((vpn, self._queues(numbers)))
            self._of_record[topic, anyway] = found
        return found

    def _may_capture(self, topic: str) -> list[str]:
        """The VPNs whose queues may take records of a topic: all of them, but what begins with a
        VPN's name is its own, whatever the others name or match with an expression."""
        vpns = sorted(self._broker.header.vpns)
        return [vpn for vpn in vpns if is_within(topic, vpn)] or vpns

    def _capturing(self, vpn: str, topic: str) -> list[int]:
        values = self._broker.values
        numbers = list((values.read(f"r/{vpn}/{bucket(topic)}") or {}).get(topic, []))
        if vpn in self._broker.header.regex_vpns:
            patterns = values.read(f"R/{vpn}") or {}
            numbers += [n for n, text in patterns.items() if compiled(text).fullmatch(topic)]
        return numbers

    def _queues(self, numbers: set[int]) -> list[Queue]:
        queues = [self._broker.queue(n) for n in sorted(numbers)]
        return [q for q in queues if q is not None]
