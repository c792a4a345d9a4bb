"""Output for people and for programs."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from ..monitor.formatting import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PLAIN_WIDTH = 200


def say(text: str) -> None:
    """Print a line for people on standard output."""
    click.echo(one_line(text))


def cell(text: str) -> Text:
    """Foreign text for a table, without rich's markup."""
    from rich.text import Text

    return Text(one_line(text))


def console(stderr: bool = False) -> Console:
    """A console of rich; if it is not a terminal, plain and wide enough for any table."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False)
    if not out.is_terminal:
        out.width = PLAIN_WIDTH
    return out


def table_of(*columns: str) -> Table:
    """An empty table, without a header if no column has a name. Columns whose names begin with >
    are aligned to the right."""
    from rich.table import Table

    names = [column.removeprefix(">") for column in columns]
    out = Table(box=None, padding=(0, 2, 0, 0), show_header=any(names))
    for column, name in zip(columns, names, strict=True):
        out.add_column(name, justify="right" if column.startswith(">") else "left")
    return out


def json_text(value: object) -> str:
    """A JSON value on one line. Characters that could control a terminal, or that no file can
    store, are escaped; the value is the same."""
    text = json.dumps(value, ensure_ascii=False, default=plain_value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def say_json(value: object) -> None:
    """Print a JSON value on one line of standard output."""
    click.echo(json_text(value))


def plain_value(value: Any) -> Any:
    """A JSON form for bytes (text or base64) and times (ISO-8601)."""
    if isinstance(value, bytes | bytearray | memoryview):
        shown = payload_fields(bytes(value))
        return shown["payload"] if "encoding" not in shown else shown
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def payload_fields(payload: bytes) -> dict[str, str]:
    """A payload for JSON: text, or base64 with ``encoding`` if it is not UTF-8."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def key_fields(key: bytes | None) -> dict[str, str | None]:
    """A record's key for JSON: text, or base64 with ``key_encoding`` if it is not UTF-8."""
    if key is None:
        return {"key": None}
    shown = payload_fields(key)
    out: dict[str, str | None] = {"key": shown["payload"]}
    return {**out, "key_encoding": shown["encoding"]} if "encoding" in shown else out


def note(text: str) -> None:
    """Print a line for people on standard error."""
    print(one_line(text), file=sys.stderr, flush=True)
