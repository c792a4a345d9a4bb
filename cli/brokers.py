"""`lakequeue brokers`: which brokers there are, where each steps, and how much it has to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import (
    cell,
    connect,
    connection_options,
    console,
    json_option,
    number,
    one_line,
    option,
    say_json,
)


@click.command()
@option("--add", metavar="NAME", help="Add a broker of this name to the running engine first.")
@option("--remove", metavar="NAME", help="Remove this broker first; its local queues move away.")
@option("--to", metavar="NAME", help="Where all of these go; by default as new ones would.")
@option("--group", metavar="GROUP", help="The group of brokers that it is in; by default none.")
@connection_options
@json_option
def brokers(
    add: str | None, remove: str | None, to: str | None, group: str | None, url: str | None,
    home: Path | None, vpn: str, as_json: bool,
) -> None:  # fmt: skip
    """Show every broker: number, state, worker, steps, load.

    States: starting, running, restarting, failed (not restarted, with the reason). Steps and load
    (the share of the time in which it did not wait for input) are up to half a minute old.

    With --add or --remove the home rests for some seconds; clients wait.

    \b
    Examples:
      lakequeue brokers
      lakequeue brokers --add west-2 --group west
      lakequeue brokers --remove west-2
      lakequeue brokers --remove west-2 --to west
      lakequeue brokers --json | jq '.[] | select(.state != "running")'
    """
    if group is not None and add is None:
        raise click.UsageError(f"--group {group}: is of a broker that --add adds")
    if to is not None and remove is None:
        raise click.UsageError(
            f"--to {to}: is where the queues of a broker go that --remove removes"
        )
    with connect(url, home, vpn, "brokers") as connection:
        if add is not None:
            connection.admin().add_broker(add, group)
        if remove is not None:
            for one in connection.admin().remove_broker(remove, to):
                text = f"queue {one['queue']!r} of VPN {one['vpn']!r} is on {one['broker']!r} now"
                click.echo(one_line(text), err=True)
        found = connection.admin().brokers()
    if as_json:
        say_json(found)
        return
    console().print(_table(found) if found else "No broker was started here yet.")


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    grouped = any(one["group"] for one in found)
    for column, side in (("broker", "left"), ("number", "right"),
                         *([("group", "left")] if grouped else []), ("state", "left"),
                         ("worker", "left"), ("steps", "right"), ("load", "right"),
                         ("why", "left")):  # fmt: skip
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for one in found:
        load = one["load"]
        table.add_row(
            cell(one["name"]), number(one["number"]),
            *([cell(one["group"] or "–")] if grouped else []), one["state"],
            cell(one["worker"] or "–"), number(one["steps"]),
            "–" if load is None else f"{100 * load:.0f} %", cell(one["why"]),
        )  # fmt: skip
    return table
