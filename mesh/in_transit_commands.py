"""Commands that mean messages on their way to another broker (R6, L8, L13).

Such a message is of nobody. What is asked of it goes behind it at once, and is carried out by the
other broker as soon as it has stored it; or here, should it be refused there.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..protocol import commands as c
from ..protocol.ids import format_ranges
from ..protocol.mesh_messages import Forward
from ..state.commands.intake import carry_out
from ..state.queue.broker import Broker
from ..state.queue.queue import Queue
from .channel import say
from .facts import MeshFacts

_TAKE_AWAY = (c.Ack, c.Purge, c.Move)


def keep(broker: Broker, facts: MeshFacts, queue: Queue, command: Any, ids: list[int]) -> int:
    """A command means these messages too; how many of them no other one has taken away."""
    known = facts.later.setdefault(queue.number, {})
    meant = [number for number in ids if not _is_taken(known.get(number, ()))]
    changes: dict[str, Any] = {"reply": None, "where": None, "ids": format_ranges(meant)}
    if isinstance(command, c.Ack):
        changes["quiet"] = True
    command = msgspec.structs.replace(command, **changes)
    text = c.encode_command(command)
    holders: dict[int, list[int]] = {}
    for number in meant:
        known.setdefault(number, []).append(text)
        holders.setdefault(queue.live[number].holder, []).append(number)
    name = queue.header.stands_for or queue.definition.name
    for one in queue.header.subscriptions:
        if one.number in holders and one.broker is not None:
            own = format_ranges(holders[one.number])
            there = msgspec.structs.replace(command, queue=name, ids=own)
            said = Forward(broker.vpn_of(queue), c.encode_command(there))
            say(broker, facts, one.broker, said)
    return len(meant)


def _is_taken(texts: list[bytes] | tuple[()]) -> bool:
    return any(isinstance(c.decode_command(text), _TAKE_AWAY) for text in texts)


def refused(broker: Broker, facts: MeshFacts, queue: Queue, ids: list[int]) -> None:
    """These messages are here again: so is what was asked of them."""
    for text, numbers in forget(facts, queue, ids).items():
        command: Any = c.decode_command(text)
        own = msgspec.structs.replace(command, ids=format_ranges(numbers))
        carry_out(broker, broker.vpn_of(queue), own, None)


def forget(facts: MeshFacts, queue: Queue, ids: list[int]) -> dict[bytes, list[int]]:
    """The commands that meant these messages, in their order; they are kept no longer. Where
    another broker has the messages now, it carries them out."""
    known = facts.later.get(queue.number)
    meant: dict[bytes, list[int]] = {}
    if known is None:
        return meant
    for number in ids:
        for text in known.pop(number, ()):
            meant.setdefault(text, []).append(number)
    if not known:
        del facts.later[queue.number]
    return meant
