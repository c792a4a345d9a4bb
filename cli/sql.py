"""`lakequeue sql` and `lakequeue trace`: queries of a home's Delta tables (R1), without Spark."""

from __future__ import annotations

import contextlib
import csv
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len

from ..lake import NoLake, open_lake
from ..lake import trace as life_of
from ..lake.opening import not_written
from ..monitor.formatting import clock, counted, cut, one_line
from ..protocol.errors import ConfigError, LakequeueError
from .command_options import home_option, json_option, option
from .group import EnvironmentFault, standard
from .printing import json_text, note, plain_value, say_json

if TYPE_CHECKING:
    import duckdb

TOGETHER = 1_000  # rows that are fetched at once
CELL_MAX = 80
MS = "milliseconds"
FORMULA = tuple("=+-@\t\r")  # the first characters of cells that spreadsheets read as formulas
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
NOT_READ = re.compile(r"stream registered as '(\w+)' failed: (.*)")
NO_TABLE = re.compile(r"Table with name (\S+) does not exist")
tables_option = home_option("The home whose tables are read.")


@contextlib.contextmanager
def asked(home: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the lake of a home; turn errors into one sentence."""
    try:
        lake = open_lake(home)
    except NoLake as error:
        raise EnvironmentFault(str(error)) from error
    import duckdb

    with lake:
        try:
            yield lake
        except duckdb.Error as error:
            raise _explained(lake, str(error).strip() or type(error).__name__) from error


def _explained(lake: duckdb.DuckDBPyConnection, text: str) -> LakequeueError:
    first = text.splitlines()[0]
    kind, colon, said = first.partition(": ")
    if unread := NOT_READ.search(first):
        why = unread[2].rstrip(".")
        return EnvironmentFault(
            f"A file of the table {unread[1]!r} is gone or cannot be read: {why}. "
            "`lakequeue tables` shows what is damaged, and how to repair it"
        )
    if missing := NO_TABLE.search(first):
        there = [name for (name,) in lake.execute("SHOW TABLES").fetchall()]
        return ConfigError(
            f"There is no table or view {missing[1]!r}; there are {', '.join(there)}"
        )
    if kind == "Parser Error":
        return ConfigError(f"The SQL has an error: {said}")
    return ConfigError(f"The SQL cannot be run: {said if colon else first}")


@click.command()
@click.argument("query")
@tables_option
@option("--csv", "as_csv", is_flag=True, help="CSV with a header, for spreadsheets.")
@json_option
def sql(query: str, home: Path, as_csv: bool, as_json: bool) -> None:
    """Run a SQL QUERY on a home's Delta tables, whether the engine runs or not.

    \b
    queued     the messages in each queue now
    lifecycle  a row per message and queue: times, waiting, consumers
    queues     definition and status
    consumers  every subscription, with its start and end
    changes    each change of a message's state
    journal    every event
    messages   every published message
    commands   every command of clients and administrators

    The tables are a few seconds behind the engine. Times are UTC. --json prints a row per line.

    \b
    Examples:
      lakequeue sql "select queue, state, count(*) from queued group by all"
      lakequeue sql "select * from lifecycle order by waiting_ms desc limit 10"
      lakequeue sql "select * from queues" --json | jq .definition
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other: give one of them.")
    with asked(home) as lake:
        for name, sentence in not_written(home).items():
            if re.search(rf"\b{name}\b", query):
                note(sentence)
        found = lake.execute(query)
        if found is None:
            raise ConfigError("The SQL is empty: there is no statement in it")
        names = [column[0] for column in found.description or ()]
        _show(names, _rows(found), as_csv, as_json)


def _rows(found: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while found.description and (rows := found.fetchmany(TOGETHER)):
        yield from rows


def _show(names: list[str], rows: Iterator[tuple[Any, ...]], as_csv: bool, as_json: bool) -> None:
    if as_json:
        for row in rows:
            say_json(dict(zip(names, row, strict=True)))
    elif as_csv:
        writer = csv.writer(standard(sys.stdout, "output"), lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_harmless(_cell(value)) for value in row] for row in rows)
    elif names:
        for line in _lines(names, [[_short(value) for value in row] for row in rows]):
            click.echo(line)


def _lines(names: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Format a table with columns as wide as needed, so that no terminal hides one."""

    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        cells = zip(row, widths, strict=True)
        yield "  ".join(text + " " * (width - cell_len(text)) for text, width in cells).rstrip()


def _cell(value: Any) -> str:
    """A value as text; empty for null."""
    if value is None:
        return ""
    shown = plain_value(value) if not isinstance(value, str | list | tuple | dict) else value
    if isinstance(shown, str):
        return shown
    return json_text(shown)


def _harmless(text: str) -> str:
    """Mark a cell as text, by a leading quote, if a spreadsheet would read it as a formula. Numbers
    stay."""
    if text[:1] not in FORMULA or NUMBER.fullmatch(text):
        return text
    return f"'{text}"


def _short(value: Any) -> str:
    """A value on one line, cut to a limit, without control characters."""
    if isinstance(value, datetime):
        return clock(value, MS) if value.tzinfo else value.isoformat(" ", MS)
    return cut(one_line(_cell(value)), CELL_MAX)


HOLDS = {"leased": "held", "delayed": "delayed", "ready": "waited"}
WORDS = {
    "spooled": "entered", "redelivered": "delivered", "lease_ended": "lease ended",
    "returned": "returned untouched or left behind", "ready": "due again",
    "consumer_rejected": "rejected", "barrier_delivered": "delivered as a barrier",
    "dead_lettered": "moved", "renewed": "lease extended", "ack_ignored": "without effect",
    "deferred_ack": "acknowledged before it arrived", "lost": "lost",
}  # fmt: skip
GIVEN = {"delivered", "redelivered", "barrier_delivered"}
FROM = {"returned", "lease_ended"}


@click.command()
@click.argument("message_id")
@tables_option
@json_option
def trace(message_id: str, home: Path, as_json: bool) -> None:
    """Show the life of the message MESSAGE_ID in all its queues, and why it waited.

    Reads the Delta tables, which are a few seconds behind a running engine. Times are UTC.

    \b
    Examples:
      lakequeue trace 17
      lakequeue trace 17 --json | jq '.queues[].life[] | .then.why'
    """
    with asked(home) as lake:
        story = life_of(lake, message_id)
    if as_json:
        say_json(story)
        return
    for line in lines(story):
        click.echo(line)


def lines(story: dict[str, Any]) -> Iterator[str]:
    """The life of a message as text."""
    number, published = story["message_id"], story["published"]
    if published is None:
        yield f"Message {number}; its publication is not in the tables"
    else:
        yield (
            f"Message {number}, {counted(published['bytes'], 'byte')}, published "
            f"{clock(published['time'], MS)} to {published['topic']}, partition "
            f"{published['partition']}, offset {published['offset']}"
        )
    for queue in story["queues"]:
        vpn = "" if queue["vpn"] == "default" else f" in the VPN {queue['vpn']}"
        yield f"\n{one_line(queue['queue'] + vpn)}"
        for event in queue["life"]:
            yield f"  {clock(event['time'], MS)}  {one_line(_what(event))}"
            yield from _then(event)


def _what(event: dict[str, Any]) -> str:
    """One event as text."""
    name, who, reason = event["event"], event["consumer"], event["reason"]
    text = WORDS.get(name, name)
    if who:
        text += f" {'to' if name in GIVEN else 'from' if name in FROM else 'by'} {who}"
    if name in GIVEN and event["deliveries"]:
        text += f", attempt {event['deliveries']}"
    if reason:
        text += f" to {reason}" if name == "dead_lettered" else f": {reason}"
    if event["until"] is not None:
        state = (event["then"] or {}).get("state")
        text += f", {'due' if state == 'delayed' else 'until'} {clock(event['until'], MS)}"
    return text


def _then(event: dict[str, Any]) -> Iterator[str]:
    """The message's state until the next event, and the reasons, as text."""
    then = event["then"]
    if then is None or then["state"] == "gone":
        return
    text = HOLDS[then["state"]]
    if then["ms"] is None:
        text = {"leased": "is held", "delayed": "is delayed", "ready": "waits"}[then["state"]]
    elif not then["ms"]:
        return
    else:
        text += f" {_long(then['ms'])}"
    parts = then.get("why", [])
    if len(parts) == 1:
        text += "" if parts[0]["why"] == "waiting" else f": {parts[0]['why']}"
    yield f"{'':28}{text}"
    for part in parts if len(parts) > 1 else ():
        span = "until now" if part["ms"] is None else _long(part["ms"])
        yield f"{'':30}{span}: {part['why']}"


def _long(ms: int) -> str:
    """A duration as text."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.1f} min"
    return f"{ms / 3_600_000:.1f} h"
