"""`lakequeue queues`: what is in the queues, and who consumes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..monitor.formatting import size
from ..monitor.queue_details import described
from .common import (
    cell,
    connect,
    connection_options,
    console,
    json_option,
    number,
    one_line,
    option,
    percent,
    say_json,
    stop_on_signals,
)
from .usage import alerts_of

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@click.argument("queue", required=False)
@option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS",
    help="With --watch: how often.",
)  # fmt: skip
@connection_options
@json_option
def queues(
    queue: str | None,
    watch: bool,
    every: float,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Show every queue, or one QUEUE with its consumers and counters.

    \b
    Examples:
      lakequeue queues
      lakequeue queues orders --watch
      lakequeue queues --json | jq '.[] | {name, depth}'
    """
    with connect(url, home, vpn, "queues") as connection:
        if not watch:
            if as_json:
                described = look(connection, queue)
                say_json(described[0] if queue else described)
            else:
                console().print(look_and_show(connection, queue))
            return
        with stop_on_signals() as stop:
            _watch(connection, queue, every, stop.wait, as_json)


def _watch(connection: Any, queue: str | None, every: float, wait: Any, as_json: bool) -> None:
    if as_json:
        while True:
            described = look(connection, queue)
            say_json(described[0] if queue else described)
            if wait(every):
                return
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(look_and_show(connection, queue), refresh=True)
            if wait(every):
                return


def look(connection: Any, queue: str | None) -> list[dict[str, Any]]:
    """Describe one queue, with the reasons why it does not move, or all."""
    return [described(connection, queue)[0]] if queue else connection.admin().queues()


def look_and_show(connection: Any, queue: str | None) -> RenderableType:
    """What people see: the queues, and the alerts of VPN and broker that are set."""
    found = look(connection, queue)
    return shown(found, connection.admin().usage(), alone=bool(queue))


def shown(found: list[dict[str, Any]], usage: dict[str, Any], alone: bool) -> RenderableType:
    """One queue, or all as a table, and the alerts that are set."""
    from rich.console import Group

    return Group(_one(found[0]) if alone else _table(found), *alerts_of(usage))


def _table(described: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    if not described:
        return "No queue is defined here."
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("queue")
    for column in ("depth", "ready", "leased", "delayed", "spool", "consumers", "oldest"):
        table.add_column(column, justify="right")
    table.add_column("waits: why")
    table.add_column("alerts")
    several = len({queue["broker"] for queue in described}) > 1
    if several:
        table.add_column("broker")
    for queue in described:
        age = queue.get("oldest_age_s")
        table.add_row(
            cell(queue["name"]),
            *(number(queue.get(name)) for name in ("depth", "ready", "leased", "delayed")),
            size(queue.get("spool_bytes")),
            number(len(queue.get("consumers") or ())),
            "–" if age is None else f"{age:,.1f} s",
            cell(queue.get("blocked") or ""),
            ", ".join(alerts(queue)),
            *([queue["broker"] or ", ".join(queue["brokers"])] if several else ()),
        )
    return table


def alerts(queue: Mapping[str, Any]) -> list[str]:
    """What an operator should hear of a queue: alerts that are set (S9, B4), a quota that the next
    message exceeds (S3), and what is shut down (H5)."""
    definition = queue["definition"]
    level, limit = usage_of(queue)
    out = []
    for name in queue["alerts"]:
        out.append(f"{name} {percent(level, limit)} %" if name == "spool_usage" else name)
    usual = level / queue["depth"] if queue["depth"] else 0
    if definition["max_spool_usage"] and level + usual > limit:
        out.append("full")
    out += [f"{side} shut down" for side in ("ingress", "egress") if not queue[side]]
    return out


def usage_of(queue: Mapping[str, Any]) -> tuple[int, int]:
    """How much a queue stores and of how much: bytes, or messages where that limit is nearer."""
    definition = queue["definition"]
    limit, most = definition["max_spool_usage"], definition["max_spool_messages"]
    if limit and most is not None and queue["depth"] * limit > queue["spool_bytes"] * most:
        return queue["depth"], most
    return queue["spool_bytes"], limit


def counters_of(queue: Mapping[str, Any]) -> dict[str, Any]:
    """The counters of a described queue, wherever they stand."""
    return dict(queue.get("counters") or {})


def _one(queue: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [_table([queue]), ""]
    for reason in queue["why"]:
        parts.append(Text(one_line(reason["text"]), style="bold" if reason["stuck"] else ""))
    parts += [""] * bool(queue["why"])
    counts = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    counts.add_column("counter")
    counts.add_column("count", justify="right")
    for name, value in counters_of(queue).items():
        if isinstance(value, Mapping):
            for reason, count in value.items():
                counts.add_row(f"{name}: {reason}", number(count))
        else:
            counts.add_row(name, number(value))
    parts += [counts, ""]
    if queue.get("consumers"):
        consumers = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("consumer", "held", "backlog", "filter", "blocked"):
            consumers.add_column(column)
        for one in queue["consumers"]:
            consumers.add_row(
                cell(one.get("name") or one.get("subscription", "")),
                number(one.get("held")),
                number(one.get("backlog")),
                cell(one.get("filter") or ""),
                (one.get("why") or "yes") if one.get("blocked") else "",
            )
        parts.append(consumers)
    return Group(*parts)
