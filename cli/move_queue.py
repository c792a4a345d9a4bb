"""`lakequeue move-queue`: a queue with its messages to another broker."""

from __future__ import annotations

from pathlib import Path

import click

from .common import connect, connection_options, counted, json_option, option, say, say_json


@click.command("move-queue")
@click.argument("queue")
@click.argument("broker")
@option("--pause", is_flag=True, help="The home rests meanwhile, for some seconds.")
@connection_options
@json_option
def move_queue(
    queue: str, broker: str, pause: bool, url: str | None, home: Path | None, vpn: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Move QUEUE, a LocalQueue, with its messages to BROKER, while it is in use.

    Clients follow by themselves; what consumers hold returns to the queue. Returns when the queue
    has moved. To cancel a move to a broker that stays away, move the queue to where it is. A queue
    that captures plain Kafka topics needs --pause.

    \b
    Examples:
      lakequeue move-queue orders broker-1
      lakequeue queues --json | jq '.[] | {name, broker}'
    """
    with connect(url, home, vpn, "move-queue") as connection:
        admin = connection.admin()
        admin.move_queue(queue, broker, pause)
        depth = admin.describe(queue)["depth"]
    if as_json:
        say_json({"queue": queue, "broker": broker, "messages": depth})
    else:
        say(f"{queue} is on {broker} now, with {counted(depth, 'message')}")
