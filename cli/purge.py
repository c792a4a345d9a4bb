"""`lakequeue purge`: remove messages from a queue."""

from __future__ import annotations

from pathlib import Path

import click

from .changes import asked_first, which, which_options
from .common import connect, connection_options, json_option, say, say_json


@click.command()
@click.argument("queue")
@which_options
@connection_options
@json_option
def purge(
    queue: str,
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
    """Remove messages of QUEUE for good, leased ones too. Asks first.

    \b
    Examples:
      lakequeue purge orders --where "/state = 'test'"
      lakequeue purge orders --ids 17,20-25 --dry-run
      lakequeue purge orders-dmq --all --yes
    """
    chosen = which(where, ids, everything)
    with connect(url, home, vpn, "purge") as connection:
        admin = connection.admin()
        removed = admin.purge(queue, **chosen, dry_run=True)
        if not dry_run:
            asked_first(removed, f"Remove {{}} from {queue} for good?", yes, as_json)
            removed = admin.purge(queue, **chosen, why=why)
    if dry_run:
        told = {"queue": queue, "would_remove": removed}
        say_json(told) if as_json else say(f"{removed:,} would be removed from {queue}")
    elif as_json:
        say_json({"queue": queue, "removed": removed})
    elif isinstance(removed, int):
        say(f"{removed:,} removed from {queue}")
    else:
        say(f"Removed from {queue}.")
