"""What a broker knows of the others: facts only, packed into one page at a mark."""

from __future__ import annotations

from typing import Any

import msgspec

from ..definitions import QueueDefinition
from ..protocol.mesh_messages import Room
from ..state.storage.store import Store


class Peer(msgspec.Struct):
    """Another broker. said, heard: numbers of the last records, to it and from it; lost_words:
    [first, last] number from it of steps that are lost (R3); again: up to this number all that was
    said and is under way has been said again; is_behind: a word from it was lost, and what is under
    way from it has yet to be said again."""

    name: str
    said: int = 0
    heard: int = 0
    lost_words: list[list[int]] = []
    again: int = 0
    is_behind: bool = False


class Entry(msgspec.Struct):
    """A queue of the home. hosts: the numbers of its brokers, ascending; move: a number that counts
    up, of its last move, or of its making; moves_to: a broker where it is to go; made: when, ms;
    ingress, egress: what is not shut down (H5); bridge: of a bridge's end, what it is, as on the
    wire (H1); born: the directory's edition at which it was made, by which brokers tell it from
    earlier queues of its name."""

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


class BegunMove(msgspec.Struct):
    """A move that the keeper has begun; reply: who is told in the end."""

    number: int
    to: int
    reply: tuple[str, int, str] | None


class OutLane(msgspec.Struct):
    """A stand-in: here messages wait for one queue of another broker, in order.

    attempt: counts up with each refusal, so that what was under way then is known as such; why,
    since: it is refused.
    """

    vpn: str
    queue: str
    broker: int
    attempt: int = 1
    why: str = ""
    since: int = 0


class Credit(msgspec.Struct, array_like=True):
    """Of one filter at one other host: how many messages may come in all, and have come."""

    granted: int = 0
    used: int = 0


class WaitingAnswer(msgspec.Struct):
    """A definition whose sender is answered when all brokers know it. reply: topic, partition,
    request."""

    edition: int
    missing: list[int]
    reply: tuple[str, int, str] | None
    result: bool | int | None = None
    error: str = ""


class MeshFacts(msgspec.Struct):
    """All of it. brokers: the home's, by name; entries: VPN → name → queue; lanes: by the number of
    the stand-in; retries: of those that were refused, when each is tried again; refusing:
    "broker/vpn/queue" → the last attempt that was refused here; asked: credits at other hosts,
    lent: those of others here, both by `credit_key`; filters: "vpn/queue" → those for which others
    were asked last; edition: of the directory as it is known here; untold:
    VPNs and queues whose hosts changed at rest, which clients have yet to hear; rejoined: the
    broker was made again, and what it last said may be lost (`rejoining`); removed: numbers of
    brokers that left the home, whose words may still come again."""

    brokers: dict[str, int] = {}
    groups: dict[str, str] = {}
    peers: dict[int, Peer] = {}
    entries: dict[str, dict[str, Entry]] = {}
    lanes: dict[int, OutLane] = {}
    retries: dict[int, int] = {}
    refusing: dict[str, int] = {}
    asked: dict[str, Credit] = {}
    lent: dict[str, Credit] = {}
    filters: dict[str, list[str | None]] = {}
    edition: int = 0
    waiting: list[WaitingAnswer] = []
    untold: list[tuple[str, str]] = []
    rejoined: bool = False
    removed: list[int] = []
    early_rooms: list[tuple[int, Room]] = []  # of a queue not known yet, see `credit.hear_room`
    credits_changed: bool = False  # since the last mark: asked, lent, filters, refusing
    # Of queues that move, by "vpn/queue" (`moves`):
    moves: dict[str, BegunMove] = {}  # at the keeper
    coming: dict[str, tuple[int, int, int]] = {}  # who expects it from here, the move, its room
    leaving: dict[str, int] = {}  # where it goes from here
    # By queue and message: commands that mean what is on its way (`in_transit_commands`).
    later: dict[int, dict[int, list[bytes]]] = {}
    arriving: dict[str, int] = {}  # the number of the queue that is made of it here
    went: dict[str, tuple[int, int]] = {}  # the move that is over, and where it is: see `hosts`


