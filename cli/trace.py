"""`lakequeue trace`: the life of a message, and why it waited."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import click

from ..lake import trace as life_of
from .common import counted, json_option, local_time, one_line, say_json
from .sql import asked, home_option

HOLDS = {"leased": "held", "delayed": "delayed", "ready": "waited"}
WORDS = {
    "spooled": "entered", "redelivered": "delivered", "lease_ended": "lease ended",
    "returned": "returned untouched or left behind", "ready": "due again",
    "consumer_rejected": "rejected", "barrier_delivered": "delivered as a barrier",
    "dead_lettered": "moved", "renewed": "lease extended", "ack_ignored": "without effect",
    "deferred_ack": "acknowledged before it came", "lost": "lost",
}  # fmt: skip
GIVEN = {"delivered", "redelivered", "barrier_delivered"}
FROM = {"returned", "lease_ended"}


@click.command()
@click.argument("message_id")
@home_option
@json_option
def trace(message_id: str, home: Path, as_json: bool) -> None:
    """Tell the life of the message MESSAGE_ID in all its queues, and why it waited.

    Reads the Delta tables: while the engine runs, a few seconds behind it, or without one. Times
    are local, with --json UTC.

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


def lines(story: dict[str, Any], zone: tzinfo | None = None) -> Iterator[str]:
    """A story as people read it; times are of the zone, or of this machine's."""
    number, published = story["message_id"], story["published"]
    if published is None:
        yield f"Message {number}; what it was published as is not in the tables"
    else:
        yield (
            f"Message {number}, {counted(published['bytes'], 'byte')}, published "
            f"{_when(published['time'], zone)} to {published['topic']}, partition "
            f"{published['partition']}, offset {published['offset']}"
        )
    for queue in story["queues"]:
        vpn = "" if queue["vpn"] == "default" else f" in the VPN {queue['vpn']}"
        yield f"\n{one_line(queue['queue'] + vpn)}"
        for event in queue["life"]:
            yield f"  {_when(event['time'], zone)}  {one_line(_what(event, zone))}"
            yield from _then(event)


def _what(event: dict[str, Any], zone: tzinfo | None) -> str:
    """One event as people say it."""
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
        text += f", {'due' if state == 'delayed' else 'until'} {_when(event['until'], zone)}"
    return text


def _then(event: dict[str, Any]) -> Iterator[str]:
    """What the message did until the next event, and why."""
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
    yield f"{'':27}{text}"
    for part in parts if len(parts) > 1 else ():
        span = "until now" if part["ms"] is None else _long(part["ms"])
        yield f"{'':29}{span}: {part['why']}"


def _when(time: datetime, zone: tzinfo | None) -> str:
    return local_time(time, zone).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _long(ms: int) -> str:
    """A duration for people."""
    if ms < 1000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.1f} min"
    return f"{ms / 3_600_000:.1f} h"
