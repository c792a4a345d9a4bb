"""`lakequeue usage`: how much of their limits the VPN and the broker use (S3, S8, S9, B4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ..monitor.formatting import size
from .common import (
    connect,
    connection_options,
    console,
    json_option,
    number,
    percent,
    say,
    say_json,
)

# Scope, what is used, its limit, the name of its alert, and how it is shown.
ROWS: tuple[tuple[str, str, str, str, Callable[[Any], str]], ...] = (
    ("vpn", "spool_bytes", "max_spool_usage", "spool_usage", size),
    ("broker", "spool_bytes", "max_spool_usage", "spool_usage", size),
    ("broker", "spool_files", "max_spool_files", "spool_files", number),
    ("broker", "delivered_unacked", "max_delivered_unacked", "delivered_unacked", number),
)


@click.command()
@connection_options
@json_option
def usage(url: str | None, home: Path | None, vpn: str, as_json: bool) -> None:
    """Show what the VPN and each broker use of their limits, the alerts that are set, and what was
    refused without a queue. Limits hold for each broker.

    \b
    Examples:
      lakequeue usage
      lakequeue usage --json | jq .broker
    """
    with connect(url, home, vpn, "usage") as connection:
        found = connection.admin().usage()
    if as_json:
        say_json(found)
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, side in (("of", "left"), ("what", "left"), ("used", "right"), ("limit", "right"),
                         ("%", "right"), ("alert", "left")):  # fmt: skip
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for of, mine, used, limit, alert, shown in _rows(found):
        table.add_row(
            of, used, shown(mine[used]),
            "none" if mine[limit] is None else shown(mine[limit]),
            percent(mine[used], mine[limit]), "set" if alert in mine["alerts"] else "",
        )  # fmt: skip
    console().print(table)
    for one in each(found):
        for reason, count in one["vpn"]["refused"].items():
            say(f"{count:,} refused: {reason}{_at(one, found)}")


def each(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What every broker that runs says."""
    return list(found.get("brokers", {}).values()) or [found]


def _at(one: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Where, with several brokers."""
    return f" (broker {one['broker']['name']})" if len(each(found)) > 1 else ""


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for one in each(found):
        for scope, used, limit, alert, shown in ROWS:
            mine = one[scope]
            at = _at(one, found) if scope == "vpn" else ""
            yield f"{scope} {mine['name']}{at}", mine, used, limit, alert, shown


def alerts_of(found: Mapping[str, Any]) -> list[str]:
    """The alerts of a VPN and its brokers that are set, a sentence each."""
    out = []
    for of, mine, used, limit, alert, shown in _rows(found):
        if alert in mine["alerts"]:
            share = percent(mine[used], mine[limit])
            out.append(
                f"Alert {alert} of {of}: {shown(mine[used])} of {shown(mine[limit])}, {share} %"
            )
    return out
