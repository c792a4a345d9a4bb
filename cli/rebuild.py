"""`lakequeue rebuild`: a working home from the Delta tables (R3)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ..lake import NoLake
from ..lake.rebuilding import rebuild as made_again
from .common import DEFAULT_HOME, counted, json_option, note, option, say_json
from .environment_fault import EnvironmentFault

FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@option("--from", "source", type=FOLDER, default=DEFAULT_HOME, show_default=True,
        help="The home whose tables are read.")  # fmt: skip
@option("--home", type=FOLDER, required=True, help="The home to make; may be the same one.")
@json_option
def rebuild(source: Path, home: Path, as_json: bool) -> None:
    """Make a working home from the Delta tables when the checkpoint is gone. Stop the engine first.

    The queues are as the tables last knew them, at most a minute before the loss. The engine takes
    in again what came since, so a message of that minute may come twice. Leased messages become
    ready, and deliveries count from nothing.

    \b
    Examples:
      lakequeue rebuild --from .lakequeue --home .lakequeue-2
      lakequeue run --home .lakequeue-2 --bootstrap 127.0.0.1:9092
    """
    try:
        done = made_again(source, home)
    except NoLake as error:
        raise EnvironmentFault(str(error)) from error
    if as_json:
        say_json([asdict(one) for one in done])
        return
    for one in done:
        for text in one.notes:
            note(text)
        when = one.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        click.echo(
            f"{one.broker}: {counted(one.messages, 'message')} in {counted(one.queues, 'queue')}, "
            f"behind step {one.step:,} of {when}"
        )
        if one.lost:
            click.echo(
                f"  {counted(one.lost, 'message')} of later steps: Kafka has them, and they come "
                "in once more"
            )
    click.echo(f"Start the engine with --home {home}")
