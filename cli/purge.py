"""`lakequeue purge`: remove messages from a queue."""

from __future__ import annotations

from pathlib import Path

import click

from .common import (
    connect,
    connection_options,
    counted,
    json_option,
    one_line,
    option,
    say,
    say_json,
)


@click.command()
@click.argument("queue")
@option("--where", metavar="EXPRESSION", help="Remove such messages: '/price < 0'.")
@option("--all", "everything", is_flag=True, help="Remove every message.")
@option("--dry-run", is_flag=True, help="Remove nothing; say how many it would be.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@option("--why", default="", metavar="TEXT", help="For the journal, beside who you are.")
@connection_options
@json_option
def purge(
    queue: str,
    where: str | None,
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
      lakequeue purge orders-dmq --all --yes
    """
    if everything == (where is not None):
        raise click.UsageError("say which messages: either --where EXPRESSION or --all")
    with connect(url, home, vpn, "purge") as connection:
        admin = connection.admin()
        if not yes and not dry_run:
            depth = admin.describe(queue)["depth"]
            what = "all of them" if everything else f"those where {where}"
            question = f"{queue} holds {counted(depth, 'message')}. Remove {what} for good?"
            click.confirm(one_line(question), abort=True, err=as_json)
        removed = admin.purge(queue, where=where, dry_run=dry_run, why=why)
    if dry_run:
        told = {"queue": queue, "would_remove": removed}
        say_json(told) if as_json else say(f"{removed:,} would be removed from {queue}")
    elif as_json:
        say_json({"queue": queue, "removed": removed})
    elif isinstance(removed, int):
        say(f"{removed:,} removed from {queue}")
    else:
        say(f"Removed from {queue}.")
