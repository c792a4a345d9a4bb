"""`lakequeue browse`: look at messages without taking them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..protocol.bounds import datetime_of
from .common import (
    cell,
    connect,
    connection_options,
    console,
    json_option,
    key_fields,
    local_time,
    number,
    one_line,
    option,
    payload_fields,
    say_json,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..client.message import BrowsedMessage

PREVIEW_MAX = 100
DEAD = "lq-dead-"


@click.command()
@click.argument("queue")
@option("--where", metavar="EXPRESSION", help="Such messages: '/price > 10'.")
@option(
    "--state", type=click.Choice(("ready", "leased", "delayed")), help="Only those in this state."
)
@option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most.")
@connection_options
@json_option
def browse(
    queue: str,
    where: str | None,
    state: str | None,
    limit: int,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Look at the messages of QUEUE, in their places, without taking them.

    Of dead messages it shows what they died of, in which queue, and when.

    \b
    Examples:
      lakequeue browse orders
      lakequeue browse orders --where '/price > 10' --state leased
      lakequeue browse orders-dmq --json --limit 1000 | jq .payload
    """
    with connect(url, home, vpn, "browse") as connection:
        found = connection.admin().browse(queue, where=where, state=state, limit=limit)
    show_browsed(found, as_json)


def show_browsed(found: list[BrowsedMessage], as_json: bool) -> None:
    """Messages, for people or a line of JSON each."""
    if as_json:
        for message in found:
            say_json(browsed_fields(message))
        return
    console().print(_table([browsed_fields(m) for m in found]) if found else "Nothing to see.")


def _table(found: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    some_dead = any(fields["dead"] for fields in found)
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns = [("id", "right"), ("state", "left"), ("sent", "right"), ("priority", "right")]
    if some_dead:
        columns += [("died of", "left"), ("in queue", "left"), ("at", "left")]
    for column, side in columns:
        table.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("payload")
    for fields in found:
        counts = number(fields["delivery_count"]), number(fields["priority"])
        table.add_row(
            fields["id"],
            fields["state"],
            *counts,
            *(map(cell, _death(fields["dead"] or {})) if some_dead else ()),
            Text(one_line(_preview(fields)), overflow="ellipsis", no_wrap=True),
        )
    return table


def _death(dead: dict[str, Any]) -> tuple[str, str, str]:
    """What it died of, with the consumer's own words; in which queue; when, to the second."""
    reason, detail = dead.get("reason", ""), dead.get("detail", "")
    time = local_time(dead["time"]).strftime("%Y-%m-%d %H:%M:%S") if "time" in dead else ""
    return (f"{reason}: {detail}" if detail else reason), dead.get("queue", ""), time


def browsed_fields(message: BrowsedMessage) -> dict[str, Any]:
    """A browsed message as a mapping for JSON; ``dead``: its lq-dead- headers, or null, the time as
    ISO-8601."""
    dead: dict[str, Any] = {
        name.removeprefix(DEAD): text
        for name, text in message.headers.items()
        if name.startswith(DEAD)
    }
    if dead.get("time", "").isdigit():
        dead["time"] = datetime_of(int(dead["time"]))
    fields = {**asdict(message), **payload_fields(message.payload), **key_fields(message.key)}
    return {**fields, "dead": dead or None}


def _preview(fields: dict[str, Any]) -> str:
    text = " ".join(str(fields["payload"]).split())
    return text if len(text) <= PREVIEW_MAX else text[: PREVIEW_MAX - 1] + "…"
