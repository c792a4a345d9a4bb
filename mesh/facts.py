"""A broker's facts about the others, as a mark writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..definitions import QueueDefinition
from ..state.queue.broker import Broker
from ..state.storage.row import NEVER
from ..state.storage.store import Store

ReplyAddress = tuple[str, int, str]  # topic, partition, request


class Sent(msgspec.Struct, array_like=True):
    """A record that is not confirmed yet. body: its message, without the queue's messages; ids: of
    these."""

    number: int
    kind: str
    body: bytes
    ids: list[int] = []


class Peer(msgspec.Struct):
    """Another broker, or this one itself (`channel`). said, heard: the numbers of the last records
    to it and from it; unconfirmed: records to it, in order; told: what it knows of `heard`; missed:
    the number of the last missing record that it was asked for, or will be once the directory's
    change has come; repeat_from: the first record to be repeated, 0 for none; is_full: as of the
    last step, so many are unconfirmed that it gets nothing that can wait; is_stopped: the channel
    failed. Times, ms: when to confirm, when to ask what it has received."""

    name: str
    said: int = 0
    heard: int = 0
    unconfirmed: list[Sent] = []
    told: int = 0
    missed: int = 0
    repeat_from: int = 0
    is_full: bool = False
    confirm_at: int = NEVER
    probe_at: int = NEVER
    is_stopped: bool = False


class Entry(msgspec.Struct):
    """A queue of the home. hosts: the numbers of its brokers, ascending; move: the number of its
    last move, or of its creation, which grows; moves_to: the broker it is moving to; made: when it
    was created, ms; ingress, egress: False if shut down (H5); bridge: for a bridge's endpoint the
    bridge's definition, as on the wire (H1); born: the directory's edition at which it was created,
    which tells it from earlier queues of its name."""

    definition: QueueDefinition
    hosts: list[int]
    topics: list[str] = []
    move: int = 0
    moves_to: int | None = None
    made: int = 0
    ingress: bool = True
    egress: bool = True
    bridge: dict[str, Any] | None = None
    born: int = 0


class OutLane(msgspec.Struct):
    """The lane of a stand-in: messages for one queue of another broker, in order.

    attempt: grows with each refusal, to recognise records sent before it; why, since: set while the
    queue refuses.
    """

    attempt: int
    why: str = ""
    since: int = 0


class Credits(msgspec.Struct):
    """The facts that change with nearly every granted message, in a page of their own. Both are by
    VPN and queue, and by the other broker. rooms: by filter, how many more messages the other
    broker believes that consumers here can take (`credit`); refused: the last attempt of its lane
    that was refused here."""

    rooms: dict[tuple[str, str], dict[int, dict[str | None, int]]] = {}
    refused: dict[tuple[str, str], dict[int, int]] = {}


class WaitingAnswer(msgspec.Struct):
    """An answer that waits until all brokers have confirmed an edition of the directory. size: of
    the record that they get, bytes."""

    edition: int
    reply: ReplyAddress | None
    result: bool | int | None = None
    size: int = 0


class MeshFacts(msgspec.Struct):
    """All facts.

    brokers: the home's, by name; entries: VPN → name → queue; lanes: by the stand-in's number;
    retries: when each refused lane is tried again; edition: of the directory as known here;
    removed: numbers of brokers that left the home, whose records may come again; failed: records
    that failed here, by what they are about: sender, kind, body (`failures`); left_out: records
    that are not sent, since their queue failed, by its number: each with the receiver's.
    """

    brokers: dict[str, int] = {}
    groups: dict[str, str] = {}
    peers: dict[int, Peer] = {}
    entries: dict[str, dict[str, Entry]] = {}
    lanes: dict[int, OutLane] = {}
    retries: dict[int, int] = {}
    credits: Credits = msgspec.field(default_factory=Credits)
    edition: int = 0
    waiting: list[WaitingAnswer] = []
    removed: list[int] = []
    failed: dict[str, list[tuple[int, str, bytes]]] = {}
    left_out: dict[int, list[tuple[int, Sent]]] = {}
    withdrawn: list[int] = []  # the numbers of queues that are deleted in the same step, or later
    credits_changed: bool = False  # since the last mark
    directory_changed: bool = False  # the same
    # Moving queues, by "vpn/queue" (`moves`):
    moves: dict[str, ReplyAddress | None] = {}  # at the keeper: whom to answer when it is over
    leaving: dict[str, int] = {}  # the broker it is moving to from here
    arriving: dict[str, int] = {}  # the number of the queue that is being filled here

    def queues(self) -> Iterator[tuple[tuple[str, str], Entry]]:
        """The queues of the home, each with its VPN and name."""
        for vpn, entries in self.entries.items():
            for name, entry in entries.items():
                yield (vpn, name), entry

    def name_of(self, number: int) -> str:
        """The name of one of the home's brokers, this one included."""
        return next(name for name, other in self.brokers.items() if other == number)


