"""The keeper: one broker decides what becomes of queues (Q5, Q7, Q9, S7).

That is the home's first, until it is to be removed (`keepership`).
Definitions and deletions come to it, so a name is given once. It places a new queue (`placement`),
has the hosts carry the command out, and answers when all have: who has the answer finds the queue
in the directory. It carries out its own part first: what is refused there was done nowhere. Any
other broker passes on what clients say to it.

A broker that is alone does it all in the command's own step, and nobody is told.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from ...definitions import QueueDefinition, defined_over, is_regex, parse_definition, to_wire
from ...definitions.definition import name_of
from ...protocol import commands as c
from ...protocol.carrying import Carry, Entry, PassOn, QueueCaptures, SayDefinition
from ...protocol.errors import ConfigError, LakequeueError, Problem
from ...protocol.farewells import Stays
from ...protocol.queue_moves import Adopted, TrailReads
from ..bridges.trails import adopt
from ..broker import Broker
from ..commands import administration
from ..commands.answers import ELSEWHERE, answer, refuse
from ..commands.given_definitions import is_as_given
from ..commands.permissions import check_elsewhere, check_permission
from ..commands.turns import begin
from . import keepership, known_places
from .captures import tell as tell_captures
from .carried_out import Ticket, have_carried, note, open_ticket
from .keepership import introduce, is_asked, is_keeper, to_keeper
from .known_places import DELETING, MOVING, PLACING, THERE
from .partitions import settle
from .peers import set_peers
from .placement import (
    LOCAL,
    check_dead_messages,
    check_names,
    check_stays,
    place,
)
from .saying import say, say_to_all, tell
from .verdicts import forget_peers

# ---------------------------------------------------------------- commands


def define(broker: Broker, vpn: str, command: c.Define, of_client: bool = True) -> Any:
    """Define a queue, or define it again (Q9). of_client: a new broker is not, which is to host a
    queue as it is."""
    if not command.replace:
        whole = _over_what_is_there(broker, vpn, command)
        if whole is None:
            return ELSEWHERE
        command = whole
    if not is_keeper(broker):
        return _pass_on(broker, vpn, command)
    header = broker.header
    if not header.peers:
        changed = administration.define(broker, vpn, command)
        if changed is not None:
            note(broker, vpn, changed.name, _entry(changed, [header.number]))
        return None
    known = _known(broker, vpn, command.definition)
    given = administration.owned(broker, known, command.definition)
    command = msgspec.structs.replace(command, definition=given)
    definition = parse_definition({"vpn": vpn, **given})
    check_names(broker, definition)
    name = definition.name
    check_elsewhere(broker, name, known)
    if known is None:
        hosts = place(broker, definition)
    else:
        hosts = known.hosts
        _check_settled(name, known)
    entry = _entry(definition, hosts)
    if known is not None:
        entry = msgspec.structs.replace(entry, base=known.base, reads=known.reads)
    if known is not None and entry.whole and known.type == entry.type:
        entry.hosts[:] = place(broker, definition)  # brokers that were added may host it too
        _check_hosts(broker, definition, known, entry)
    hosts = entry.hosts
    if of_client and not is_as_given(broker, vpn, command.definition):
        check_dead_messages(broker, definition)
    if header.number in hosts:
        administration.define(broker, vpn, command)
    others = [number for number in hosts if number != header.number]
    if not others:
        note(broker, vpn, name, entry)
        return None
    if known is None:
        note(broker, vpn, name, msgspec.structs.replace(entry, state=PLACING))
    ticket = Ticket(vpn, name, "define", others, entry, known or Entry(), command.reply)
    return have_carried(broker, ticket, command)


def _over_what_is_there(broker: Broker, vpn: str, command: c.Define) -> c.Define | None:
    """A definition with what it leaves as it is (Q9). A host of the queue knows that: where there
    is none here it is asked to go on, and None is given."""
    identity = name_of(command.definition)
    queue = None if identity is None else broker.find(vpn, identity[1])
    if queue is not None:
        definition = defined_over(queue.definition, command.definition)
        return msgspec.structs.replace(command, definition=definition, replace=True)
    known = _known(broker, vpn, command.definition) if is_keeper(broker) else None
    if identity is None or known is None:
        return command
    if known.state != THERE:
        _say_unsettled(identity[1], known)
    say(broker, known.hosts[0], PassOn(vpn, c.encode_command(command), broker.speaker))
    return None


def delete(broker: Broker, vpn: str, command: c.Delete) -> Any:
    """Delete a queue wherever it is (S7)."""
    if not is_keeper(broker):
        return _pass_on(broker, vpn, command)
    name, header = command.queue, broker.header
    known = known_places.find(broker, vpn, name)
    own = broker.find(vpn, name)
    if known is None and own is None:
        raise ConfigError(f"queue: {name!r} – there is no such queue in VPN {vpn!r}")
    if own is not None and own.number in header.links:
        raise ConfigError(
            f"queue: {name!r} – is the endpoint of a bridge, and goes with its bridge"
        )
    if own is not None and own.number in header.ways:
        raise ConfigError(
            f"queue: {name!r} – is the way to a dead message queue, and goes when it is empty"
        )
    check_elsewhere(broker, name, known)
    _check_settled(name, known)
    parting = broker.header.parting
    if parting is not None and not parting.begins and known is not None and known.whole:
        check_stays(broker, parting.number, f"queue {name!r}")
    if own is not None:
        administration.delete(broker, vpn, own, command)
    others = [n for n in (known.hosts if known else ()) if n != header.number]
    if not others or known is None:
        note(broker, vpn, name, Entry())
        return None
    note(broker, vpn, name, msgspec.structs.replace(known, state=DELETING))
    ticket = Ticket(vpn, name, "delete", others, Entry(), None, command.reply)
    return have_carried(broker, ticket, command)


def move_queue(broker: Broker, vpn: str, command: c.MoveQueue) -> Any:
    """Move a local queue to another broker; the answer comes when it is there."""
    if not is_keeper(broker):
        return _pass_on(broker, vpn, command)
    name, names = command.queue, known_places.names_of(broker)
    known = known_places.find(broker, vpn, name)
    if known is None:
        raise ConfigError(f"queue: {name!r} – there is no such queue in VPN {vpn!r}")
    check_elsewhere(broker, name, known)
    if known.state != THERE:
        raise LakequeueError(f"queue {name!r}: is {known.state} now; try again when that is done")
    to = names.get(command.broker)
    if to is None:
        allowed = f"allowed are the home's brokers: {', '.join(names)}"
        raise ConfigError([Problem(f"queue {name!r}", "broker", command.broker, allowed)])
    if known.type != LOCAL:
        raise ConfigError(f"queue: {name!r} – is a {known.type}; a LocalQueue moves, no other")
    if to == known.hosts[0]:
        return None
    check_stays(broker, to, f"queue {name!r}")
    _check_base(broker, name, known)
    note(broker, vpn, name, msgspec.structs.replace(known, state=MOVING))
    made = known.hosts[0] if known.base < 0 else known.base
    there = msgspec.structs.replace(known, hosts=[to], base=-1 if made == to else made)
    ticket = Ticket(vpn, name, "move_queue", [to], there, known, command.reply)
    number = open_ticket(broker, ticket)
    plain = c.encode_command(msgspec.structs.replace(command, reply=None))
    tell(broker, known.hosts[0], Carry(number, vpn, plain))
    return ELSEWHERE


def _check_base(broker: Broker, name: str, known: Entry) -> None:
    """A queue does not move while the broker where it was made is removed, nor until its own broker
    has taken that one's place."""
    parting, header = broker.header.parting, broker.header
    leaves = parting is not None and not parting.begins and known.base == parting.number
    gone = known.base in header.removed and header.notes_reads
    if leaves or gone:
        raise LakequeueError(
            f"queue {name!r}: the broker where it was made is being removed; try again when that "
            "is done"
        )


