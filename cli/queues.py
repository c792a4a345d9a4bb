"""`lakequeue queues`, `lakequeue usage` and `lakequeue events`: the state of queues (S3, S8, S9,
B4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..monitor.formatting import clock, number, one_line, size
from ..monitor.queue_details import described
from ..protocol.outputs import is_alert
from .command_options import EngineCall, Number, call_options, option
from .printing import cell, console, json_text, note, say, say_json, table_of
from .signals import stop_on_signals

# Scope, what is used, its limit, the name of its alert, and how it is shown.
ROWS: tuple[tuple[str, str, str, str, Callable[[Any], str]], ...] = (
    ("vpn", "spool_bytes", "max_spool_usage", "spool_usage", size),
    ("broker", "spool_bytes", "max_spool_usage", "spool_usage", size),
    ("broker", "spool_files", "max_spool_files", "spool_files", number),
    ("broker", "delivered_unacked", "max_delivered_unacked", "delivered_unacked", number),
)


@click.command()
@call_options
def usage(call: EngineCall) -> None:
    """Show how much of their limits the VPN and each broker use, which alerts are set, and how many
    messages were refused. Limits apply per broker.

    \b
    Examples:
      lakequeue usage
      lakequeue usage --json | jq .broker
    """
    with call.admin("usage") as admin:
        found, queues = admin.usage(), admin.queues()
    if call.as_json:
        say_json(found)
        return

    table = table_of("of", "what", ">used", ">limit", ">%", "alert")
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
    for queue in queues:
        for reason, count in (queue.get("rejected") or {}).items():
            say(f"{count:,} refused: {reason} by {queue['name']}")


def percent(level: float, limit: float | None) -> str:
    """The used share of a limit in percent; – without a limit."""
    return f"{level * 100 / limit:.1f}" if limit else "–"


def each(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of every running broker."""
    return list(found.get("brokers", {}).values()) or [found]


