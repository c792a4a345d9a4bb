"""Dead messages go back to queues on other brokers (X6): the other way round than `dead_ways`.

    a broker with the dead message queue      the broker of the queue in which it died
      │ a redrive: it is on its way back        │
      │ GoBack ───────────────────────────────▶ │ its checks and expressions; stored, under its id
      │ ◀───────────────────────────── WentBack │
      │ redriven, or dead as before             │

It stays in its place in the dead message queue, *moving*, until the other end has said what became
of it, so it is at one end at least, and can be read at one at most. What that queue, its broker or
its VPN has no room for stays dead, with all that it carries. So does what comes while the queue
moves: nobody waits here, and a later redrive finds it.

A message that died in several queues goes to one broker after the other (`Going.then`). One that
has died once more in the same queue before this is known here stays for that (`Going.again`).

The command's answer waits for all of these (`redrive_tickets`), as long as a broker is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...protocol.dead_letters import GoBack, WentBack
from ..dead import died_in, names_of
from ..message import Event, apply
from ..rules.edits import GOING_BACK, back_in, dead_part, edits_part
from ..storage import NEVER
from . import ownership, queue_moving
from .columns_said import columns
from .dead_ways import place_of
from .redrive_tickets import RedriveTicket, close_if_done, load, save
from .saying import say
from .taking_back import MOVES, NO_QUEUE

if TYPE_CHECKING:
    from ..broker import Broker
    from ..commands.task import Task
    from ..queue import Queue

TRIES = 3  # brokers at which a queue is looked for


class Going(msgspec.Struct, array_like=True):
    """What a row remembers while its message is on its way back. queue: where to; then: where to
    next; expires, until: its own, meanwhile it has none; again: it has died there once more."""

    queue: str
    then: list[str]
    expires: int
    until: int
    tries: int = 1
    again: bool = False


def is_elsewhere(broker: Broker, vpn: str, name: str) -> bool:
    """Whether a queue that is not here is at another broker."""
    return bool(broker.header.peers) and place_of(broker, vpn, name) is not None


# ---------------------------------------------------------------- from the dead message queue


def send_back(broker: Broker, queue: Queue, task: Task, going: list[tuple[int, list[str]]]) -> None:
    """Messages at these places go back to these queues, all of which are elsewhere."""
    if not going:
        return
    if "ticket" not in task.done:
        broker.header.next_ticket += 1
        task.done["ticket"] = broker.header.next_ticket
    number: int = task.done["ticket"]
    known = load(broker, number)
    ticket = known or RedriveTicket(broker.vpn_of(queue), queue.definition.name, queue.number)
    _send(broker, queue, number, ticket, [(seq, names, 1) for seq, names in going])
    save(broker, number, ticket)


def _send(
    broker: Broker, queue: Queue, number: int, ticket: RedriveTicket,
    going: list[tuple[int, list[str], int]], better: int = -1,
) -> None:  # fmt: skip
    """Say these, each with where it is to go and how often it was tried, in their order."""
    parting = broker.header.parting
    leaves = parting is not None and not parting.begins
    leaver = parting.number if parting is not None and leaves else -1  # may hear nothing more
    by_place: dict[tuple[int, str], list[tuple[int, list[str], int]]] = {}
    for seq, names, tries in going:
        to = better if better >= 0 else place_of(broker, ticket.vpn, names[0])
        if to is None or to == leaver or to not in broker.header.peers:
            why = NO_QUEUE if to is None else MOVES
            ticket.why[why] = ticket.why.get(why, 0) + 1
            if names[1:]:
                _send(broker, queue, number, ticket, [(seq, names[1:], 1)])
        else:
            by_place.setdefault((to, names[0]), []).append((seq, names, tries))
    for (to, name), some in by_place.items():
        _say_back(broker, queue, number, ticket, to, name, some)


def _say_back(
    broker: Broker, queue: Queue, number: int, ticket: RedriveTicket, to: int, name: str,
    going: list[tuple[int, list[str], int]],
) -> None:  # fmt: skip
    """Say these to one broker."""
    seqs = np.array([seq for seq, _, _ in going], np.int64)
    contents = broker.spool.contents(queue.gather(seqs, "id"))
    found = [content for content in contents if content is not None]
    assert len(found) == len(seqs), f"{queue.definition.name}: who sends them has read them"
    along = []
    for seq, names, tries in going:
        page, row = queue.row(seq)
        one = Going(name, names[1:], int(page.expires[row]), int(page.until[row]), tries)
        extra = page.extras[row]
        along.append(back_in(name, extra))
        page.extras[row] = {**extra, GOING_BACK: msgspec.to_builtins(one)}
    said = GoBack(
        ticket.vpn, name, **columns(broker, queue, seqs, found), dead=along,
        source=ticket.name, ticket=number,
    )  # fmt: skip
    peer = broker.header.peers[to].name
    apply(broker, queue, seqs, Event.GRANT, holder=to + 1, subscription=f"broker:{peer}")
    ticket.open += len(seqs)
    say(broker, to, said)


# ---------------------------------------------------------------- what became of them


def went_back(broker: Broker, sender: int, said: WentBack) -> None:
    """The other broker says what it took."""
    ticket = load(broker, said.ticket)
    if ticket is None:
        raise ValueError(f"went_back: {said.ticket} – nothing is open under this number")
    ticket.open -= len(said.taken) + len(said.missed) + sum(map(len, said.stayed.values()))
    if said.taken:
        ticket.queues[said.queue] = ticket.queues.get(said.queue, 0) + len(said.taken)
    for why, refs in said.stayed.items():
        ticket.why[why] = ticket.why.get(why, 0) + len(refs)
    queue = broker.queue(ticket.queue)
    if queue is not None and not queue.header.deleted:
        _settle(broker, queue, sender, ticket, said)
    close_if_done(broker, said.ticket, ticket)


def _settle(
    broker: Broker, queue: Queue, sender: int, ticket: RedriveTicket, said: WentBack
) -> None:
    """Rows whose messages have gone back to all their queues are gone; others are as before, or go
    on."""
    on: list[tuple[int, list[str], int]] = []
    again: list[tuple[int, list[str], int]] = []
    gone = _taken(broker, queue, sender, said.taken, on)
    for why, refs in said.stayed.items():
        for seq in ownership.moving_to(broker, queue, sender, refs).tolist():
            going = _returned(broker, queue, seq, why)
            on += [(seq, going.then, 1)] if going.then else []
    for seq in ownership.moving_to(broker, queue, sender, said.missed).tolist():
        going = _returned(broker, queue, seq, MOVES)
        if going.tries < TRIES:
            again.append((seq, [going.queue, *going.then], going.tries + 1))
            continue
        ticket.why[MOVES] = ticket.why.get(MOVES, 0) + 1
        on += [(seq, going.then, 1)] if going.then else []
    apply(broker, queue, np.array(gone, np.int64), Event.REDRIVE)
    if not queue.header.leaving:
        _send(broker, queue, said.ticket, ticket, sorted(again), said.to)
        _send(broker, queue, said.ticket, ticket, sorted(on))
    else:
        for _, names, _ in (*again, *on):
            ticket.why[MOVES] = ticket.why.get(MOVES, 0) + len(names)
        queue_moving.follow_all(broker, queue)


def _taken(
    broker: Broker, queue: Queue, sender: int, refs: list[int], on: list[tuple[int, list[str], int]]
) -> list[int]:
    """The places of those that are in all their queues again. on: those that go to a next one."""
    gone = []
    for seq in ownership.moving_to(broker, queue, sender, refs).tolist():
        page, row = queue.row(seq)
        extra = page.extras[row]
        going = msgspec.convert(extra[GOING_BACK], Going)
        dead = dead_part(extra)
        assert dead is not None
        left = [name for name in names_of(dead) if going.again or name != going.queue]
        if not left:
            gone.append(seq)
            continue
        page.extras[row] = {
            **died_in(dead, left), **edits_part(extra), GOING_BACK: extra[GOING_BACK],
        }  # fmt: skip
        _returned(broker, queue, seq, "dead of others too")
        on += [(seq, going.then, 1)] if going.then else []
    return gone


def _returned(broker: Broker, queue: Queue, seq: int, why: str) -> Going:
    """A message is as it was before it was sent; gives what was remembered of that."""
    page, row = queue.row(seq)
    extra = dict(page.extras[row])
    going = msgspec.convert(extra.pop(GOING_BACK), Going)
    page.extras[row], page.expires[row] = extra, going.expires
    event = Event.REFUSE if going.until == NEVER else Event.REFUSE_LATER
    apply(broker, queue, np.array([seq], np.int64), event, until=going.until, reason=why)
    return going
