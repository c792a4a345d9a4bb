"""`lakequeue bridges`: which there are, what waits for them, and which endpoints hold them (H2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..monitor.formatting import bridge_waits
from .common import (
    cell,
    connect,
    connection_options,
    console,
    counted,
    json_option,
    number,
    one_line,
    option,
    say,
    say_json,
)
from .define import PAIR, values_of

COLUMNS = (
    ("bridge", "left"), ("from", "left"), ("to", "left"), ("state", "left"), ("waiting", "right"),
    ("on its way", "right"), ("taken", "right"), ("why", "left"),
)  # fmt: skip


@click.command()
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE...]")
@option("--delete", metavar="NAME", help="Delete this bridge, and with it what waits for it.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options
@json_option
def bridges(
    pairs: tuple[str, ...], delete: str | None, yes: bool, url: str | None, home: Path | None,
    vpn: str, as_json: bool,
) -> None:  # fmt: skip
    """Show every bridge of the VPN: what waits, what is on its way, which endpoints block it.

    KEY=VALUE: define a bridge first; if it exists, other keys stay as they are.

    States: open; blocked (an endpoint at the far end takes nothing); waiting (the other home is not
    reached, or nothing has come from it yet).

    \b
    Examples:
      lakequeue bridges
      lakequeue bridges name=west-east from=west to=east 'subscriptions=[a/>, d/e/f]'
      lakequeue bridges name=out to=kafka://far:9092 credentials=far 'subscriptions=a/>'
      lakequeue bridges --delete west-east
      lakequeue bridges --json | jq '.[] | select(.state != "open")'
    """
    given = {found[1]: found[2] for text in pairs if (found := PAIR.fullmatch(text))}
    if len(given) != len(pairs) or (pairs and delete is not None):
        raise click.UsageError("name each KEY=VALUE of one bridge once, or one to --delete")
    with connect(url, home, vpn, "bridges") as connection:
        admin = connection.admin()
        if delete is not None:
            _delete(admin, delete, yes, as_json)
            return
        if given:
            admin.bridge({**given, **values_of(given)})
        found = admin.bridges()
    if as_json:
        say_json(found)
        return
    console().print(_table(found) if found else f"VPN {vpn!r} has no bridges.")


def _delete(admin: Any, name: str, yes: bool, as_json: bool) -> None:
    waiting = admin.describe_bridge(name).get("waiting", 0)
    if waiting and not yes:
        question = f"For {name} {counted(waiting, 'message')} wait. Delete it, and them?"
        click.confirm(one_line(question), abort=True, err=as_json)
    gone = admin.delete_bridge(name)
    if as_json:
        say_json({"bridge": name, "deleted": True, "messages": gone})
    else:
        say(f"{name} deleted with {counted(gone, 'message')}")


def _table(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, side in COLUMNS:
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for one in found:
        table.add_row(
            *(cell(one[key]) for key in ("name", "from", "to", "state")),
            number(one.get("waiting")), number(one.get("on_its_way")), number(one["taken"]),
            Text("\n".join(map(one_line, bridge_waits(one)))),
        )  # fmt: skip
    return table
