"""A row's extras: edited headers (R6), data of dead messages (X5, X6), and notes for other brokers.

A message is stored once for all its queues and stays as it was published. An administrator's edits
are kept in the row of one queue, and replace headers whenever the message is shown or sent. They
follow the message to another queue: by a move, as a dead message, and back.
"""

from __future__ import annotations

from typing import Any

from ...protocol import wire
from ..storage.blocks import Content
from ..storage.row import Row

# Keys of the extras. All other keys are the data of a dead message.
EDITED = "edited"  # the edits
TRANSIT = "way"  # facts for the broker that gets the message
AGAIN = "again"  # in TRANSIT: the queues in which it died after it was sent to that broker
FIRST = "first"  # in a message that died twice: the data of its first death
CHARACTERS_MAX = 1_000  # of all edited names and values of one message

Edits = dict[str, str | None]  # header → text; None: removed


def dead_part(extras: dict[str, Any] | None) -> dict[str, Any] | None:
    """The data of a dead message in a row's extras; None if it is not dead."""
    if extras is None or not (EDITED in extras or TRANSIT in extras):
        return extras
    return {k: v for k, v in extras.items() if k not in (EDITED, TRANSIT)} or None


def edits_part(extras: dict[str, Any] | None) -> dict[str, Any]:
    """The edits in a row's extras, as the extras of another row."""
    return {EDITED: extras[EDITED]} if extras and EDITED in extras else {}


def carried_on(extras: dict[str, Any] | None) -> dict[str, Any]:
    """The extras that a message keeps when it leaves a queue as dead: its edits and its first death
    (X5)."""
    dead = dead_part(extras)
    if dead is None:
        return edits_part(extras)
    first = dead.get(FIRST) or {name: value for name, value in dead.items() if name != "also"}
    return {FIRST: first, **edits_part(extras)}


def back_in(name: str, extras: dict[str, Any] | None) -> dict[str, Any]:
    """The extras of a dead message when it goes back to the queue with this name. If it died there
    for the second time, it still has its first death, and can be redriven from there too (X6)."""
    dead = dead_part(extras) or {}
    again = dead[FIRST] if FIRST in dead and dead["queue"] == name else {}
    return {**again, **edits_part(extras)}


def with_edits(extras: dict[str, Any] | None, new: Edits) -> dict[str, Any] | None:
    """A row's extras with more edits; None if that would exceed `CHARACTERS_MAX`."""
    edits = {**((extras or {}).get(EDITED) or {}), **new}
    if sum(len(name) + len(text or "") for name, text in edits.items()) > CHARACTERS_MAX:
        return None
    return {**(extras or {}), EDITED: edits}


def edited(row: Row, content: Content) -> Content:
    """A message's content with its edited headers."""
    if row.extras is None or EDITED not in row.extras:
        return content
    changes: Edits = row.extras[EDITED]
    kept = [(k, v) for k, v in wire.headers_list(content[2]) if k not in changes]
    new = [(k, v.encode()) for k, v in sorted(changes.items()) if v is not None]
    text = wire.headers_json(kept + new)
    return content[0], content[1], None if text is None else text.encode()
