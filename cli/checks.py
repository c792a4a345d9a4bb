"""`lakequeue doctor`: what is needed, what was found."""

from __future__ import annotations

from pathlib import Path

import click

from .common import console, json_option, option, say_json
from .group import EXIT_FAILED


@click.command()
@option(
    "--home", type=click.Path(file_okay=False, path_type=Path), envvar="LAKEQUEUE_HOME",
    help="Also look at this home directory.",
)  # fmt: skip
@json_option
@click.pass_context
def doctor(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """Check that everything is here that lakequeue needs; exit status 1 if something is not.

    \b
    Examples:
      lakequeue doctor
      lakequeue doctor --home .lakequeue --json
    """
    from .doctor import diagnose

    checks = diagnose(home)
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
            sign = "[green]ok[/green]" if check.ok else "[red]no[/red]"
            advice = "" if check.ok else check.advice or ""
            table.add_row(sign, check.name, str(check.found), str(check.wanted), advice)
        console().print(table)
    if not all(check.ok for check in checks):
        ctx.exit(EXIT_FAILED)
