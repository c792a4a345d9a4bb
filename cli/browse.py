"""`lakequeue browse` (messages now, R6) and `lakequeue at` (queues as they were, R1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from ..client.message import BrowsedMessage
from ..client.values import time_ms
from ..lake import past
from ..lake.queries_at import admin_of
from ..monitor.formatting import clock, counted, cut, death, number, one_line
from ..monitor.queue_details import explained
from ..protocol import commands
from ..protocol.bounds import datetime_of
from ..protocol.errors import ConfigError
from ..protocol.wire import WireRecord, headers_list
from .change_messages import check
from .command_options import (
    EngineCall,
    call_options,
    gathered,
    json_option,
    option,
    vpn_option,
)
from .printing import cell, console, key_fields, payload_fields, say_json, table_of
from .queues import event_line, shown
from .sql import MS, asked, tables_option

PREVIEW_MAX = 100


@dataclass(frozen=True, slots=True)
class Browsing:
    """The messages to show, and how many."""

    where: str | None
    state: str | None
    limit: int

    def of(self, admin: Any, queue: str | None) -> list[BrowsedMessage]:
        """The first matching messages of a queue."""
        return admin.browse(queue, where=self.where, state=self.state, limit=self.limit)


def browsing_options(where: str, state: str, limit: str) -> Callable[[Any], Any]:
    """Add --where, --state and --limit, each with its help."""
    return gathered(
        Browsing, "chosen",
        option("--where", metavar="EXPRESSION", help=f"{where}: '/price > 10'."),
        option("--state", type=click.Choice(("ready", "leased", "delayed")), help=state),
        option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True,
               help=limit),
    )  # fmt: skip


@click.command()
@click.argument("queue")
@browsing_options("Matching messages", "Only messages in this state.", "Show at most this many.")
@call_options
def browse(queue: str, chosen: Browsing, call: EngineCall) -> None:
    """Show the messages of QUEUE, in order, without consuming them.

    For a dead message it shows why, in which queue and when it died.

    \b
    Examples:
      lakequeue browse orders
      lakequeue browse orders --where '/price > 10' --state leased
      lakequeue browse orders-dmq --json --limit 1000 | jq .payload
    """
    check(commands.Browse(queue=queue, where=chosen.where))
    with call.admin("browse") as admin:
        found = chosen.of(admin, queue)
    show_browsed(found, call.as_json)


def show_browsed(found: list[BrowsedMessage], as_json: bool) -> None:
    """Print messages, for people or as a line of JSON each."""
    if as_json:
        for message in found:
            say_json(browsed_fields(message))
        return
    console().print(_table([browsed_fields(m) for m in found]) if found else "No such messages.")


def _table(found: list[dict[str, Any]]) -> RenderableType:
    some_dead = any(fields["dead"] for fields in found)
    death = ["died of", "in queue", "at"] if some_dead else []
    table = table_of(">id", "state", ">deliveries", ">priority", *death, "payload")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for fields in found:
        counts = number(fields["delivery_count"]), number(fields["priority"])
        table.add_row(
            fields["id"],
            fields["state"],
            *counts,
            *(map(cell, _death(fields["dead"] or {})) if some_dead else ()),
            Text(
                one_line(cut(" ".join(str(fields["payload"]).split()), PREVIEW_MAX)),
                overflow="ellipsis",
                no_wrap=True,
            ),
        )
    return table


def _death(dead: dict[str, Any]) -> tuple[str, str, str]:
    """The reason of a message's death, with the consumer's; its queue; the time, to the second."""
    reason, detail = dead.get("reason", ""), dead.get("detail", "")
    time = clock(dead["time"]) if "time" in dead else ""
    return (f"{reason}: {detail}" if detail else reason), dead.get("queue", ""), time


def browsed_fields(message: BrowsedMessage) -> dict[str, Any]:
    """A browsed message as JSON fields; ``dead``: its lq-dead- headers or null, the time as
    ISO-8601."""
    fields = {**asdict(message), **payload_fields(message.payload), **key_fields(message.key)}
    return {**fields, "dead": death(message) or None}


VIEWS = ("queues", "describe", "browse", "events", "step")
VALUE_MAX = 120
LAST = "last"


@click.command()
@click.argument("words", nargs=-1, metavar="[TIME] WHAT [QUEUE]")
@option("--step", type=click.IntRange(min=1), help="After this step, instead of at a time.")
@option("--broker", help="The broker, if there are several.")
@browsing_options(
    "browse: matching messages", "browse: only messages in this state.",
    "browse, events: show at most this many.",
)  # fmt: skip
@vpn_option
@tables_option
@json_option
def at(
    words: tuple[str, ...], step: int | None, broker: str | None, chosen: Browsing, vpn: str,
    home: Path, as_json: bool,
) -> None:  # fmt: skip
    """Show the queues as they were at TIME, whether the engine runs or not.

    WHAT is `queues`, `describe QUEUE`, `browse QUEUE`, `events`, or `step` (the records that the
    step read and sent). TIME is ISO-8601 with a time zone, or `last`: about a minute behind the
    engine.

    \b
    Examples:
      lakequeue at 2026-11-21T10:00:00Z queues
      lakequeue at 2026-11-21T10:00:00Z browse orders --where '/price > 10'
      lakequeue at last describe orders --json
      lakequeue at --step 4711 step
    """
    when, what, queue = _parsed(words, step)
    with asked(home) as lake:
        if step is not None or what == "step":
            found = [past.as_of(lake, home, _broker(lake, broker), step=step, at=when)]
        else:
            found = past.all_as_of(lake, home, [broker] if broker else past.brokers(lake), when)
        for one in found:
            _print_notes(one)
        if what == "step":
            _show_step(found[0], as_json)
            return
        now = datetime_of(max(one.now for one in found))
        _look(admin_of(*found, vpn=vpn), now, what, queue, chosen, as_json)


def _print_notes(found: past.Moment) -> None:
    """Print the moment, and its notes."""
    for note in found.notes:
        click.echo(note, err=True)
    moment = clock(datetime_of(found.now), MS)
    click.echo(
        f"Broker {found.broker} after step {found.step:,}, {moment} ({_again(found)})", err=True
    )


def _parsed(words: tuple[str, ...], step: int | None) -> tuple[datetime | None, str, str | None]:
    """Parse the arguments: the time, what to show, and the queue."""
    rest = list(words)
    when = None
    if step is None:
        if not rest:
            raise click.UsageError("The time is missing: give a TIME, 'last', or --step N.")
        first = rest.pop(0)
        if first != LAST:
            when = datetime_of(time_ms(first, "time"))
    if not rest or rest[0] not in VIEWS:
        given = f"{rest[0]!r} cannot be shown. " if rest else ""
        raise click.UsageError(f"{given}Name what to show: one of {', '.join(VIEWS)}.")
    what, *names = rest
    needs = what in ("describe", "browse")
    if len(names) > (what in ("queues", "describe", "browse")) or (needs and not names):
        raise click.UsageError(f"{what} takes {'a QUEUE' if needs else 'nothing else'}.")
    return when, what, names[0] if names else None


def _broker(lake: Any, named: str | None) -> str:
    if named is not None:
        return named
    there = past.brokers(lake)
    if len(there) == 1:
        return there[0]
    known = ", ".join(there) or "none: no step is in the tables yet"
    raise ConfigError(f"broker: name one with --broker – the tables have {known}")


def _again(found: past.Moment) -> str:
    steps = found.step - found.snapshot
    since = f"the snapshot of step {found.snapshot:,}" if found.snapshot else "the beginning"
    return f"{since} and {counted(steps, 'step')} after it"


def _look(
    admin: Any, now: datetime, what: str, queue: str | None, chosen: Browsing, as_json: bool
) -> None:
    if what == "browse":
        show_browsed(chosen.of(admin, queue), as_json)
    elif what == "events":
        for event in admin.events(chosen.limit):
            say_json(event) if as_json else click.echo(event_line(event, MS))
    elif as_json:
        say_json(admin.describe(queue) if queue else admin.queues())
    else:
        rows = [explained(admin, queue, now)[0]] if queue else admin.queues()
        console().print(shown(rows, admin.usage(), alone=bool(queue)))


# ---------------------------------------------------------------- a step


def _show_step(found: past.Moment, as_json: bool) -> None:
    """Print the records that a step read and sent."""
    if found.step == found.snapshot:
        raise ConfigError(
            f"step: {found.step} – a snapshot followed it, so it cannot be shown; allowed are "
            "steps between two snapshots"
        )
    took = [
        {"topic": m.topic(), "partition": m.place[1], "offset": m.offset(),
         "time": datetime_of(m.timestamp()[1]),
         "headers": _headers(m.headers() or []), **_value(m.value())}
        for m in found.last_inputs
    ]  # fmt: skip
    sent = [_sent_fields(record) for record in found.last_outputs]
    if as_json:
        say_json({"step": found.step, "took": took, "said": sent})
        return
    click.echo(f"It read {counted(len(took), 'record')}:")
    for record in took:
        click.echo("  " + _line(record, f"{record['partition']} @ {record['offset']}"))
    click.echo(f"It sent {len(sent):,}:")
    for record in sent:
        click.echo("  " + _line(record, str(record["partition"] or "")))


def _sent_fields(record: WireRecord) -> dict[str, Any]:
    return {
        "topic": record.topic, "partition": record.partition,
        "key": (record.key or b"").decode("utf-8", "replace"),
        "headers": _headers(headers_list(record.headers)), **_value(record.value),
    }  # fmt: skip


def _headers(pairs: list[tuple[str, bytes]]) -> dict[str, str]:
    return {key: value.decode("utf-8", "replace") for key, value in pairs}


def _value(value: bytes | None) -> dict[str, Any]:
    return payload_fields(value or b"") | {"bytes": len(value or b"")}


def _line(record: dict[str, Any], place: str) -> str:
    return cut(one_line(f"{record['topic']} {place}  {record['payload']}"), VALUE_MAX)
