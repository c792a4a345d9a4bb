"""Commands for messages that are in transit to another broker (R6, L8, L13).

Neither broker owns such a message. The command follows it at once, and the other broker carries it
out after it has stored the message. In case it refuses the message, the command is also kept in the
message's row, and is carried out here then. A row keeps little, however long the other broker is
away: one `Edit` with all edits, and one command that removes the message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ..protocol import commands as c
from ..protocol.ids import format_ranges
from ..protocol.mesh_messages import Forward
from ..state.commands.intake import carry_out
from ..state.queue.broker import Broker
from ..state.queue.queue import Queue
from ..state.rules.edits import TRANSIT, Edits, with_edits
from ..state.storage.row import Row
from .channel import say
from .facts import MeshFacts

COMMANDS = "commands"  # in TRANSIT: the commands that are kept, in order
_TAKE_AWAY = (c.Ack, c.Purge, c.Move)


def keep(broker: Broker, facts: MeshFacts, queue: Queue, command: Any, ids: list[int]) -> int:
    """Forward a command for these messages, and keep it; returns how many of them no earlier
    command removes."""
    rows = [queue.live[number] for number in ids]
    rows = [row for row in rows if not _is_taken(_transit(row).get(COMMANDS, ()))]
    if isinstance(command, c.Edit):  # the other broker would not change these either
        rows = [row for row in rows if with_edits(row.extras, _all_edits(row, command)) is not None]
    changes: dict[str, Any] = {"reply": None, "where": None}
    changes["ids"] = format_ranges([row.id for row in rows])
    if isinstance(command, c.Ack):
        changes["quiet"] = True
    command = msgspec.structs.replace(command, **changes)
    text = c.encode_command(command)
    holders: dict[int, list[int]] = {}
    for row in rows:
        transit = _transit(row)
        if isinstance(command, c.Edit):
            edit = msgspec.structs.replace(command, headers=_all_edits(row, command))
            kept = [c.encode_command(edit)]
        else:
            kept = [*transit.get(COMMANDS, ()), text]
        row.extras = {**(row.extras or {}), TRANSIT: {**transit, COMMANDS: kept}}
        holders.setdefault(row.holder, []).append(row.id)
    broker.touch(queue)
    name = queue.header.stands_for or queue.definition.name
    for one in queue.header.subscriptions:
        if one.number in holders and one.broker is not None:
            own = format_ranges(holders[one.number])
            there = msgspec.structs.replace(command, queue=name, ids=own)
            message = Forward(queue.definition.vpn, c.encode_command(there))
            say(broker, facts, one.broker, message)
    return len(rows)


def _transit(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = (row.extras or {}).get(TRANSIT, {})
    return found


def _all_edits(row: Row, command: c.Edit) -> Edits:
    """The edits of this command and the kept ones together, for a message that no kept command
    removes."""
    kept = [c.decode_command(text) for text in _transit(row).get(COMMANDS, ())]
    before = [one.headers for one in kept if isinstance(one, c.Edit)]
    return {name: text for edits in (*before, command.headers) for name, text in edits.items()}


def _is_taken(texts: Iterable[bytes]) -> bool:
    return any(isinstance(c.decode_command(text), _TAKE_AWAY) for text in texts)


def take(rows: list[Row]) -> dict[bytes, list[int]]:
    """Remove the kept commands from messages; returns the ids of each command, in order."""
    meant: dict[bytes, list[int]] = {}
    for row in rows:
        for text in _transit(row).pop(COMMANDS, ()):
            meant.setdefault(text, []).append(row.id)
    return meant


def carry_out_kept(broker: Broker, queue: Queue, kept: dict[bytes, list[int]]) -> None:
    """Carry out commands for messages that were refused and are here again. kept: see `take`."""
    for text, numbers in kept.items():
        command: Any = c.decode_command(text)
        own = msgspec.structs.replace(command, ids=format_ranges(numbers))
        carry_out(broker, queue.definition.vpn, own, None)