def _at(one: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The broker's name, if there are several."""
    return f" (broker {one['broker']['name']})" if len(each(found)) > 1 else ""


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for one in each(found):
        for scope, used, limit, alert, shown in ROWS:
            mine = one[scope]
            at = _at(one, found) if scope == "vpn" else ""
            yield f"{scope} {mine['name']}{at}", mine, used, limit, alert, shown


def alerts_of(found: Mapping[str, Any]) -> list[str]:
    """One sentence for each alert that is set."""
    out = []
    for of, mine, used, limit, alert, shown in _rows(found):
        if alert in mine["alerts"]:
            share = percent(mine[used], mine[limit])
            out.append(
                f"Alert {alert} of {of}: {shown(mine[used])} of {shown(mine[limit])}, {share} %"
            )
    return out


@click.command()
@click.argument("queue", required=False)
@option("--watch", is_flag=True, help="Show it repeatedly, until Ctrl-C.")
@option(
    "--every", type=Number(min=0.2), default=2.0, show_default=True, metavar="SECONDS",
    help="With --watch: how often.",
)  # fmt: skip
@call_options
def queues(queue: str | None, watch: bool, every: float, call: EngineCall) -> None:
    """Show every queue, or one QUEUE with its consumers and counters.

    \b
    Examples:
      lakequeue queues
      lakequeue queues orders --watch
      lakequeue queues --json | jq '.[] | {name, depth}'
    """
    live = Live(console=console(), auto_refresh=False)
    with call.connect("queues") as connection:

        def show() -> None:
            found = [described(connection, queue)[0]] if queue else connection.admin().queues()
            if call.as_json:
                say_json(found[0] if queue else found)
                return
            view = shown(found, connection.admin().usage(), alone=bool(queue))
            live.update(view, refresh=True) if watch else console().print(view)

        if not watch:
            show()
            return
        with stop_on_signals() as stop, nullcontext() if call.as_json else live:
            show()
            while not stop.wait(every):
                show()


def shown(found: list[dict[str, Any]], usage: dict[str, Any], alone: bool) -> RenderableType:
    """One queue, or all as a table, and the alerts that are set."""

    return Group(_describe_one(found[0]) if alone else _table(found), *alerts_of(usage))


def _table(described: list[dict[str, Any]]) -> RenderableType:
    if not described:
        return "No queue is defined here."
    several = len({queue["broker"] for queue in described}) > 1
    table = table_of(
        "queue", ">depth", ">ready", ">leased", ">delayed", ">spool", ">consumers", ">oldest",
        "waits: why", "alerts", *(["broker"] if several else []),
    )  # fmt: skip
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
    """States that an operator should notice: alerts (S9, B4), `full` if the next message exceeds
    the quota (S3), and ingress or egress that is shut down (H5)."""
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
    """The used part of a queue's limit, and the limit: in bytes, or in messages if that limit is
    nearer."""
    definition = queue["definition"]
    limit, most = definition["max_spool_usage"], definition["max_spool_messages"]
    if limit and most is not None and queue["depth"] * limit > queue["spool_bytes"] * most:
        return queue["depth"], most
    return queue["spool_bytes"], limit


def _describe_one(queue: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_table([queue]), ""]
    for reason in queue["why"]:
        parts.append(Text(one_line(reason["text"]), style="bold" if reason["stuck"] else ""))
    parts += [""] * bool(queue["why"])
    counts = table_of("", ">")
    for name, value in (queue.get("counters") or {}).items():
        if isinstance(value, Mapping):
            for reason, count in value.items():
                counts.add_row(f"{name}: {reason}", number(count))
        else:
            counts.add_row(name, number(value))
    parts += [counts, ""]
    if queue.get("consumers"):
        consumers = table_of("consumer", "held", "backlog", "filter", "blocked")
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


EVENTS_MAX = 1000  # as many as the engine keeps
COMMON = ("event", "vpn", "queue", "time")


@click.command()
@option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@option(
    "--every", type=Number(min=0.2), default=2.0, show_default=True, metavar="SECONDS",
    help="With --follow: how often to check.",
)  # fmt: skip
@option("--queue", help="Only events of this queue.")
@option("--alerts", is_flag=True, help="Only alerts: ..._high and ..._cleared.")
@option(
    "--limit", type=click.IntRange(0, EVENTS_MAX), default=50, show_default=True,
    help="Show this many of the newest.",
)  # fmt: skip
@call_options
def events(
    follow: bool, every: float, queue: str | None, alerts: bool, limit: int, call: EngineCall
) -> None:
    """Show the newest notable events, oldest first. The engine keeps 1,000.

    The events of single messages are in the Delta table `journal`.

    \b
    Examples:
      lakequeue events
      lakequeue events --follow --alerts
      lakequeue events --json --limit 1000 | jq 'select(.queue == "orders")'
    """

    def wanted(event: dict[str, Any]) -> bool:
        if alerts and not is_alert(event["event"]):
            return False
        return not queue or event["queue"] == queue

    with call.admin("events") as admin, stop_on_signals() as stop:
        seen = admin.events(EVENTS_MAX)
        shown = [event for event in seen if wanted(event)]
        _show(shown[len(shown) - min(limit, len(shown)) :], call.as_json)
        if not shown and not call.as_json:
            note("No such events so far.")
        while follow and not stop.wait(every):
            found = admin.events(EVENTS_MAX)
            _show([event for event in newer(seen, found) if wanted(event)], call.as_json)
            seen = found


def newer(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that are new since the last request. The engine's list grows at the end and is
    truncated at the beginning, so find the longest end of the old list that begins the new one."""
    for start in range(len(before)):
        kept = len(before) - start
        if before[start:] == now[:kept]:
            return now[kept:]
    return now


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    for line in map(json_text if as_json else event_line, found):
        click.echo(line)


def event_line(event: dict[str, Any], to: str = "seconds") -> str:
    """One event as text: time, to this precision, event, queue, details."""
    details = {k: v for k, v in event.items() if k not in COMMON and v not in (None, "")}
    text = " ".join(f"{key}={value}" for key, value in details.items())
    return one_line(
        f"{clock(event['time'], to)}  {event['event']}  {event['queue'] or '–'}  {text}".rstrip()
    )