def hear_reads(broker: Broker, sender: int, said: TrailReads) -> None:
    """A queue's plain records are read where it was made: that broker stays, also when the queue
    moves. No client is told, for where the queue is has not changed."""
    known = known_places.find(broker, said.vpn, said.queue)
    if is_asked(broker, said) and known is not None:
        entry = msgspec.structs.replace(known, reads=True)
        known_places.amend(broker, said.vpn, said.queue, entry)


def hear_adopted(broker: Broker, sender: int, said: Adopted) -> None:
    """The base of a queue is where it is, and it may move again."""
    known = known_places.find(broker, said.vpn, said.queue)
    host = sender if said.host < 0 else said.host
    if is_asked(broker, said) and known is not None and known.hosts == [host]:
        note(broker, said.vpn, said.queue, msgspec.structs.replace(known, base=-1))


def meet(broker: Broker, vpn: str, command: c.Peers) -> None:
    """The home's brokers are these. A new one is told what stands in the directory, and hosts the
    queues that all brokers host."""
    header = broker.header
    before = set(header.peers)
    set_peers(broker, vpn, command)
    parting, header.parting = header.parting, None
    gone = sorted(before - set(header.peers))
    if parting is not None and parting.left and parting.number in gone:
        header.removed.append(parting.number)
    if gone:
        forget_peers(broker, gone)
        adopt(broker, gone)
        settle(broker)
    tell_captures(broker)
    keepership.meet(broker, before)
    if broker.header.number != broker.header.keeper:
        return
    if parting is not None and parting.number in broker.header.peers:  # it is given up
        if not parting.begins:  # it comes behind `Part`, which `Peers` may not do
            say_to_all(broker, Stays(parting.round))
        _host_again(broker, parting.number)
    new = sorted(set(broker.header.peers) - before)
    for number in new:
        introduce(broker, number)
    for name in sorted(broker.header.vpns) if new else ():
        for queue, entry in known_places.entries_of(broker, name).items():
            if entry.whole and entry.state == THERE:
                found = broker.find(name, queue)
                if found is None:
                    say(broker, entry.hosts[0], SayDefinition(name, queue))
                elif place(broker, found.definition) != entry.hosts:
                    again = c.Define(definition=to_wire(found.definition))
                    define(broker, name, again, of_client=False)


