"""Commands for messages that are in transit to another broker (R6, L8, L13).

Neither broker owns such a message. The command follows it at once, and the other broker carries it
out when it has stored the message. If it refuses the message, this broker carries it out.
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
    """Forward a command for these messages, and keep it; returns how many of them no earlier
    command removes."""
    waiting = facts.later.setdefault(queue.number, {})
    meant = [number for number in ids if not _is_taken(waiting.get(number, ()))]
    changes: dict[str, Any] = {"reply": None, "where": None, "ids": format_ranges(meant)}
    if isinstance(command, c.Ack):
        changes["quiet"] = True
    command = msgspec.structs.replace(command, **changes)
    text = c.encode_command(command)
    holders: dict[int, list[int]] = {}
    for number in meant:
        waiting.setdefault(number, []).append(text)
        holders.setdefault(queue.live[number].holder, []).append(number)
    name = queue.header.stands_for or queue.definition.name
    for one in queue.header.subscriptions:
        if one.number in holders and one.broker is not None:
            own = format_ranges(holders[one.number])
            there = msgspec.structs.replace(command, queue=name, ids=own)
            message = Forward(broker.vpn_of(queue), c.encode_command(there))
            say(broker, facts, one.broker, message)
    return len(meant)


def _is_taken(texts: list[bytes] | tuple[()]) -> bool:
    return any(isinstance(c.decode_command(text), _TAKE_AWAY) for text in texts)


def refused(broker: Broker, facts: MeshFacts, queue: Queue, ids: list[int]) -> None:
    """Carry out the kept commands for messages that were refused and are here again."""
    for text, numbers in forget(facts, queue, ids).items():
        command: Any = c.decode_command(text)
        own = msgspec.structs.replace(command, ids=format_ranges(numbers))
        carry_out(broker, broker.vpn_of(queue), own, None)


def forget(facts: MeshFacts, queue: Queue, ids: list[int]) -> dict[bytes, list[int]]:
    """Drop the kept commands for these messages; returns them in order. If another broker has the
    messages now, it carries them out."""
    waiting = facts.later.get(queue.number)
    meant: dict[bytes, list[int]] = {}
    if waiting is None:
        return meant
    for number in ids:
        for text in waiting.pop(number, ()):
            meant.setdefault(text, []).append(number)
    if not waiting:
        del facts.later[queue.number]
    return meant
