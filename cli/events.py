"""`lakequeue events`: what happened to queues, consumers and limits; alerts among it (S9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..protocol.outputs import is_alert
from .common import (
    connect,
    connection_options,
    json_option,
    json_text,
    local_time,
    one_line,
    option,
    stop_on_signals,
)

EVENTS_MAX = 1000  # as many as the engine keeps
COMMON = ("event", "vpn", "queue", "time")


@click.command()
@option("--follow", "-f", is_flag=True, help="Then wait for more, until Ctrl-C.")
@option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS",
    help="With --follow: how often to look.",
)  # fmt: skip
@option("--queue", help="Only those of this queue.")
@option("--alerts", is_flag=True, help="Only alerts: ..._high and ..._cleared.")
@option(
    "--limit", type=click.IntRange(0, EVENTS_MAX), default=50, show_default=True,
    help="The newest so many.",
)  # fmt: skip
@connection_options
@json_option
def events(
    follow: bool,
    every: float,
    queue: str | None,
    alerts: bool,
    limit: int,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
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

    with connect(url, home, vpn, "events") as connection, stop_on_signals() as stop:
        admin = connection.admin()
        seen = admin.events(EVENTS_MAX)
        shown = [event for event in seen if wanted(event)]
        _show(shown[len(shown) - min(limit, len(shown)) :], as_json)
        while follow and not stop.wait(every):
            found = admin.events(EVENTS_MAX)
            _show([event for event in newer(seen, found) if wanted(event)], as_json)
            seen = found


def newer(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What has come since: the engine's list grows at its end and is cut at its beginning, so
    the longest end of the one that begins the other was seen."""
    for start in range(len(before)):
        kept = len(before) - start
        if before[start:] == now[:kept]:
            return now[kept:]
    return now


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    for line in map(json_text if as_json else _line, found):
        click.echo(line)


def _line(event: dict[str, Any]) -> str:
    """One event for people: when, what, of which queue, and the details that say something."""
    details = {k: v for k, v in event.items() if k not in COMMON and v not in (None, "")}
    text = " ".join(f"{key}={value}" for key, value in details.items())
    time = local_time(event["time"]).strftime("%Y-%m-%d %H:%M:%S")
    return one_line(f"{time}  {event['event']}  {event['queue'] or '–'}  {text}".rstrip())
