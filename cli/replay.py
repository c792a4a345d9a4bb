"""`lakequeue replay`: messages of the past once more, into one queue (R4)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .common import (
    DEFAULT_HOME,
    connect,
    connection_options,
    counted,
    json_option,
    local_time,
    nearest_home,
    note,
    one_line,
    option,
    payload_fields,
    say,
    say_json,
)

PREVIEW_MAX = 80


@click.command()
@click.argument("queue")
@option("--since", metavar="TIME", help="Published then or later; or a message id: from it on.")
@option("--until", metavar="TIME", help="Published then or before.")
@option("--where", metavar="EXPRESSION", help="Such messages: '/price > 10'.")
@option("--ids", metavar="RANGES", help="These messages: '17,20-25'.")
@option("--rate", type=float, metavar="N", help="At most so many a second.")
@option("--dry-run", is_flag=True, help="Publish nothing; say how many, and show some.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@connection_options
@json_option
def replay(
    queue: str,
    since: str | None,
    until: str | None,
    where: str | None,
    ids: str | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Publish messages of the past once more, to QUEUE alone. Asks first.

    Chooses among messages that came for the queue and are no longer in it: acknowledged, expired,
    discarded, purged. They are read from the Delta tables of --home and get new ids and the headers
    lq-replay-of, lq-replay-time and lq-replay-by.

    \b
    Examples:
      lakequeue replay orders --since 2026-11-21T12:00:00Z --until 2026-11-21T18:00:00Z --dry-run
      lakequeue replay orders --since 4711 --where "/region = 'west'" --rate 100 --yes
    """
    if since is None and until is None and where is None and ids is None:
        raise click.UsageError("say which messages: --since, --until, --where or --ids")
    tables = nearest_home(home) or Path(DEFAULT_HOME)
    chosen = {"since": since, "until": until, "where": where, "ids": ids, "home": tables}
    with connect(url, home, vpn, "replay") as connection:
        admin = connection.admin()
        done = admin.replay(queue, **chosen, dry_run=True)
        if not as_json:
            _tell(done)
        if not dry_run:
            if not yes and done.count:
                question = f"Publish {counted(done.count, 'message')} to {queue} once more?"
                click.confirm(one_line(question), abort=True, err=as_json)
            done = admin.replay(
                queue, **chosen, rate=rate, progress=lambda n: note(f"{n:,} published")
            )
    if as_json:
        examples = [{**one, **payload_fields(one["payload"])} for one in done.examples]
        say_json({"queue": queue, "dry_run": dry_run, **asdict(done), "examples": examples})
    elif not dry_run:
        say(f"{done.count:,} published to {queue}")
        for reason, count in sorted(done.refused.items()):
            say(f"{count:,} refused: {reason}")


def _tell(found: object) -> None:
    """How many would come, and some of them."""
    count, begins = found.count, found.begins  # type: ignore[attr-defined]
    if found.left:  # type: ignore[attr-defined]
        note(found.left)  # type: ignore[attr-defined]
    reach = "hold no message" if begins is None else f"begin {local_time(begins):%Y-%m-%d %H:%M}"
    say(f"{counted(count, 'message')} to publish once more; the tables {reach}")
    for one in found.examples:  # type: ignore[attr-defined]
        when = local_time(one["time"]).strftime("%Y-%m-%d %H:%M:%S")
        text = one_line(payload_fields(one["payload"])["payload"])[:PREVIEW_MAX]
        say(f"  {one['id'] or '–':>6}  {when}  {one['event']}  {text}")
