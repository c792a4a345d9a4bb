"""`lakequeue shutdown`: close a queue's entrance or exit, and open them again (H5)."""

from __future__ import annotations

from pathlib import Path

import click

from .common import connect, connection_options, json_option, option, say, say_json


@click.command()
@click.argument("queue")
@option("--ingress/--open-ingress", default=None, help="Take no message in, or take them again.")
@option("--egress/--open-egress", default=None, help="Deliver none, or deliver again.")
@connection_options
@json_option
def shutdown(
    queue: str,
    ingress: bool | None,
    egress: bool | None,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Shut down or open QUEUE's ingress or egress.

    While ingress is shut down, messages are discarded, or refused if the queue has
    reject_msg_to_sender_on_discard: including-when-shutdown. While egress is, consumers may settle
    what they hold and get nothing new.

    \b
    Examples:
      lakequeue shutdown orders --ingress
      lakequeue shutdown orders --open-ingress --egress
    """
    if ingress is None and egress is None:
        raise click.UsageError("say what: --ingress, --egress, --open-ingress, --open-egress")
    with connect(url, home, vpn, "shutdown") as connection:
        admin = connection.admin()
        found = admin.describe(queue)
        closed = {
            "ingress": not found["ingress"] if ingress is None else ingress,
            "egress": not found["egress"] if egress is None else egress,
        }
        admin.shutdown(queue, **closed)
    if as_json:
        say_json({"queue": queue, "shut_down": closed})
        return
    states = (f"{side} {'shut down' if shut else 'open'}" for side, shut in closed.items())
    say(f"{queue}: {', '.join(states)}")
