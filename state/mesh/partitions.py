"""Which host takes a record of a captured topic for a distributed queue (Q2, Q5).

All hosts read the whole topic, each at its own pace, and each partition is taken by one of them:
`hosts[partition % len(hosts)]`. When a broker is added the hosts are others, and so are the takers.
Every host hears of it at a moment of its own, and a broker that is new reads from the beginning. So
a partition is handed over from whoever took it so far, the giver, to the new taker:

- The giver, when it hears of the change, takes nothing more of the partition: each record that it
  reads from then on it *passes* to the new taker, which enters it.
- The new taker enters what is passed, and nothing that it reads itself, until it reads a record
  behind all that was passed so far. That one it takes itself, and all behind it; it tells the giver
  its offset, and of what is passed it drops what is not before it.
- The giver, when it hears the offset, passes what is before it, and ignores the rest.

What the giver read before the change it has entered. What is before the offset comes by passing,
since the giver reads on from where it was; what is not before it the new taker reads, since it told
the offset as it read it. So each record is taken once, however far apart the two read, and whoever
dies when: what is known here is in the state, and the channel says everything once and in order.
Nobody waits, and nothing is kept but a row of numbers for each partition that was given away.

A broker that is removed cannot pass on what it has not read, for it goes for good. So it ends at an
offset, and who stays begins there, in its place in the list of hosts (`heirs`): a change of hosts
of its own, in which nobody else's partitions change hands (`last_reading`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.carrying import Entry
from ...protocol.messages import Records
from ...protocol.sharing import PassRecord, TakeFrom
from ..bridges.bases import read_here
from ..bridges.resuming import is_taken, keep
from ..isolation import Refusals
from .saying import say
from .unread import drop, has_ended, put_aside

if TYPE_CHECKING:
    from ..broker import Broker
    from ..phases.incoming import Incoming
    from ..queue import Queue

TAKES, PASSES, IGNORES = range(3)
THERE = "there"
HOSTS_MAX = 256  # in the list of a queue that lost some


class Share(msgspec.Struct, array_like=True):
    """What one host does with one partition. edition: of the hosts, that it knows of."""

    does: int
    edition: int = 0
    to: int = -1  # PASSES: the broker to which
    until: int = -1  # PASSES: what is before this; -1: all
    turn: int = 0  # how often it was given away here
    passed: int = -1  # offset of the last record that was passed here
    giver: int = -1  # who passed it, and at which turn of its own
    giver_turn: int = 0
    bounds: dict[int, list[int]] = {}  # by giver: [turn, offset from which its records are dropped]
    gap: list[int] = []  # [from, to): what a broker took that was removed


# ---------------------------------------------------------------- hosts


def begin(queue: Queue, hosts: list[int]) -> None:
    """A queue is new here; these host it."""
    if queue.definition.type != "LocalQueue":
        queue.header.shares = [list(hosts)]


def follow(broker: Broker, queue: Queue | None, before: Entry | None, entry: Entry) -> None:
    """The directory says who hosts a queue now; before: what it said."""
    if queue is None or queue.definition.type == "LocalQueue":
        return
    if entry.state != THERE or not entry.hosts:
        return
    header = queue.header
    header.shares = header.shares or [list((before or entry).hosts)]
    gone = {*header.without, *header.shares[-1]} - {*entry.hosts}
    if not {*header.without} <= gone:  # who was to be removed stays, and is given what it waits for
        queue.wanted = True
    header.without = sorted(gone)
    if broker.header.number in entry.hosts and header.leaving:  # it was to be removed, and stays
        header.leaving, queue.wanted = [], True
    known = {*header.shares[-1]}
    if header.next_hosts not in ([], entry.hosts) and not known <= {*entry.hosts}:
        _inherit(broker, queue)  # that one is gone, and there are new ones
        known = {*header.shares[-1]}
    if header.next_hosts:
        broker.values.write(last_key(queue), None)
    header.next_hosts = []
    if not known <= {*entry.hosts}:
        header.next_hosts = list(entry.hosts)
    elif known != {*entry.hosts}:
        header.shares = [*header.shares, list(entry.hosts)]


def less(broker: Broker) -> Iterator[Queue]:
    """The queues of which a host is being removed, and whose records are shared out."""
    for vpn in sorted(broker.header.vpns):
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            if queue is not None and queue.header.next_hosts and queue.definition.max_spool_usage:
                yield queue


def heirs(hosts: list[int], stay: list[int]) -> list[int]:
    """A list of hosts in which those that stay have taken the places of one that goes, by turns;
    what was another's stays so."""
    times = len(stay) if len(hosts) * len(stay) <= HOSTS_MAX else 1
    turns = cycle(stay)
    return [host if host in stay else next(turns) for host in hosts * times]


