"""`lakequeue edit`: change headers of messages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .changes import asked_first, left, which, which_options
from .common import connect, connection_options, json_option, option, pairs, say, say_json


@click.command()
@click.argument("queue")
@option("--header", "-H", "headers", multiple=True, metavar="NAME=TEXT", help="Set this header.")
@option("--remove", multiple=True, metavar="NAME", help="Remove this header.")
@which_options
@connection_options
@json_option
def edit(
    queue: str,
    headers: tuple[str, ...],
    remove: tuple[str, ...],
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
    """Change headers of messages of QUEUE. Asks first.

    The same message in another queue stays as it is. Who holds one sees it at the next delivery.

    \b
    Examples:
      lakequeue edit orders --header checked=yes --where '/price > 10' --dry-run
      lakequeue edit orders --remove trace --ids 17-23 --yes
    """
    chosen = which(where, ids, everything)
    new: dict[str, str | None] = {**pairs(headers, "--header"), **dict.fromkeys(remove)}
    with connect(url, home, vpn, "edit") as connection:
        admin = connection.admin()
        done = admin.edit(queue, new, **chosen, dry_run=True, why=why)
        if not dry_run:
            asked_first(done.count, f"Change the headers of {{}} of {queue}?", yes, as_json)
            done = admin.edit(queue, new, **chosen, why=why)
    if as_json:
        say_json({"queue": queue, "dry_run": dry_run, **asdict(done)})
        return
    say(f"{done.count:,} {'would be edited' if dry_run else 'edited'} in {queue}")
    if done.stayed:
        say(f"{done.stayed:,} not: {left(done.why)}")