def _host_again(broker: Broker, number: int) -> None:
    """A broker that was to be removed stays, and has the queues still that it hosted."""
    for vpn in sorted(broker.header.vpns):
        for name, entry in known_places.entries_of(broker, vpn).items():
            queue = broker.find(vpn, name)
            if entry.whole and number not in entry.hosts and queue is not None:
                hosts = place(broker, queue.definition)
                note(broker, vpn, name, msgspec.structs.replace(entry, hosts=hosts))


def say_definition(broker: Broker, sender: int, said: SayDefinition) -> None:
    """The keeper does not have a queue, and asks how it is defined."""
    queue = broker.find(said.vpn, said.queue)
    if queue is not None:
        _pass_on(broker, said.vpn, c.Define(definition=to_wire(queue.definition)))


def hear_captures(broker: Broker, sender: int, said: QueueCaptures) -> None:
    """What a queue captures that an earlier version wrote into the directory."""
    known = known_places.find(broker, said.vpn, said.queue)
    asked = is_asked(broker, said)
    if asked and known is not None and not known.captures:
        note(broker, said.vpn, said.queue, msgspec.structs.replace(known, captures=said.text))


def _check_hosts(broker: Broker, definition: QueueDefinition, before: Entry, entry: Entry) -> None:
    """A queue keeps the hosts that it has: they hold its messages."""
    if not set(before.hosts) <= set(entry.hosts):
        key = "group" if definition.group else "initial_owner"
        names = ", ".join(known_places.hosts_by_name(broker, before))
        allowed = f"cannot change so while the queue exists; it is hosted by {names}"
        value = ", ".join(definition.group) or definition.initial_owner
        raise ConfigError([Problem(f"queue {definition.name!r}", key, value, allowed)])


def _check_settled(name: str, known: Entry | None) -> None:
    if known is not None and known.state not in (THERE, PLACING):
        _say_unsettled(name, known)


def _say_unsettled(name: str, known: Entry) -> NoReturn:
    raise LakequeueError(f"queue {name!r}: is {known.state} now; try again when that is done")


def _known(broker: Broker, vpn: str, mapping: dict[str, Any]) -> Entry | None:
    """What the directory has of the queue that is to be defined."""
    identity = name_of(mapping)
    return None if identity is None else known_places.find(broker, vpn, identity[1])


def _entry(definition: QueueDefinition, hosts: list[int]) -> Entry:
    target, dead = definition.default_publish_target, definition.dead_message_queue or ""
    whole = definition.type != LOCAL
    captures = definition.underlying_topic if is_regex(definition.underlying_topic) else ""
    return Entry(
        list(hosts), definition.type, THERE, dead, target, whole,
        definition.owner, definition.permission, list(definition.permissions), captures=captures,
    )  # fmt: skip


# ---------------------------------------------------------------- what came to the wrong broker


def _pass_on(broker: Broker, vpn: str, command: c.Command) -> Any:
    to_keeper(broker, PassOn(vpn, c.encode_command(command), broker.speaker))
    return ELSEWHERE


def hear_pass_on(broker: Broker, sender: int, said: PassOn) -> None:
    """A client has said this to another broker: it is carried out as if it had come here. An ack
    may come before its message does: then it waits for it (L9)."""
    command = c.decode_command(said.command)
    broker.speaker = said.speaker
    try:
        check_permission(broker, said.vpn, command)
        match command:
            case c.Ack():
                queue = broker.find(said.vpn, command.queue)
                if queue is not None and not queue.header.leaving:
                    begin(broker, said.vpn, queue, command)
                return
            case c.Define():
                result = define(broker, said.vpn, command)
            case c.Delete():
                result = delete(broker, said.vpn, command)
            case c.MoveQueue():
                result = move_queue(broker, said.vpn, command)
            case _:
                raise ValueError(f"pass_on: {type(command).__name__} – is no command for it")
    except (LakequeueError, ValueError) as error:
        refuse(broker, said.vpn, command, error)
        return
    finally:
        broker.speaker = None
    answer(broker, command, result)