def settle(broker: Broker) -> None:
    """It is gone: who stays goes on where it ended."""
    for vpn in sorted(broker.header.vpns):
        for name in broker.queue_names(vpn):
            queue = broker.find(vpn, name)
            if queue is not None and queue.header.next_hosts:
                _inherit(broker, queue)
                queue.wanted = True  # no barrier waits for that one any more


def _inherit(broker: Broker, queue: Queue) -> None:
    """One host is gone, and has said where it ended."""
    header, own = queue.header, broker.header.number
    hosts = heirs(header.shares[-1], header.next_hosts)
    header.shares, header.next_hosts = [*header.shares, hosts], []
    _, claims, ended = broker.values.read(last_key(queue)) or (0, [], {})
    broker.values.write(last_key(queue), None)
    for topic, places in ended.items():
        for partition, offset in places.items():
            if _taker(hosts, partition) == own:
                row = row_of(broker, queue, topic, partition)
                if offset >= 0:
                    row.gap = [row.until if row.does == PASSES else 0, offset]
                    row.does = TAKES
                _keep(broker, queue, topic, partition, row)
    header.left = {**header.left, len(header.shares) - 1: claims}


def forget(broker: Broker, queue: Queue) -> None:
    """The queue is gone."""
    drop(broker, queue)
    if len(queue.header.shares) > 1:
        broker.values.write(_key(queue), None)
    if queue.header.next_hosts or queue.definition.type == "LocalQueue":
        broker.values.write(last_key(queue), None)
    keep(broker, queue, {})


# ---------------------------------------------------------------- records


def takes(broker: Broker, queue: Queue, record: Incoming) -> bool:
    """Whether a record that this broker reads enters the queue here; if it is another's by now,
    which waits for it, it is passed on."""
    from .hosting import all_hosts

    if queue.definition.type == "LocalQueue":
        if is_aside := _follows_while_leaving(broker, queue):
            put_aside(broker, queue, record)
        return not (is_aside or is_taken(broker, queue, record))
    if not queue.definition.max_spool_usage:  # every host has its own last one
        if is_aside := _has_ended(broker, queue):
            put_aside(broker, queue, record)
        return not is_aside
    if not queue.header.shares:  # it is older than these
        queue.header.shares = [all_hosts(broker, queue)]
    if _is_undecided(broker, queue, record):
        put_aside(broker, queue, record)
        return False
    return is_mine(broker, queue, record)


def _is_undecided(broker: Broker, queue: Queue, record: Incoming) -> bool:
    """Whether it depends on a host that is being removed what becomes of a record, or it comes
    behind such ones that are not done yet."""
    header, own = queue.header, broker.header.number
    if not header.next_hosts:
        return bool(header.unread)
    leaves = own not in header.next_hosts
    if leaves and not _has_ended(broker, queue):
        return False
    row = row_of(broker, queue, record.topic, record.partition)
    if row.does == TAKES:
        return leaves
    if row.does == PASSES and (row.until < 0 or record.offset < row.until):
        return leaves or row.to not in header.next_hosts
    hosts = header.shares[-1]
    return _taker(hosts if leaves else heirs(hosts, header.next_hosts), record.partition) == own


def _follows_while_leaving(broker: Broker, queue: Queue) -> bool:
    """Whether it is the trail of a queue that was made here, and this broker, which is being
    removed, has ended reading: what comes behind that the queue's own broker has, or will read."""
    if queue.number not in broker.header.trails:
        return False
    return bool(queue.header.unread) or has_ended(broker)


def _has_ended(broker: Broker, queue: Queue) -> bool:
    """Whether this broker is removed and takes nothing more, as long as it is not said that it
    stays."""
    header, parting = queue.header, broker.header.parting
    return bool(header.unread) or (
        bool(header.next_hosts) and broker.header.number not in header.next_hosts
        and parting is not None and parting.ended
    )  # fmt: skip


def is_mine(broker: Broker, queue: Queue, record: Incoming) -> bool:
    """As `takes`, of what can be decided: by the hosts that there are until one is gone."""
    if queue.definition.type == "LocalQueue":
        return bool(read_here(broker, [queue])) and not is_taken(broker, queue, record)
    queue.header.plain = True
    shares, own = queue.header.shares, broker.header.number
    if not queue.definition.max_spool_usage:
        return True
    if len(shares) == 1:
        return _taker(shares[0], record.partition) == own
    row = row_of(broker, queue, record.topic, record.partition)
    if row.gap and row.gap[0] <= record.offset < row.gap[1]:
        return False
    if row.does == PASSES:
        if row.until < 0 or record.offset < row.until:
            if row.to == own:
                return True
            _pass(broker, queue, row, record)
            return False
        row.does = IGNORES
    if row.does == IGNORES:
        mine = _taker(shares[-1], record.partition) == own
        if not mine or row.passed < 0 or record.offset <= row.passed:
            return False
        _take_over(broker, queue, row, record)
    return True


def _taker(hosts: list[int], partition: int) -> int:
    return hosts[partition % len(hosts)]


