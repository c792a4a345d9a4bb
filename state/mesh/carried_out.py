"""What the keeper decides, the hosts of a queue carry out; and then the directory says it (Q5).

A definition, a deletion or a move of which other brokers have a part stands in a page at the
keeper, a ticket, until they have said that it is done. With the last one the directory is as it is
to be, and the client is answered; where one refuses, what was done is undone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...protocol import commands as c
from ...protocol.carrying import Carried, Carry, Entries, Entry
from ...protocol.errors import LakequeueError
from ...protocol.outputs import Reply
from ..broker import Broker
from ..commands import administration
from ..commands.answers import ELSEWHERE, what_is_wrong
from . import known_places, queue_moving
from .keepership import check_keeper
from .known_places import PLACING
from .placement import LOCAL, count
from .saying import say, say_to_all, tell

OPEN_MAX = 100_000  # commands that other brokers are carrying out


class Ticket(msgspec.Struct, array_like=True):
    """What other brokers are carrying out. waits: for these; reply: who is to be told; entry: what
    the directory says when all have done it; undone: and when one refuses, None: as it was."""

    vpn: str
    name: str
    command: str
    waits: list[int]
    entry: Entry
    undone: Entry | None = None
    reply: c.ReplyTo | None = None
    done: list[int] = []
    refused: Carried | None = None


def note(broker: Broker, vpn: str, name: str, entry: Entry) -> None:
    """This stands in the directory from now on; all are told. Hosts none: it is gone."""
    known = known_places.find(broker, vpn, name)
    if known == entry or (known is None and not entry.hosts):
        return
    for one, by in ((known, -1), (entry, 1)):
        if one is not None and one.type == LOCAL and one.hosts:
            count(broker, vpn, name, one.hosts[0], one.dead, by)
    known_places.store(broker, vpn, name, entry)
    if entry.state != PLACING:
        known_places.publish(broker, vpn, name, entry)
    say_to_all(broker, Entries(vpn, [name], [entry]))


# ---------------------------------------------------------------- at the keeper


def have_carried(broker: Broker, ticket: Ticket, command: c.Command) -> Any:
    """Have other brokers carry a command out; the answer comes when they have."""
    number = open_ticket(broker, ticket)
    plain = c.encode_command(msgspec.structs.replace(command, reply=None))
    for host in ticket.waits:
        say(broker, host, Carry(number, ticket.vpn, plain))
    return ELSEWHERE


def open_ticket(broker: Broker, ticket: Ticket) -> int:
    """A number for what others carry out; raises LakequeueError where they have too much to do."""
    header = broker.header
    if header.tickets_open >= OPEN_MAX:
        raise LakequeueError(
            f"queue {ticket.name!r}: {header.tickets_open} definitions wait for other brokers, at "
            f"most {OPEN_MAX} may: try again later"
        )
    header.next_ticket += 1
    header.tickets_open += 1
    _keep(broker, header.next_ticket, ticket)
    return header.next_ticket


def _key(number: int) -> str:
    return f"Y/{number}"


def _keep(broker: Broker, number: int, ticket: Ticket | None) -> None:
    broker.values.write(_key(number), None if ticket is None else msgspec.to_builtins(ticket))


def hear_carry(broker: Broker, sender: int, said: Carry) -> None:
    """The keeper wants this done here."""
    check_keeper(broker, sender, said)
    done = Carried(said.ticket)
    try:
        command = c.decode_command(said.command)
        if isinstance(command, c.MoveQueue):  # it is done when the queue is there
            queue_moving.set_out(broker, said.vpn, said.ticket, command)
            return
        carry_out(broker, said.vpn, command)
    except (LakequeueError, ValueError) as error:
        kind, problems = what_is_wrong(error)
        done = Carried(said.ticket, str(error), kind == "ConfigError", problems)
    tell(broker, sender, done)


def carry_out(broker: Broker, vpn: str, command: c.AnyCommand) -> None:
    """Do this host's part of a command."""
    match command:
        case c.Define():
            administration.define(broker, vpn, command)
        case c.Delete():
            queue = broker.find(vpn, command.queue)
            if queue is not None:
                administration.delete(broker, vpn, queue, command)
        case _:
            raise ValueError(f"carry: {type(command).__name__} – allowed are Define and Delete")


def hear_carried(broker: Broker, sender: int, said: Carried) -> None:
    """A broker has done its part; with the last one the client is answered."""
    raw = broker.values.read(_key(said.ticket))
    if raw is None:
        raise ValueError(f"carried: {said.ticket} – nothing is open under this number")
    ticket = msgspec.convert(raw, Ticket)
    ticket.waits = [number for number in ticket.waits if number != sender]
    if said.error is not None and ticket.command == "move_queue":
        ticket.waits = []
    if said.error is None:
        ticket.done.append(sender)
    else:
        ticket.refused = ticket.refused or said
    if ticket.waits:
        _keep(broker, said.ticket, ticket)
        return
    _keep(broker, said.ticket, None)
    broker.header.tickets_open -= 1
    if ticket.refused is None:
        before = known_places.find(broker, ticket.vpn, ticket.name)
        reads = before is not None and before.reads and bool(ticket.entry.hosts)
        entry = msgspec.structs.replace(ticket.entry, reads=reads)
        if ticket.command == "move_queue" and before is not None:  # it may have been told meanwhile
            entry = msgspec.structs.replace(entry, captures=before.captures)
        note(broker, ticket.vpn, ticket.name, entry)
        _answer(broker, ticket)
        return
    if ticket.undone is not None:
        _undo(broker, ticket, ticket.undone)
    _refuse(broker, ticket, ticket.refused)


def _undo(broker: Broker, ticket: Ticket, before: Entry) -> None:
    """One of the hosts has refused. From hosts that are new the queue is taken away again."""
    note(broker, ticket.vpn, ticket.name, before)
    command = c.Delete(queue=ticket.name)
    own = broker.find(ticket.vpn, ticket.name)
    if own is not None and broker.header.number not in before.hosts:
        administration.delete(broker, ticket.vpn, own, command)
    new = sorted(set(ticket.done) - set(before.hosts))
    if new:
        again = Ticket(ticket.vpn, ticket.name, "delete", new, before)
        have_carried(broker, again, command)


def _answer(broker: Broker, ticket: Ticket) -> None:
    to = ticket.reply
    if to is not None:
        epoch = broker.header.epoch
        broker.emit(Reply(to.topic, to.partition, to.request, None, epoch=epoch))


def _refuse(broker: Broker, ticket: Ticket, why: Carried) -> None:
    broker.event(
        "command_refused", ticket.vpn, ticket.name, command=ticket.command, why=why.error or ""
    )
    to = ticket.reply
    if to is not None:
        kind = "ConfigError" if why.about_values else "LakequeueError"
        problems: Any = why.problems
        broker.emit(Reply(to.topic, to.partition, to.request, None, why.error, kind, problems))
