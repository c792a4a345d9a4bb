"""What a redrive has done so far, of which other brokers have a part (X6): its ticket, a page.

The command's answer waits until they have said what became of all that was sent back. See
`going_back`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.commands import Redrive, ReplyTo
from ...protocol.outputs import Reply

if TYPE_CHECKING:
    from ..broker import Broker
    from ..commands.task import Task

Counts = dict[str, int]


class RedriveTicket(msgspec.Struct, array_like=True):
    """A redrive of which other brokers have a part. queues, why: its answer so far; open: how many
    messages are on their way; ended: all that is here is done."""

    vpn: str
    name: str
    queue: int
    queues: Counts = {}
    why: Counts = {}
    open: int = 0
    ended: bool = False
    reply: ReplyTo | None = None


def load(broker: Broker, number: int) -> RedriveTicket | None:
    """The ticket of this number; None: it is closed."""
    raw = broker.values.read(f"B/{number}")
    return None if raw is None else msgspec.convert(raw, RedriveTicket)


def save(broker: Broker, number: int, ticket: RedriveTicket | None) -> None:
    """Keep it; None: it is closed."""
    broker.values.write(f"B/{number}", None if ticket is None else msgspec.to_builtins(ticket))


def finish(broker: Broker, task: Task, command: Redrive) -> bool:
    """All that is here is done; whether the answer is for later, since other brokers have a part of
    it. What was done here is in ``task.done``."""
    number = task.done.get("ticket")
    ticket = load(broker, number) if number is not None else None
    if number is None or ticket is None:
        return False
    for total, more in ((ticket.queues, task.done["queues"]), (ticket.why, task.done["why"])):
        for name, n in more.items():
            total[name] = total.get(name, 0) + n
    ticket.ended, ticket.reply = True, command.reply
    close_if_done(broker, number, ticket)
    return True


def close_if_done(broker: Broker, number: int, ticket: RedriveTicket) -> None:
    """Answer when nothing is on its way any more."""
    if ticket.open or not ticket.ended:
        save(broker, number, ticket)
        return
    save(broker, number, None)
    result = answer_of(ticket.queues, ticket.why)
    tell_event(broker, ticket.vpn, ticket.name, result)
    to = ticket.reply
    if to is not None:
        epoch = broker.header.epoch
        broker.emit(Reply(to.topic, to.partition, to.request, result, epoch=epoch))


def answer_of(queues: Counts, why: Counts) -> dict[str, Any]:
    """What a redrive answers."""
    return {
        "moved": sum(queues.values()), "stayed": sum(why.values()), "queues": dict(queues),
        "why": dict(why),
    }  # fmt: skip


def tell_event(broker: Broker, vpn: str, name: str, result: dict[str, Any]) -> None:
    """The event of a redrive that is done."""
    broker.event(
        "redriven", vpn, name, moved=result["moved"], stayed=result["stayed"], why=result["why"]
    )


def abandon(broker: Broker, task: Task) -> None:
    """A command that is not done will not be."""
    number = task.done.get("ticket")
    ticket = load(broker, number) if number is not None else None
    if number is not None and ticket is not None:
        ticket.ended = True
        close_if_done(broker, number, ticket)