def _pass(broker: Broker, queue: Queue, row: Share, record: Incoming) -> None:
    d = queue.definition
    say(
        broker, row.to,
        PassRecord(
            d.vpn, d.name, record.topic, record.partition, record.offset, record.timestamp,
            record.key, record.value, record.meta, record.headers, row.turn,
        ),
    )  # fmt: skip
    _keep(broker, queue, record.topic, record.partition, row)


def _take_over(broker: Broker, queue: Queue, row: Share, record: Incoming) -> None:
    """From this record on the partition is taken here."""
    d = queue.definition
    row.does, row.passed = TAKES, -1
    row.bounds[row.giver] = [row.giver_turn, record.offset]
    say(
        broker, row.giver,
        TakeFrom(
            d.vpn, d.name, record.topic, record.partition, record.offset, row.giver_turn
        ),
    )  # fmt: skip
    _keep(broker, queue, record.topic, record.partition, row)


def hear_record(broker: Broker, sender: int, said: PassRecord) -> None:
    """A record that another broker read, of a partition that it gave away."""
    from ..phases.admission import admit

    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        return
    row = row_of(broker, queue, said.topic, said.partition)
    turn, offset = row.bounds.get(sender, (-1, 0))
    if turn == said.turn and said.offset >= offset:
        return  # it is read here
    row.passed, row.giver, row.giver_turn = said.offset, sender, said.turn
    _keep(broker, queue, said.topic, said.partition, row)
    record = Records(
        [said.topic], [said.partition], [said.offset], [said.timestamp], [said.key], [said.value],
        [said.meta], [said.headers],
    )  # fmt: skip
    at = broker.at
    admit(broker, record, Refusals(), (said.vpn, said.queue))
    broker.at = at


def hear_taken(broker: Broker, sender: int, said: TakeFrom) -> None:
    """The new taker reads the partition itself, from an offset on."""
    queue = broker.find(said.vpn, said.queue)
    if queue is None:
        return
    row = row_of(broker, queue, said.topic, said.partition)
    if row.does == PASSES and (row.to, row.turn) == (sender, said.turn):
        row.until = said.offset
        _keep(broker, queue, said.topic, said.partition, row)


# ---------------------------------------------------------------- what is known


def _key(queue: Queue) -> str:
    return f"S/{queue.number}"


def last_key(queue: Queue) -> str:
    """Of the page with what was said last by who is being removed: the round, its claims, and by
    topic and partition the offset."""
    return f"X/{queue.number}"


def last_said(broker: Broker, queue: Queue) -> dict[str, dict[int, int]]:
    """Where who was removed has ended, by topic and partition; it is known once."""
    page = broker.values.read(last_key(queue))
    broker.values.write(last_key(queue), None)
    return page[2] if page else {}


def row_of(broker: Broker, queue: Queue, topic: str, partition: int) -> Share:
    """What this host does with a partition, by all that was said of hosts so far."""
    shares, own = queue.header.shares, broker.header.number
    page: dict[str, dict[int, Any]] = broker.values.read(_key(queue)) or {}
    raw = page.get(topic, {}).get(partition)
    first = TAKES if _taker(shares[0], partition) == own else IGNORES
    row = Share(first) if raw is None else msgspec.convert(raw, Share)
    for edition in range(row.edition + 1, len(shares)):
        row.edition = edition
        taker = _taker(shares[edition], partition)
        if row.does == TAKES and taker != own:
            row.does, row.to, row.until = PASSES, taker, -1
            row.turn += 1
        elif row.does == PASSES and row.to not in shares[edition]:  # who is removed
            row.to = taker
            if taker == own and row.until < 0:  # which has never taken it
                row.does = TAKES
        elif row.does == IGNORES and taker == own and edition in queue.header.left:
            row.does = TAKES if is_claimed(queue.header.left[edition], partition) else IGNORES
    return row


def claims_of(broker: Broker, queue: Queue) -> list[list[list[int]]]:
    """Which partitions are this host's as long as nobody reads any of them: those that were its own
    from the first, and those that it inherited so. Each claim is a list of [host, *hosts], and is
    on the partitions that each of these lists gives to that host."""
    own, shares = broker.header.number, queue.header.shares
    claims = [[[own, *shares[0]]]]
    for edition, inherited in queue.header.left.items():
        claims += [[*claim, [own, *shares[edition]]] for claim in inherited]
    return claims


def is_claimed(claims: list[list[list[int]]], partition: int) -> bool:
    """Whether one of these claims is on a partition."""
    return any(all(_taker(hosts, partition) == host for host, *hosts in one) for one in claims)


def _keep(broker: Broker, queue: Queue, topic: str, partition: int, row: Share) -> None:
    page = dict(broker.values.read(_key(queue)) or {})
    page[topic] = {**page.get(topic, {}), partition: msgspec.to_builtins(row)}
    broker.values.write(_key(queue), page)
