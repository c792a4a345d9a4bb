"""`lakequeue doctor`: what is needed, what was found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import (
    connection_options,
    console,
    find_url,
    json_option,
    nearest_home,
    option,
    say_json,
)
from .group import EXIT_FAILED, EnvironmentFault

if TYPE_CHECKING:
    from .doctor import Check


@click.command()
@option("--queue", help="Also whether this queue is there.")
@connection_options
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    queue: str | None,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Check that everything is here that lakequeue needs; exit status 1 if something is not.

    Then whether Kafka answers and the engine lives: with --url or --home something has to run
    there.

    \b
    Examples:
      lakequeue doctor
      lakequeue doctor --home .lakequeue --queue orders
      lakequeue doctor --url kafka://127.0.0.1:9092 --json
    """
    from .doctor import diagnose

    checks = [*diagnose(home), *_presence(url, home, vpn, queue)]
    if as_json:
        say_json(
            [
                {n: getattr(c, n) for n in ("name", "ok", "found", "wanted", "advice")}
                for c in checks
            ]
        )
    else:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("", "check", "found", "wanted", "what to do"):
            table.add_column(column, overflow="fold")
        for check in checks:
            good = "–" if check.advice and not check.required else "[green]ok[/green]"
            sign = good if check.ok else "[red]no[/red]"
            table.add_row(sign, check.name, check.found, check.wanted, check.advice)
        console().print(table)
    if not all(check.ok for check in checks):
        ctx.exit(EXIT_FAILED)


def _presence(
    url: str | None, home: Path | None, vpn: str, queue: str | None
) -> list[Check]:
    """What runs where it was said, or where it would be; a home need not have been started yet."""
    from .presence import presence_checks

    named = bool(url or queue)
    try:
        address = find_url(url, home)
    except EnvironmentFault as fault:
        from .doctor import Check

        return [Check("Kafka", not named, str(fault), "a broker that answers", str(fault), named)]
    required = named or home is not None
    return presence_checks(address, None if url else nearest_home(home), vpn, queue, required)
