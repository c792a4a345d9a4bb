"""`lakequeue browse`: look at messages without taking them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .common import (
    connect,
    connection_options,
    console,
    json_option,
    key_fields,
    number,
    option,
    payload_fields,
    say_json,
)

if TYPE_CHECKING:
    from ..client.message import BrowsedMessage

PREVIEW_MAX = 100


@click.command()
@click.argument("queue")
@option("--where", metavar="EXPRESSION", help="Only such messages: '/price > 10'.")
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

    \b
    Examples:
      lakequeue browse orders
      lakequeue browse orders --where '/price > 10' --state leased
      lakequeue browse orders-dmq --json --limit 1000 | jq .payload
    """
    with connect(url, home, vpn, "browse") as connection:
        found = connection.admin().browse(queue, where=where, state=state, limit=limit)
    if as_json:
        for message in found:
            say_json(browsed_fields(message))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, side in (("id", "right"), ("state", "left"), ("sent", "right"),
                         ("priority", "right"), ("payload", "left")):  # fmt: skip
        table.add_column(column, justify=side, no_wrap=column != "payload")  # type: ignore[arg-type]
    for message in found:
        fields = browsed_fields(message)
        table.add_row(
            fields["id"],
            fields["state"],
            number(fields["delivery_count"]),
            number(fields["priority"]),
            Text(_preview(fields), overflow="ellipsis", no_wrap=True),
        )
    console().print(table if found else "Nothing to see.")


def browsed_fields(message: BrowsedMessage) -> dict[str, Any]:
    """A browsed message as a mapping for JSON."""
    return {**asdict(message), **payload_fields(message.payload), **key_fields(message.key)}


def _preview(fields: dict[str, Any]) -> str:
    text = " ".join(str(fields["payload"]).split())
    return text if len(text) <= PREVIEW_MAX else text[: PREVIEW_MAX - 1] + "…"
