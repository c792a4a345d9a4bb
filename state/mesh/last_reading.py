"""Where a broker that is removed ends reading captured topics, and who stays begins (Q2, Q5).

    each other broker                         who is removed
      │ it puts aside what may become its own     │ it reads on, and takes what is its own
      │ ReadTo, Aware ──────────────────────────▶ │
      │                                           │ it is as far as each of these
      │ ◀──────────────────────────────── LastRead│ from here on it takes nothing
      │            ── it is gone, or it stays ──
      │ what was put aside is taken up            │ (where it stays, here too)

Who is removed reads a partition to an offset *P* of its own choice, and takes all before it. Who
goes on with the partition must take all from P on, and it may be behind P or past it. So from when
it knows of the removal, each host puts aside what it reads of partitions that it may inherit
(`unread`); and who is removed reads on until it is as far in each partition as any other host was
at that moment. Then P is not before what was put aside: of that, and of what is read later,
everything from P on is taken, and what is before it is passed over (`Share.gap`). Nothing is read
twice, and nobody need know how far another has come since.

Who is removed may not take anything behind P, but if it stays it has to: so it puts that aside
itself. Where the removal is given up, all take up what they have, as if they had read it only then:
the hosts are what they were.

Of a partition that is not named nobody had read anything. If it was the removed broker's from the
first (`claims_of`), it is its heir's from the first record on; if it was to come to it from another
host, that one gives it to the heir (`partitions.row_of`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.farewells import LastRead, ReadTo
from ..bridges.resuming import points
from ..routing import Routes
from . import positions
from .known_places import find
from .partitions import PASSES, TAKES, claims_of, is_claimed, last_key, less, row_of
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

NEEDED = "J"  # the page with how far others had read, at who is removed: [round, positions]


# ---------------------------------------------------------------- who stays


def say_read(broker: Broker, to: int, round_: int) -> None:
    """Tell who is removed how far captured topics were read here."""
    rows = [
        (topic, *place)
        for topic, places in positions.all_read(broker).items()
        for place in sorted(places.items())
    ]
    if rows:
        say(broker, to, ReadTo(round_, *map(list, zip(*rows, strict=True))))


def hear_last_read(broker: Broker, sender: int, said: LastRead) -> None:
    """Who is removed takes nothing behind these offsets."""
    queue, parting = broker.find(said.vpn, said.queue), broker.header.parting
    if queue is None or parting is None or (parting.number, parting.round) != (sender, said.round):
        return
    page = broker.values.read(last_key(queue))
    if page is None or page[0] != said.round:
        page = [said.round, said.claims, {}]
    ended = {topic: dict(places) for topic, places in page[2].items()}
    for topic, at, offset in zip(said.topics, said.partitions, said.offsets, strict=True):
        ended.setdefault(topic, {})[at] = offset
    broker.values.write(last_key(queue), [said.round, said.claims, ended])


# ---------------------------------------------------------------- who is removed


def hear_read_to(broker: Broker, sender: int, said: ReadTo) -> None:
    """Another broker says how far it has read."""
    round_, known = broker.values.read(NEEDED) or (0, {})
    needed = (
        {topic: dict(places) for topic, places in known.items()} if round_ == said.round else {}
    )
    for topic, at, offset in zip(said.topics, said.partitions, said.offsets, strict=True):
        places = needed.setdefault(topic, {})
        places[at] = max(places.get(at, 0), offset)
    broker.values.write(NEEDED, [said.round, needed])


def end_reading(broker: Broker, round_: int) -> bool:
    """Whether this broker has come as far as the others were; then it says where it ends."""
    known: tuple[int, positions.Positions] = broker.values.read(NEEDED) or (0, {})
    known_round, needed = known
    topics = _taken(broker)
    if known_round == round_:
        for topic in topics:
            here = positions.read_to(broker, topic)
            if any(here.get(at, 0) < offset for at, offset in needed.get(topic, {}).items()):
                return False
    ends = [(queue, _ends_of(broker, queue, topics)) for queue in less(broker)]
    if any(rows is None for _, rows in ends):
        return False
    for queue, rows in ends:
        d, columns = queue.definition, [list(column) for column in zip(*rows or (), strict=True)]
        claims = claims_of(broker, queue)
        said = LastRead(round_, d.vpn, d.name, claims, *(columns or ([], [], [])))
        for host in queue.header.next_hosts:
            say(broker, host, said)
    for number, name in broker.header.trails.items():
        _say_of_trail(broker, round_, number, name, topics)
    broker.values.write(NEEDED, None)
    return True


def _say_of_trail(
    broker: Broker, round_: int, number: int, name: str, topics: dict[str, set[int]]
) -> None:
    """Tell the broker of a queue that was made here, and has moved, where its trail ends."""
    trail = broker.queue(number)
    entry = None if trail is None else find(broker, broker.vpn_of(trail), name)
    if trail is None or entry is None or not entry.hosts:
        return
    ends = {topic: dict(places) for topic, places in points(broker, trail).items()}
    for topic in (topic for topic, numbers in topics.items() if number in numbers):
        places = ends.setdefault(topic, {})
        for partition, offset in positions.read_to(broker, topic).items():
            places[partition] = max(places.get(partition, 0), offset)
    rows = [(topic, *place) for topic in sorted(ends) for place in sorted(ends[topic].items())]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    say(broker, entry.hosts[0], LastRead(round_, broker.vpn_of(trail), name, [], *columns))


def _taken(broker: Broker) -> dict[str, set[int]]:
    """The topics of which something was read here or by others, with the numbers of the queues that
    take their records."""
    routes = Routes(broker)
    _, needed = broker.values.read(NEEDED) or (0, {})
    read = positions.all_read(broker)
    found = {}
    for topic in sorted({*read, *needed}):  # what was read is read on, whoever takes it
        of_record = routes.of_record(topic, anyway=topic in read)
        found[topic] = {queue.number for _, queues in of_record for queue in queues}
    return {topic: numbers for topic, numbers in found.items() if numbers}


def _ends_of(
    broker: Broker, queue: Queue, topics: dict[str, set[int]]
) -> list[tuple[str, int, int]] | None:
    """Where the queue's partitions end, those that this broker has, and (-1) those that it had from
    the first: topic, partition, offset; None: it has to read on, to what it was told before."""
    rows = []
    claims = claims_of(broker, queue)
    for topic, numbers in topics.items():
        if queue.number not in numbers:
            continue
        for partition, offset in sorted(positions.read_to(broker, topic).items()):
            row = row_of(broker, queue, topic, partition)
            until = row.gap[1] if row.gap else 0
            if offset < max(until, row.until if row.does == PASSES else 0):
                return None
            if row.does == TAKES or (row.does == PASSES and row.until < 0):
                rows.append((topic, partition, offset))
            elif is_claimed(claims, partition):
                rows.append((topic, partition, -1))
    return rows
