"""`lakequeue redrive`: dead messages go back to where they came from."""

from __future__ import annotations

from pathlib import Path

import click

from .common import connect, connection_options, json_option, option, say, say_json


@click.command()
@click.argument("queue")
@option("--where", metavar="EXPRESSION", help="Such messages: '/price > 10'.")
@option("--ids", metavar="RANGES", help="These messages: '17,20-25'.")
@connection_options
@json_option
def redrive(
    queue: str,
    where: str | None,
    ids: str | None,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Send the dead messages of QUEUE back to the queues they died in.

    They keep their ids, payloads and headers. What cannot go back (its queue is gone, full or shut
    down) stays, and is told; then the exit status is 1.

    \b
    Examples:
      lakequeue redrive orders-dmq
      lakequeue redrive orders-dmq --where "/price > 10"
      lakequeue browse orders-dmq --json | jq -r .id | head -3
      lakequeue redrive orders-dmq --ids 17,20-25
    """
    with connect(url, home, vpn, "redrive") as connection:
        done = connection.admin().redrive(queue, where=where, ids=ids)
    if as_json:
        answer = {"moved": done.moved, "stayed": done.stayed, "queues": done.queues}
        say_json({"queue": queue, **answer, "why": done.why})
    else:
        to = ", ".join(f"{n:,} to {name}" for name, n in sorted(done.queues.items()))
        say(f"{done.moved:,} moved{f': {to}' if to else ''}")
        why = ", ".join(f"{n:,} {reason}" for reason, n in sorted(done.why.items()))
        if done.stayed:
            say(f"{done.stayed:,} stayed in {queue}: {why}")
    if done.stayed:
        click.get_current_context().exit(1)
