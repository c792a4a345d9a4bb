"""`lakequeue delete`: a queue with all that is in it (S7)."""

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
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options
@json_option
def delete(
    queue: str, yes: bool, url: str | None, home: Path | None, vpn: str, as_json: bool
) -> None:
    """Delete QUEUE; its messages are gone, not delivered. Asks first.

    If the engine's --config file still names it, the next start defines it again.

    \b
    Examples:
      lakequeue delete orders
      lakequeue delete orders-dmq --yes
    """
    with connect(url, home, vpn, "delete") as connection:
        admin = connection.admin()
        found = admin.describe(queue)
        depth, consumers = found["depth"], len(found["consumers"])
        if not yes:
            held, bound = counted(depth, "message"), counted(consumers, "consumer")
            question = f"{queue} holds {held} and has {bound}. Delete it?"
            click.confirm(one_line(question), abort=True, err=as_json)
        admin.delete(queue)
    if as_json:
        say_json({"queue": queue, "deleted": True, "messages": depth})
    else:
        say(f"{queue} deleted with {counted(depth, 'message')}")
