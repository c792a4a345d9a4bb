"""The directory: which broker has which queue, as every broker of a home knows it.

The keeper (`keeper`) alone decides what stands in it, and tells the others; each has all of it in
its state, bucket by bucket of names. So each can say where a queue is that it does not have, and
pass on what is meant for it. A broker that is alone writes it too, when a queue is defined or
deleted: one that is added later will ask.
"""

from __future__ import annotations

import msgspec

from ...protocol.carrying import Entries, Entry
from ...protocol.errors import Moved
from ...protocol.outputs import DirectoryEntry
from ..broker import BUCKETS, Broker, bucket
from ..queue import Queue
from . import partitions

THERE, PLACING, DELETING, MOVING = "there", "placing", "deleting", "moving"
LOADS = "D"  # the page that counts the local queues of each broker, at the keeper


def _key(vpn: str, name: str) -> str:
    return f"D/{vpn}/{bucket(name)}"


def find(broker: Broker, vpn: str, name: str) -> Entry | None:
    """What the directory says about a queue, or None."""
    raw = (broker.values.read(_key(vpn, name)) or {}).get(name)
    return None if raw is None else msgspec.convert(raw, Entry)


def entries_of(broker: Broker, vpn: str) -> dict[str, Entry]:
    """All of a VPN, by name; reads every bucket."""
    found: dict[str, Entry] = {}
    for number in range(BUCKETS):
        for name, raw in (broker.values.read(f"D/{vpn}/{number}") or {}).items():
            found[name] = msgspec.convert(raw, Entry)
    return dict(sorted(found.items()))


def store(broker: Broker, vpn: str, name: str, entry: Entry) -> None:
    """Note what stands in the directory about a queue; nothing where it has no hosts."""
    partitions.follow(broker, broker.find(vpn, name), find(broker, vpn, name), entry)
    _forget_gone(broker, vpn, name)
    amend(broker, vpn, name, entry)


def amend(broker: Broker, vpn: str, name: str, entry: Entry) -> None:
    """As `store`, where nothing is said of where the queue is."""
    from . import newcomers
    from .captures import follow, learn

    learn(broker, vpn)
    before = find(broker, vpn, name)
    known = dict(broker.values.read(_key(vpn, name)) or {})
    if entry.hosts:
        known[name] = msgspec.to_builtins(entry)
    elif known.pop(name, None) is not None and broker.header.trails:
        from ..bridges import trails

        trails.deleted(broker, vpn, name)
    broker.values.write(_key(vpn, name), known)
    follow(broker, vpn, name, before, entry)
    newcomers.ask(broker, vpn, name, before, entry)


def hear_entries(broker: Broker, sender: int, said: Entries) -> None:
    """The keeper says what stands in the directory now."""
    from .keepership import check_keeper

    check_keeper(broker, sender, said)
    for name, entry in zip(said.names, said.entries, strict=True):
        store(broker, said.vpn, name, entry)


def names_of(broker: Broker) -> dict[str, int]:
    """The home's brokers with their numbers, by number."""
    header = broker.header
    known = {header.number: header.name, **{n: p.name for n, p in header.peers.items()}}
    return {known[number]: number for number in sorted(known)}


def groups_of(broker: Broker) -> dict[str, str]:
    """The group of each of these that is in one."""
    header = broker.header
    known = {header.name: header.group, **{p.name: p.group for p in header.peers.values()}}
    return {name: group for name, group in known.items() if group}


def hosts_by_name(broker: Broker, entry: Entry) -> dict[str, int]:
    """An entry's hosts, by name."""
    return {name: n for name, n in names_of(broker).items() if n in entry.hosts}


def publish(broker: Broker, vpn: str, name: str, entry: Entry) -> None:
    """Write it into ``<vpn>.directory``, where clients read it."""
    hosts, header = hosts_by_name(broker, entry), broker.header
    header.entries_said += 1
    broker.emit(
        DirectoryEntry(vpn, name, hosts, entry.type, entry.state, header.epoch, header.entries_said)
    )


def moved(broker: Broker, vpn: str, name: str) -> Moved | None:
    """The error for who looks here for a queue that is elsewhere; None where it is nowhere."""
    entry = find(broker, vpn, name) if broker.header.peers else None
    if entry is None or entry.state == PLACING:
        return None
    if broker.header.number in entry.hosts:
        to = gone_to(broker, vpn, name)
        if to is None:
            return None
        entry = Entry([to])
    hosts = hosts_by_name(broker, entry)
    where = ", ".join(map(repr, hosts))
    return Moved(f"queue {name!r} of VPN {vpn!r} is on broker {where}", hosts)


def note_gone(broker: Broker, vpn: str, name: str, to: int) -> None:
    """A queue has left for this broker. The directory says so when the keeper has heard of it; who
    looks here before is sent there."""
    broker.values.write(_gone_key(vpn), {**(broker.values.read(_gone_key(vpn)) or {}), name: to})


def gone_to(broker: Broker, vpn: str, name: str) -> int | None:
    """Where a queue went that the directory still says is here; None: it says nothing wrong."""
    return went_to(broker, vpn, name) if broker.queue_number(vpn, name) is None else None


def went_to(broker: Broker, vpn: str, name: str) -> int | None:
    """As `gone_to`, also of a queue that is about to come again."""
    to: int | None = (broker.values.read(_gone_key(vpn)) or {}).get(name)
    return to if to in broker.header.peers else None


def _forget_gone(broker: Broker, vpn: str, name: str) -> None:
    gone = broker.values.read(_gone_key(vpn)) or {}
    if name in gone:
        rest = {known: to for known, to in gone.items() if known != name}
        broker.values.write(_gone_key(vpn), rest or None)


def _gone_key(vpn: str) -> str:
    return f"G/{vpn}"


def is_moving(queue: Queue) -> bool:
    """Whether it is about to leave, or has not arrived yet."""
    return bool(queue.header.leaving) or queue.header.arriving


def on_its_way(broker: Broker, vpn: str, queue: Queue) -> Moved:
    """The error for who asks something of a queue that moves: where the directory says it is, which
    is the old broker as long as it moves."""
    name = queue.definition.name
    entry = find(broker, vpn, name)
    hosts = {} if entry is None else hosts_by_name(broker, entry)
    return Moved(f"queue {name!r} of VPN {vpn!r} is moving to another broker", hosts)
