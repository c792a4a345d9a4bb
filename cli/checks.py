"""`lakequeue doctor`: what is needed, what was found."""

from __future__ import annotations

from pathlib import Path

import click

from .common import ADDRESS_FILE, console, json_option, option, say_json
from .engine_options import MASTER, PACKAGE_CONFIGURATION
from .group import EXIT_FAILED


@click.command()
@option(
    "--home", type=click.Path(file_okay=False, path_type=Path), envvar="LAKEQUEUE_HOME",
    help="Also look at this home directory, and at its Kafka while it runs.",
)  # fmt: skip
@option(
    "--url", envvar="LAKEQUEUE_URL",
    help="Also look at the topics of this Kafka: kafka://host:port, or host:port alone.",
)  # fmt: skip
@option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), default=PACKAGE_CONFIGURATION,
    envvar="LAKEQUEUE_CONFIG",
    help="The queues, as a YAML file.  [default: conf/queues.yaml of the package]",
)  # fmt: skip
@option(
    "--master", default=MASTER, show_default=True, envvar="LAKEQUEUE_MASTER",
    help="The Spark that the engine is to run on.",
)  # fmt: skip
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    home: Path | None,
    url: str | None,
    config: Path,
    master: str,
    as_json: bool,
) -> None:
    """Check that everything is here that lakequeue needs; exit status 1 if something is not.

    Looks at this machine; at the home, whether its checkpoint is its own; at Spark, whether each
    broker and the tables have a task slot; at Kafka, whether it keeps what comes in long enough.

    \b
    Examples:
      lakequeue doctor
      lakequeue doctor --home .lakequeue --json
      lakequeue doctor --url kafka-1:9092 --config queues.yaml --master 'local[4]'
    """
    from .doctor import diagnose
    from .engine_checks import load_configuration, look

    checks = diagnose(home)
    checks += look(home, load_configuration(config), master, _bootstrap(url, home))
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


def _bootstrap(url: str | None, home: Path | None) -> str | None:
    """Kafka's address, as far as it was named or runs in the home."""
    file = home / ADDRESS_FILE if home is not None else None
    if url is None and file is not None and file.is_file():
        url = file.read_text().strip()
    return url.removeprefix("kafka://") if url is not None else None
