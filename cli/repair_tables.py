"""`lakequeue tables` (check and repair the Delta tables) and `lakequeue rebuild` (a home from them,
R3)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ..lake import NoLake
from ..lake.rebuilding import rebuild as made_again
from ..monitor.formatting import clock, counted
from ..protocol.home_places import tables_place
from ..sinks.table_damage import Table, look_at_tables
from .command_options import DEFAULT_HOME, Folder, home_option, json_option, option
from .group import EnvironmentFault
from .printing import note, say_json


@click.command()
@home_option("The home whose tables are checked.")
@click.option("--repair", is_flag=True, allow_from_autoenv=False,
              help="Repair what is damaged. Stop the engine first.")  # fmt: skip
@json_option
def tables(home: Path, repair: bool, as_json: bool) -> None:
    """Check that a home's Delta tables are undamaged, also while the engine runs.

    --repair makes a damaged table writable again: it moves unreadable versions to tables/.aside and
    removes lost files from the table. The next start of the engine writes missing rows at the end
    of a table again, if Kafka still has them; other lost rows stay lost.

    \b
    Examples:
      lakequeue tables
      lakequeue tables --repair --home /srv/lakequeue
    """
    home = home.expanduser().absolute()
    place, done = tables_place(home), []
    try:
        if repair and place.is_dir():
            from ..streaming.tables.table_repair import repair as mended

            done = mended(home)
        found = look_at_tables(place)
    except OSError as error:
        raise EnvironmentFault(f"The tables {place} cannot be used: {error}") from error
    if not found and not done:
        raise EnvironmentFault(f"{place} has no tables: is {home} the home of an engine?")
    if as_json:
        said = {"repaired": done} if repair else {}
        say_json({"tables": [_json(table) for table in found], **said})
    else:
        _print_report(home, repair, done, found)
    if not all(table.is_whole for table in found):
        raise click.exceptions.Exit(1)


def _print_report(home: Path, repair: bool, done: list[str], found: list[Table]) -> None:
    for line in done:
        note(line)
    for table in found:
        click.echo(table.sentence() or f"table {table.place.name!r}: whole, {_size(table)}")
    if repair:
        click.echo("Start the engine." if done else "Nothing to repair.")
    elif not all(table.is_whole for table in found):
        click.echo(f"Stop the engine and run: lakequeue tables --repair --home {home}")


def _json(table: Table) -> dict[str, object]:
    return {
        "table": table.place.name, "version": table.version, "files": len(table.files),
        "problem": table.sentence() or None,
    }  # fmt: skip


def _size(table: Table) -> str:
    return f"version {table.version:,}, {counted(len(table.files), 'file')}"


@click.command()
@option("--from", "source", type=Folder(), default=DEFAULT_HOME, show_default=True,
        help="The home whose tables are read.")  # fmt: skip
@option("--home", type=Folder(), required=True, help="The home to build; may be the same one.")
@json_option
def rebuild(source: Path, home: Path, as_json: bool) -> None:
    """Build a working home from the Delta tables if the checkpoint is lost. Stop the engine first.

    The queues are as the tables last recorded them, at most a minute before the loss. The engine
    stores later messages again, so a message of that minute may be delivered twice. Leased messages
    become ready, and delivery counts start again.

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
        click.echo(
            f"{one.broker}: {counted(one.messages, 'message')} in {counted(one.queues, 'queue')}, "
            f"after step {one.step:,} of {clock(one.time)}"
        )
        if one.lost:
            click.echo(
                f"  {counted(one.lost, 'message')} of later steps: Kafka still has them; they are "
                "stored again"
            )
    click.echo(f"Start the engine with --home {home}")