class Credits(msgspec.Struct):
    """What changes with nearly every message that is granted: a page of its own."""

    refusing: dict[str, int]
    asked: dict[str, Credit]
    lent: dict[str, Credit]
    filters: dict[str, list[str | None]]


PAGE, DIRECTORY, CREDITS = "mesh", "mesh/directory", "mesh/credits"

_encode = msgspec.msgpack.encode
_facts = msgspec.msgpack.Decoder(MeshFacts)
_entries = msgspec.msgpack.Decoder(dict[str, dict[str, Entry]])
_credits = msgspec.msgpack.Decoder(Credits)


def load_facts(store: Store) -> MeshFacts:
    """What was known at the last mark; nothing where there was none."""
    data, entries, credits = (store.get(page) for page in (PAGE, DIRECTORY, CREDITS))
    facts = MeshFacts() if data is None else _facts.decode(data)
    if entries is not None:
        facts.entries = _entries.decode(entries)
    if credits is not None:
        known = _credits.decode(credits)
        facts.refusing, facts.asked = known.refusing, known.asked
        facts.lent, facts.filters = known.lent, known.filters
    return facts


def mark_facts(store: Store, facts: MeshFacts, written: int) -> int:
    """Write what changed. written: the directory's edition at the last mark; gives that of now."""
    if facts.edition != written:
        store.put(DIRECTORY, _encode(facts.entries))
    if facts.credits_changed:
        credits = Credits(facts.refusing, facts.asked, facts.lent, facts.filters)
        store.put(CREDITS, _encode(credits))
        facts.credits_changed = False
    small = msgspec.structs.replace(
        facts, entries={}, refusing={}, asked={}, lent={}, filters={}
    )  # fmt: skip
    store.put(PAGE, _encode(small))
    return facts.edition


def peers_of(store: Store) -> dict[int, Peer] | None:
    """The other brokers, as of the last mark; None: this one has never met another."""
    data = store.get(PAGE)
    return None if data is None else _facts.decode(data).peers


def put_peers(store: Store, peers: dict[int, Peer]) -> None:
    """Other numbers from here on: of a broker that is made again, see `rejoining`."""
    data = store.get(PAGE)
    assert data is not None
    facts = msgspec.structs.replace(_facts.decode(data), peers=peers, rejoined=True)
    store.put(PAGE, _encode(facts))


def credit_key(broker: int, vpn: str, queue: str, text: str | None) -> str:
    """Names a credit: of which broker, for which queue, and of which filter."""
    return f"{broker}/{vpn}/{queue}/{'' if text is None else '=' + text}"


def is_of_queue(key: str, vpn: str, queue: str) -> bool:
    """Whether a credit, or a refusal ("broker/vpn/queue"), is of this queue: names may hold a /."""
    rest = key.partition("/")[2].removeprefix(f"{vpn}/{queue}")
    return rest in ("", "/") or rest.startswith("/=")


def key_of(vpn: str, queue: str) -> str:
    """Names a queue."""
    return f"{vpn}/{queue}"


def entry_of(facts: MeshFacts, vpn: str, queue: str) -> Entry | None:
    """What is known of a queue."""
    return facts.entries.get(vpn, {}).get(queue)


def born_of(facts: MeshFacts, vpn: str, queue: str) -> int:
    """At which edition a queue was made; 0: there is none, or it is older than the home's mesh."""
    entry = entry_of(facts, vpn, queue)
    return 0 if entry is None else entry.born


def keeper_of(facts: MeshFacts) -> int:
    """The number of the broker that keeps the directory."""
    return min(facts.brokers.values())


def hosts_of(facts: MeshFacts, vpn: str, queue: str, entry: Entry) -> list[int]:
    """Where a queue is. Of one that has just moved both brokers know more than the directory, until
    the keeper has heard of it."""
    if entry.moves_to is not None:
        move, to = facts.went.get(key_of(vpn, queue), (0, 0))
        if move == entry.move:
            return [to]
    return entry.hosts
