"""Edited headers: what an administrator changed of a message in one queue (R6).

A message is stored once, for all queues that hold it, and stays as it was published. What was
edited stands beside its row in the queue, and is put over its headers whenever it is shown or sent.
It goes with the message to another queue: by a move, as a dead message, and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...protocol import wire

if TYPE_CHECKING:
    from ..queue import PageRows
    from ..storage.blocks import Content

EDITED = "edited"  # in a row's extras, as the next; all else there is what a dead message carries
BRIDGED = "bridge"  # where a message at a bridge's endpoint goes (`bridges.endpoint`)
GOING_BACK = "back"  # on its way to a queue in which it died (`mesh.going_back`)
FIRST = "first"  # of what a dead message carries: of its first death, where it died again
CHARACTERS_MAX = 1_000  # of one message: names and values
_BESIDE = frozenset((EDITED, BRIDGED, GOING_BACK))

Edits = dict[str, str | None]  # header → text; None: it is gone


def dead_part(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a row's extras say of a dead message; None for one that is not dead."""
    if extra is None or _BESIDE.isdisjoint(extra):
        return extra
    return {k: v for k, v in extra.items() if k not in _BESIDE} or None


def edits_part(extra: dict[str, Any] | None) -> dict[str, Any]:
    """What is edited, as it stands in the extras of another row."""
    return {EDITED: extra[EDITED]} if extra and EDITED in extra else {}


def carried_on(extra: dict[str, Any] | None) -> dict[str, Any]:
    """What goes along with a message that leaves a queue as dead: what is edited, and of what it
    died first (X5)."""
    if extra is None:
        return {}
    dead = dead_part(extra)
    if dead is None:
        return edits_part(extra)
    first = dead.get(FIRST) or {name: value for name, value in dead.items() if name != "also"}
    return {FIRST: first, **edits_part(extra)}


def back_in(name: str, extra: dict[str, Any] | None) -> dict[str, Any]:
    """What goes along with a dead message that goes back to the queue of this name: where it died
    again, it is dead of its first death still, and can go back from there too (X6)."""
    dead = dead_part(extra) or {}
    again = dead[FIRST] if FIRST in dead and dead["queue"] == name else {}
    return {**again, **edits_part(extra)}


def with_edits(extra: dict[str, Any] | None, new: Edits) -> dict[str, Any] | None:
    """A row's extras with one more edit; None where that would be too much."""
    known = {**((extra or {}).get(EDITED) or {}), **new}
    if sum(len(name) + len(text or "") for name, text in known.items()) > CHARACTERS_MAX:
        return None
    return {**(extra or {}), EDITED: known}


def extras_of(found: PageRows) -> dict[int, dict[str, Any]]:
    """The extras of messages whose rows were found, by position."""
    extras: dict[int, dict[str, Any]] = {}
    for page, rows, where in found:
        if page.extras:
            positions = range(len(rows)) if isinstance(where, slice) else where.tolist()
            for position, row in zip(positions, rows.tolist(), strict=True):
                if row in page.extras:
                    extras[position] = page.extras[row]
    return extras


def dead_of(extras: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What dead messages among these carry, by position."""
    parts = {at: dead_part(extra) for at, extra in extras.items()}
    return {at: part for at, part in parts.items() if part is not None}


def as_edited(
    extras: dict[int, dict[str, Any]], contents: list[Content | None]
) -> list[Content | None]:
    """Contents of messages with these extras, with their headers as they are edited."""
    edits = {at: extra[EDITED] for at, extra in extras.items() if EDITED in extra}
    if not edits:
        return contents
    out = list(contents)
    for at, changes in edits.items():
        if (content := out[at]) is not None:
            out[at] = (content[0], content[1], _apply(content[2], changes))
    return out


def _apply(headers: bytes | None, changes: Edits) -> bytes | None:
    kept = [(k, v) for k, v in wire.headers_list(headers) if k not in changes]
    new = [(k, v.encode()) for k, v in sorted(changes.items()) if v is not None]
    text = wire.headers_json(kept + new)
    return None if text is None else text.encode()
