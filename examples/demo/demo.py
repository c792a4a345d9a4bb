"""The command `lakequeue demo`: its options, the folder of a demo's files, and its exit status."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click
from click.core import ParameterSource

from ...cli.command_options import Folder, json_option, option
from ...cli.group import EXIT_FAILED
from ...cli.signals import interrupt_on_signals
from ...protocol.errors import LakequeueError
from .blocked_bridge import BridgeDemo
from .flights import FLIGHTS, FlightsDemo

STORIES = ("flights", "bridge")
OF_FLIGHTS = ("count", "everything", "workers", "seed")  # options


@click.command()
@click.argument("story", type=click.Choice(STORIES), default=STORIES[0])
@option("--flights", "count", type=click.IntRange(1, 336_776), default=FLIGHTS, show_default=True,
        help="Number of flights, the first by scheduled departure.")  # fmt: skip
@option("--all", "everything", is_flag=True, help="All 336,776 flights.")
@option("--workers", type=click.IntRange(1, 64), default=4, show_default=True,
        help="Worker processes.")  # fmt: skip
@option("--home", type=Folder(),
        help="Keep everything in this empty directory.  [default: a temporary one]")  # fmt: skip
@option("--seed", type=int, default=0, show_default=True, help="The seed of workers' failures.")
@json_option
@click.pass_context
@interrupt_on_signals()
def demo(
    ctx: click.Context, story: str, count: int, everything: bool, workers: int,
    home: Path | None, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Run queues, break things, and account for every message in the Delta tables.

    Exit status 1 if a message is unaccounted for. All but `bridge` use real Kafka and Spark.

    \b
    flights  New York's flights of 2013 in three queues: barriers, priorities, a killed worker
    bridge   head-of-line blocking over a bridge, and how lanes avoid it; in memory

    \b
    Examples:
      lakequeue demo
      lakequeue demo bridge
      lakequeue demo --flights 2000 --workers 2
      lakequeue demo --all --home flights-demo
    """
    if home is not None and home.is_dir() and any(home.iterdir()):
        raise click.BadParameter(f"{home} is not empty", param_hint="--home")
    if story != "flights":
        _refuse_options_of_flights(ctx)
    if story == "bridge":
        if home is not None:
            raise click.UsageError("--home belongs to the stories on Kafka and Spark.")
        if not BridgeDemo(as_json).run():
            ctx.exit(EXIT_FAILED)
        return
    place = home or Path(tempfile.mkdtemp(prefix="lakequeue-demo-"))
    play = FlightsDemo(place.absolute(), None if everything else count, workers, seed, as_json)
    try:
        good = play.run()
    except KeyboardInterrupt:
        if home is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    except LakequeueError:
        click.echo(f"What was written so far is kept in {place}.", err=True)
        raise
    if home is None and good:
        shutil.rmtree(place, ignore_errors=True)
    elif not as_json:
        click.echo(f"Everything is kept in {place}.")
    if not good:
        ctx.exit(EXIT_FAILED)


def _refuse_options_of_flights(ctx: click.Context) -> None:
    for parameter in ctx.command.params:
        if parameter.name in OF_FLIGHTS:
            source = ctx.get_parameter_source(parameter.name)
            if source is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"{parameter.opts[0]} belongs to the story 'flights'.")
