"""A broker is removed: it hands over what it knows, and nothing said to it or by it is lost.

    keeper                    who is removed              each other broker, the keeper too
      │ Part ────────────────────▶ │ ◀── Part ─────────────────▶ │
      │                            │ ◀──────────── ReadTo, Aware │ it grants nothing more to it
      │                            │ LastRead ─────────────────▶ │ it goes on behind these offsets
      │             its loop reads nothing of clients any more (`CloseBroker`)
      │                            │ no message is here          │
      │                            │ Quiet ────────────────────▶ │ nothing asked of it is open
      │                            │ ◀──────────────────── Farewell
      │                            │ nothing is undecided here   │
      │ ◀───────────────── Bequest │ Left ─────────────────────▶ │
      │ ◀───────────────────────────────────────────── HeardLast │
      │ done: its query may end    │

Local queues go first, as `move-queue` moves them: who is asked to begin names some, and where each
is to go (`placement.moves_from`); whoever asks has them moved, and asks again. Nothing is placed
there from the first answer on. The removal begins when the directory has no local queue there.
What it has of distributed queues it gives away first (`emptying`), and before that it ends reading
captured topics, which it alone goes on with when it is closed (`last_reading`). The channels
keep their order, so who hears `Part` knows the directory as it is, and who hears `Quiet` knows that
no pattern leads there. Then nobody has anything more to ask of it.

Its partitions stay, since producers and clients may know no others: the first broker that stays
reads on where it ended, also those that it read for others. It goes on with what the broker knew of
its producers, and answers them under the broker's number: so a sequence that was stored there is
not stored again, and no client need notice. Its own dealings with the same producers stand beside
that (`producers.home_of`).

Where the keeper itself is to go, it hands the directory over first (`keepership`), and is then
removed as any other; who asked it is told whom to ask from then on.

Until its query has ended nothing of this binds anybody: a `Peers` from the engine, which comes with
each start, forgets a removal, and the next one is another round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol import commands as c
from ...protocol.carrying import Entry
from ...protocol.errors import ConfigError, LakequeueError
from ...protocol.farewells import Aware, Bequest, Farewell, HeardLast, Left, Part, Quiet, Stays
from ..bridges.bridge_keeper import bridges_at
from ..bridges.trails import idle
from . import known_places
from .carried_out import note
from .dead_ways import close_all, waits_for
from .emptying import captures, is_empty, why_it_stays
from .keepership import check_keeper, hand_over
from .last_reading import end_reading, say_read
from .peer import Parting
from .peers import first_beside
from .placement import LOCAL, moves_from
from .saying import say, say_to_all

if TYPE_CHECKING:
    from ..broker import Broker

NAMES_SHOWN = 5
HISTORIES = 1_000  # in a step
MOVES = 100  # of local queues, in an answer

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.decode


# ---------------------------------------------------------------- the keeper


def remove(broker: Broker, vpn: str, command: c.RemoveBroker) -> dict[str, Any]:
    """Begin to remove a broker, or say how far that is. Raises what stands in its way, and nothing
    has changed then."""
    header, name = broker.header, command.broker
    if header.number != header.keeper and header.peers:
        return {"keeper": header.keeper}
    if header.yet_to_know:
        return _later("the directory changes hands: try again")
    if command.round:
        return _how_far(broker, command)
    names = known_places.names_of(broker)
    number = names.get(name)
    if number is None:
        raise ConfigError(
            f"broker: {name!r} – is none of this home, whose brokers are {', '.join(names)}"
        )
    if not header.peers:
        raise LakequeueError(f"broker {name!r}: cannot be removed, for it is the home's only one")
    to = _where_to(names, name, command.to)
    shared = _check_empty(broker, number, name, captures(broker, command.topics))
    if number == header.number:
        return _hand_over(broker)
    if _has_local(broker, number) or header.tickets_open:
        return _moves(broker, number, to)
    for of_vpn, queue, entry in shared:  # each hears this before it hears of the removal
        hosts = [host for host in entry.hosts if host != number]
        note(broker, of_vpn, queue, msgspec.structs.replace(entry, hosts=hosts))
    header.partings += 1
    header.parting = Parting(number, header.partings, told=True)
    say_to_all(broker, Part(header.partings, number))
    say_read(broker, number, header.partings)
    say(broker, number, Aware(header.partings))
    return {"round": header.partings, "done": False, "waits_for": []}


def _where_to(names: dict[str, int], name: str, to: str) -> int | None:
    """The broker that is to have all local queues; None: each its own. Raises ConfigError."""
    if to and (to == name or to not in names):
        others = ", ".join(other for other in names if other != name)
        raise ConfigError(f"to: {to!r} – allowed are the brokers that stay: {others}")
    return names[to] if to else None


def _has_local(broker: Broker, number: int) -> bool:
    return any(
        number in entry.hosts and entry.type == LOCAL
        for vpn in sorted(broker.header.vpns)
        for entry in known_places.entries_of(broker, vpn).values()
    )


def _moves(broker: Broker, number: int, to: int | None) -> dict[str, Any]:
    """Nothing comes to the broker any more, and these queues are to go; or what is waited for."""
    header = broker.header
    header.parting = Parting(number, 0, begins=True)
    names = {n: name for name, n in known_places.names_of(broker).items()}
    found = moves_from(broker, number, to, MOVES)
    moves = [(vpn, queue, names[there]) for vpn, queue, there in found]
    return _later("" if found else _not_done(broker), moves)


def _later(why: str, moves: Sequence[tuple[str, str, str]] = ()) -> dict[str, Any]:
    return {"round": 0, "done": False, "waits_for": [], "moves": list(moves), "why": why}


def _not_done(broker: Broker) -> str:
    return (
        f"{broker.header.tickets_open} definitions, deletions or moves of queues are not done yet: "
        "try again when they are"
    )


def _hand_over(broker: Broker) -> dict[str, Any]:
    """Another broker is to keep the directory, and is asked from then on."""
    header, parting = broker.header, broker.header.parting
    if header.tickets_open:
        return _later(_not_done(broker))
    if parting is not None and not parting.begins:
        return _later(f"broker {header.peers[parting.number].name!r} is being removed")
    header.parting = None
    hand_over(broker, first_beside(broker, header.number))
    return {"keeper": header.keeper}


def _how_far(broker: Broker, command: c.RemoveBroker) -> dict[str, Any]:
    parting, peers = broker.header.parting, broker.header.peers
    if parting is None or parting.round != command.round:
        name = command.broker
        raise LakequeueError(f"broker {name!r}: this removal was begun again, or given up")
    if parting.left:
        everyone = (broker.header.number, *peers)
        silent = [n for n in everyone if n not in {parting.number, *parting.heard}]
    else:
        silent = [parting.number]
    names = {n: name for name, n in known_places.names_of(broker).items()}
    done = parting.left and not silent
    return {"round": parting.round, "done": done, "waits_for": [names[n] for n in silent]}


def _check_empty(
    broker: Broker, number: int, name: str, captured: set[int]
) -> list[tuple[str, str, Entry]]:
    """Nothing that the keeper knows of holds a broker, but for local queues that move, or
    LakequeueError is raised; gives the distributed queues that it hosts. captured: numbers of
    queues whose topic is there."""
    header = broker.header
    shared: list[tuple[str, str, Entry]] = []
    read: list[str] = []
    for vpn in sorted(header.vpns):
        for queue, entry in known_places.entries_of(broker, vpn).items():
            if number in entry.hosts and entry.type != LOCAL:
                shared.append((vpn, queue, entry))
            elif entry.reads and _made_at(entry) == number and not header.notes_reads:
                read.append(f"{queue!r} of VPN {vpn!r}")
    for vpn, queue, entry in shared:
        why = why_it_stays(broker, vpn, queue, entry, number, captured)
        if why is not None:
            raise LakequeueError(
                f"broker {name!r}: is a host of queue {queue!r} of VPN {vpn!r}, which {why}: "
                "delete it, or let the broker stay"
            )
    if read:
        raise LakequeueError(
            f"broker {name!r}: reads plain Kafka records for {_some(read)}, made there, and an "
            "earlier version did not note how far it read them: delete that, or let the broker stay"
        )
    bridges = bridges_at(broker, name)
    if bridges:
        raise LakequeueError(
            f"broker {name!r}: is an end of {_some(bridges, 'bridge')}: delete that first"
        )
    return shared


def _made_at(entry: Entry) -> int:
    return entry.hosts[0] if entry.base < 0 and entry.hosts else entry.base


def _some(names: list[str], what: str = "queue") -> str:
    more = len(names) - NAMES_SHOWN
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{what}{'s' if more > -NAMES_SHOWN + 1 else ''} {shown}" + (
        f" and {more} more" if more > 0 else ""
    )


# ---------------------------------------------------------------- what is heard


def _of_round(broker: Broker, number: int, round_: int) -> Parting | None:
    """The removal that this is about; None: it is an earlier one, or was given up."""
    header = broker.header
    known = header.parting
    may_be_new = header.number != header.keeper and round_ > header.partings
    if may_be_new and (known is None or known.round < round_):
        known = header.parting = Parting(number, round_)
    return known if known is not None and known.round == round_ else None


def hear_part(broker: Broker, sender: int, said: Part) -> None:
    """A broker is to be removed, be it this one."""
    check_keeper(broker, sender, said)
    parting = _of_round(broker, said.broker, said.round)
    if parting is not None:
        parting.told = True
        if said.broker != broker.header.number:
            say_read(broker, said.broker, said.round)
            say(broker, said.broker, Aware(said.round))


def hear_stays(broker: Broker, sender: int, said: Stays) -> None:
    """The broker stays: what others still say of its removal comes too late."""
    header = broker.header
    header.partings = max(header.partings, said.round)
    if header.parting is not None and header.parting.round == said.round:
        header.parting = None


def hear_aware(broker: Broker, sender: int, said: Aware) -> None:
    """A broker grants nothing more here."""
    parting = _of_round(broker, broker.header.number, said.round)
    if parting is not None:
        parting.aware = sorted({*parting.aware, sender})


def hear_quiet(broker: Broker, sender: int, said: Quiet) -> None:
    """Who is removed has no queue."""
    parting = _of_round(broker, sender, said.round)
    if parting is not None:
        parting.quiet = True


def hear_farewell(broker: Broker, sender: int, said: Farewell) -> None:
    """A broker has nothing more to say to this one."""
    parting = _of_round(broker, broker.header.number, said.round)
    if parting is not None:
        parting.heard = sorted({*parting.heard, sender})


def hear_bequest(broker: Broker, sender: int, said: Bequest) -> None:
    """What a broker that is removed knew of its producers."""
    for vpn, name, history in zip(said.vpns, said.names, said.histories, strict=True):
        known = _unpack(history)
        home = vpn if "@" in vpn else f"{vpn}@{sender}"
        broker.values.write(f"P/{home}/{name}", known)
        broker.calendar.set(f"p{home}/{name}", known[4])


def hear_left(broker: Broker, sender: int, said: Left) -> None:
    """The last words of who is removed; who reads its partitions on has all that it was to
    have."""
    parting = _of_round(broker, sender, said.round)
    if parting is None:
        return
    parting.left, header = True, broker.header
    if first_beside(broker, sender) == header.number:
        header.heirs |= {**said.heirs, sender: header.peers[sender].name}
    if header.number != header.keeper:
        say(broker, header.keeper, HeardLast(said.round))
        return
    parting.heard = sorted({*parting.heard, header.number})


def hear_heard_last(broker: Broker, sender: int, said: HeardLast) -> None:
    """A broker has heard them; at the keeper."""
    parting = broker.header.parting
    if parting is not None and parting.round == said.round:
        parting.heard = sorted({*parting.heard, sender})


# ---------------------------------------------------------------- in each step of a removal


def close(broker: Broker, vpn: str, command: c.CloseBroker) -> None:
    """The engine: from here on this broker hears nothing of clients."""
    parting = _of_round(broker, broker.header.number, command.round)
    if parting is not None:
        parting.closed = True


def take_leave(broker: Broker) -> None:
    """Say what can be said by now."""
    parting = broker.header.parting
    if parting is None or not parting.told:
        return
    header = broker.header
    if parting.number != header.number:
        peer = header.peers.get(parting.number)
        waits = peer is not None and (peer.undecided or waits_for(broker, parting.number))
        if peer is not None and parting.quiet and not (parting.said or waits):
            say(broker, parting.number, Farewell(parting.round))
            parting.said = True
    elif not parting.quiet:
        trails = idle(broker)
        close_all(broker)
        aware = not set(header.peers) - set(parting.aware)
        if aware and not parting.ended:
            parting.ended = end_reading(broker, parting.round)
        nothing = sum(header.queues.values()) == len(trails) and (parting.ended or not trails)
        may_begin = parting.closed and parting.ended
        if header.links.keys() <= trails and (nothing or (may_begin and is_empty(broker))):
            say_to_all(broker, Quiet(parting.round))
            parting.quiet = True
    elif parting.closed and not parting.left and _is_idle(broker, parting):
        _bequeath(broker, parting)


def _is_idle(broker: Broker, parting: Parting) -> bool:
    """Whether nobody waits for this broker, and it waits for nobody."""
    header = broker.header
    asked = header.undecided.rows or header.undecided.kept or header.pending
    unsaid = header.held_first < header.held_next  # receipts that wait for the tables
    return not (asked or unsaid or set(header.peers) - set(parting.heard))


def _bequeath(broker: Broker, parting: Parting) -> None:
    """Tell who reads on what is known of producers; and when that is all, everybody that it is."""
    known = (name for name in broker.calendar.overview() if name[0] == "p")
    names = [name for name in known if name > parting.cursor]
    some = names[:HISTORIES]
    if some:
        places = [name[1:].partition("/") for name in some]
        histories = [_pack(broker.values.read(f"P/{name[1:]}")) for name in some]
        vpns, producers = [vpn for vpn, _, _ in places], [name for _, _, name in places]
        heir = first_beside(broker, broker.header.number)
        say(broker, heir, Bequest(parting.round, vpns, producers, histories))
        parting.cursor = some[-1]
    if len(some) < len(names):
        broker.more_to_do = True
        return
    say_to_all(broker, Left(parting.round, dict(broker.header.heirs)))
    parting.left = True
