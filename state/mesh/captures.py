"""Which topics queues of the home capture, and what this broker reads of them for others (Q2, S5).

A queue takes plain records of the topics that it has subscribed to where a queue of its VPN
captures the topic, whatever broker that is on. Which topics these are stands in the directory, and
every broker has all of it; so nobody is asked, and neither a move nor a removal changes anything.

Nothing is said of a record: the subscriber's broker reads such a topic by itself, as if the queue
captured it. So all that holds of a queue that captures a topic holds of one that subscribes to it:
which of several hosts takes a record (`partitions`), who reads for a queue that has moved
(`bridges.trails`), where a broker that is removed ends and who goes on there (`last_reading`).

A topic is read from when both are there, whichever came first; where two patterns may have topics
in common, what the captured one matches. What was read is read on, and then nobody takes it.
Kafka's topics have one level, so a wildcard of several names none of them.

A broker that is alone has none of these pages: its own queues are all there are (`learn`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...definitions import is_regex
from ...protocol.carrying import Entry, QueueCaptures
from ...protocol.outputs import Capture
from ...protocol.patterns import REGEX, TOPIC, compiled, kind_of, matches
from ..bridges.bases import read_here
from ..broker import BUCKETS, Broker, bucket
from ..commands.topic_subscriptions import subscribed
from . import known_places
from .keepership import to_keeper
from .known_places import MOVING, THERE
from .topic_routes import subscriptions

if TYPE_CHECKING:
    from ..queue import Queue


# ---------------------------------------------------------------- what the directory says


def text_of(name: str, entry: Entry | None) -> str | None:
    """The topic or expression that a queue captures, as the directory says; None: there is no such
    queue, or not yet, or no longer."""
    if entry is None or not entry.hosts or entry.state not in (THERE, MOVING):
        return None
    return entry.captures or entry.target or name


def follow(broker: Broker, vpn: str, name: str, before: Entry | None, entry: Entry | None) -> None:
    """The directory says something else of a queue now."""
    old, new = text_of(name, before), text_of(name, entry)
    if old == new or vpn not in broker.header.captures:
        return
    for text, by in ((old, -1), (new, 1)):
        if text is not None and text != name:  # that one stands in the directory under its name
            key = _key(vpn, text)
            counts = dict(broker.values.read(key) or {})
            counts[text] = counts.get(text, 0) + by
            broker.values.write(key, {known: n for known, n in counts.items() if n > 0})
    if new is not None:
        for topic in _subscribed_of(broker, vpn, new):
            broker.emit(Capture(topic))


def learn(broker: Broker, vpn: str) -> bool:
    """Look at all that the directory says of a VPN, once: this broker was alone so far, or its
    state is of an earlier version; whether it knows now what queues of the home capture."""
    known = broker.header.captures
    if vpn in known or not broker.header.peers:
        return vpn in known
    known.append(vpn)
    for name, entry in known_places.entries_of(broker, vpn).items():
        follow(broker, vpn, name, None, entry)
    return True


def tell(broker: Broker) -> None:
    """There are other brokers: say to the keeper what expressions queues here capture, where an
    earlier version wrote into the directory what it says of them."""
    for vpn in sorted(broker.header.vpns) if broker.header.peers else ():
        learn(broker, vpn)
        own = broker.values.read(f"R/{vpn}") if vpn in broker.header.regex_vpns else None
        for number, text in sorted((own or {}).items()):
            queue = None if number in broker.header.trails else broker.queue(number)
            name = "" if queue is None else queue.definition.name
            entry = known_places.find(broker, vpn, name)
            if entry is not None and entry.captures != text:
                to_keeper(broker, QueueCaptures(vpn, name, text))


def is_captured(broker: Broker, vpn: str, topic: str) -> bool:
    """Whether a queue of the home captures a topic, as the directory says."""
    if not learn(broker, vpn):
        return False
    if text_of(topic, known_places.find(broker, vpn, topic)) == topic:
        return True
    read = broker.values.read
    if topic in (read(_key(vpn, topic)) or ()):
        return True
    return any(compiled(text).fullmatch(topic) for text in read(_regexes(vpn)) or ())


def _key(vpn: str, text: str) -> str:
    return _regexes(vpn) if is_regex(text) else f"C/{vpn}/{bucket(text)}"


def _regexes(vpn: str) -> str:
    return f"C/{vpn}/r"


def _texts(broker: Broker, vpn: str) -> list[str]:
    """All that queues of a VPN capture; reads every bucket."""
    found = {
        name for name, entry in known_places.entries_of(broker, vpn).items()
        if text_of(name, entry) == name
    }  # fmt: skip
    for key in [_regexes(vpn), *(f"C/{vpn}/{number}" for number in range(BUCKETS))]:
        found.update(broker.values.read(key) or ())
    return sorted(found)


# ---------------------------------------------------------------- what is read here for it


def begin_to_read(broker: Broker, vpn: str, queue: Queue, patterns: list[str]) -> None:
    """A queue has subscribed to these topics, or its plain records are read here from now on: read
    those that queues of the home capture."""
    if not (learn(broker, vpn) and _is_read_here(broker, queue.number)):
        return
    kinds = {pattern: kind_of(pattern) for pattern in patterns}
    wide = [p for p, kind in kinds.items() if kind == REGEX or (kind != TOPIC and "/" not in p)]
    plain = (pattern for pattern, kind in kinds.items() if kind == TOPIC)
    found = {topic for topic in plain if is_captured(broker, vpn, topic)}
    for text in _texts(broker, vpn) if wide else ():
        found.update(topic for topic in (_both(p, text) for p in wide) if topic is not None)
    for topic in sorted(found):
        broker.emit(Capture(topic))


def _subscribed_of(broker: Broker, vpn: str, text: str) -> list[str]:
    """What is to be read of a captured topic or expression for subscriptions here."""
    if vpn not in broker.header.topics:
        return []
    if not is_regex(text):
        numbers = subscribed(broker, vpn, text)
        return [text] if any(_is_read_here(broker, n) for n in sorted(numbers)) else []
    found = set()
    for pattern, of_pattern in subscriptions(broker, vpn):
        topic = _both(pattern, text)
        if topic is not None and any(_is_read_here(broker, n) for n in of_pattern):
            found.add(topic)
    return sorted(found)


def _is_read_here(broker: Broker, number: int) -> bool:
    """Whether plain records are read here for a queue; for endpoints of bridges they are not."""
    header = broker.header
    queue = None if number in header.links.keys() - header.trails.keys() else broker.queue(number)
    return queue is not None and bool(read_here(broker, [queue]))


def _both(pattern: str, text: str) -> str | None:
    """What is to be read where this is subscribed to and that is captured; None: nothing is both.
    What two expressions have in common nobody knows: then all that is captured."""
    if not is_regex(text):
        return text if matches(pattern, text) else None
    kind = kind_of(pattern)
    if kind == TOPIC:
        return pattern if compiled(text).fullmatch(pattern) else None
    return text if kind == REGEX or "/" not in pattern else None
