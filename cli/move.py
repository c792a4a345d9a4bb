"""`lakequeue move`: put messages into another queue."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .changes import asked_first, left, which, which_options
from .common import connect, connection_options, json_option, say, say_json


@click.command()
@click.argument("queue")
@click.argument("to")
@which_options
@connection_options
@json_option
def move(
    queue: str,
    to: str,
    where: str | None,
    ids: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    why: str,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Put messages of QUEUE into the queue TO. Asks first.

    They keep their ids, payloads and headers, and come behind what is there. What a consumer holds
    stays, and so does what TO does not take; that is told.

    \b
    Examples:
      lakequeue move orders orders-2 --where "/region = 'west'" --dry-run
      lakequeue move orders orders-2 --ids 17,20-25 --yes --why "wrong address"
    """
    chosen = which(where, ids, everything)
    with connect(url, home, vpn, "move") as connection:
        admin = connection.admin()
        done = admin.move(queue, to, **chosen, dry_run=True, why=why)
        if not dry_run:
            asked_first(done.count, f"Move {{}} from {queue} to {to}?", yes, as_json)
            done = admin.move(queue, to, **chosen, why=why)
    if as_json:
        say_json({"queue": queue, "to": to, "dry_run": dry_run, **asdict(done)})
        return
    say(f"{done.count:,} {'would be moved' if dry_run else 'moved'} to {to}")
    if done.stayed:
        say(f"{done.stayed:,} {'would stay' if dry_run else 'stayed'}: {left(done.why)}")
