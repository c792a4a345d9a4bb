"""Edited headers: what an administrator changed of a message in one queue (R6).

A message is stored once, for all queues that hold it, and stays as it was published. What was
edited stands with its row in the queue, and is put over its headers whenever it is shown or sent.
It goes with the message to another queue: by a move, as a dead message, and back.
"""

from __future__ import annotations

from typing import Any

from ...protocol import wire
from ..storage.row import Row
from ..storage.spool import Content

EDITED = "edited"  # in a row's extras: this, and what is said on the way to another broker; all
WAY = "way"  # else there is what a dead message carries
AGAIN = "again"  # of that: the queues in which it died since it was handed over
FIRST = "first"  # of that: of its first death, where it died again
CHARACTERS_MAX = 1_000  # of one message: names and values

Edits = dict[str, str | None]  # header → text; None: it is gone


def dead_part(extras: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a row's extras say of a dead message; None for one that is not dead."""
    if extras is None or not (EDITED in extras or WAY in extras):
        return extras
    return {k: v for k, v in extras.items() if k not in (EDITED, WAY)} or None


def edits_part(extras: dict[str, Any] | None) -> dict[str, Any]:
    """What is edited, as it stands in the extras of another row."""
    return {EDITED: extras[EDITED]} if extras and EDITED in extras else {}


def carried_on(extras: dict[str, Any] | None) -> dict[str, Any]:
    """What goes along with a message that leaves a queue as dead: what is edited, and of what it
    died first (X5)."""
    dead = dead_part(extras)
    if dead is None:
        return edits_part(extras)
    first = dead.get(FIRST) or {name: value for name, value in dead.items() if name != "also"}
    return {FIRST: first, **edits_part(extras)}


def back_in(name: str, extras: dict[str, Any] | None) -> dict[str, Any]:
    """What goes along with a dead message that goes back to the queue of this name: where it died
    again, it is dead of its first death still, and can go back from there too (X6)."""
    dead = dead_part(extras) or {}
    again = dead[FIRST] if FIRST in dead and dead["queue"] == name else {}
    return {**again, **edits_part(extras)}


def with_edits(extras: dict[str, Any] | None, new: Edits) -> dict[str, Any] | None:
    """A row's extras with one more edit; None where that would be too much."""
    known = {**((extras or {}).get(EDITED) or {}), **new}
    if sum(len(name) + len(text or "") for name, text in known.items()) > CHARACTERS_MAX:
        return None
    return {**(extras or {}), EDITED: known}


def edited(row: Row, content: Content) -> Content:
    """A message's content with its headers as they are edited."""
    if row.extras is None or EDITED not in row.extras:
        return content
    changes: Edits = row.extras[EDITED]
    kept = [(k, v) for k, v in wire.headers_list(content[2]) if k not in changes]
    new = [(k, v.encode()) for k, v in sorted(changes.items()) if v is not None]
    text = wire.headers_json(kept + new)
    return content[0], content[1], None if text is None else text.encode()