PAGE, DIRECTORY, CREDITS = "mesh", "mesh/directory", "mesh/credits"

_encode = msgspec.msgpack.encode
_facts = msgspec.msgpack.Decoder(MeshFacts)
_entries = msgspec.msgpack.Decoder(dict[str, dict[str, Entry]])
_credits = msgspec.msgpack.Decoder(Credits)


def load_facts(store: Store) -> MeshFacts:
    """The facts of the last mark; empty without one."""
    data, entries, credits = (store.get(page) for page in (PAGE, DIRECTORY, CREDITS))
    facts = MeshFacts() if data is None else _facts.decode(data)
    if entries is not None:
        facts.entries = _entries.decode(entries)
    if credits is not None:
        facts.credits = _credits.decode(credits)
    return facts


def mark_facts(store: Store, facts: MeshFacts) -> None:
    """Write what has changed since the last mark."""
    if facts.directory_changed:
        store.put(DIRECTORY, _encode(facts.entries))
        facts.directory_changed = False
    if facts.credits_changed:
        store.put(CREDITS, _encode(facts.credits))
        facts.credits_changed = False
    small = msgspec.structs.replace(facts, entries={}, credits=Credits())
    store.put(PAGE, _encode(small))


def peers_of(store: Store) -> dict[int, Peer] | None:
    """The other brokers, as of the last mark; None if this one has never met another."""
    data = store.get(PAGE)
    return None if data is None else _facts.decode(data).peers


def put_peers(store: Store, peers: dict[int, Peer]) -> None:
    """Replace the peers of a broker that is being rebuilt (`channel`)."""
    data = store.get(PAGE)
    assert data is not None
    facts = msgspec.structs.replace(_facts.decode(data), peers=peers)
    store.put(PAGE, _encode(facts))


def key_of(vpn: str, queue: str) -> str:
    """The key of a queue."""
    return f"{vpn}/{queue}"


def entry_of(facts: MeshFacts, vpn: str, queue: str) -> Entry | None:
    """A queue's entry in the directory."""
    return facts.entries.get(vpn, {}).get(queue)


def born_of(facts: MeshFacts, vpn: str, queue: str) -> int:
    """The edition at which a queue was created; 0 if there is none, or it is older than the
    mesh."""
    entry = entry_of(facts, vpn, queue)
    return 0 if entry is None else entry.born


def hosts_now(broker: Broker, facts: MeshFacts, vpn: str, queue: str, entry: Entry) -> list[int]:
    """The hosts of a queue. Both hosts of a moving queue know that it has moved before its keeper
    does, who alone changes the directory: one has it, and the other no longer has it."""
    own, to = broker.header.number, entry.moves_to
    if to is None or own not in (to, *entry.hosts):
        return entry.hosts
    is_here = broker.find(vpn, queue) is not None
    return [to] if is_here == (own == to) else entry.hosts


def keeper_of(facts: MeshFacts) -> int:
    """The number of the broker that keeps the directory."""
    return min(facts.brokers.values())
