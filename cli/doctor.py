"""`lakequeue doctor`: checks everything that lakequeue needs, with advice."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from .command_options import EngineCall, call_options, option
from .deployment_checks import deployment_checks
from .engine_checks import home_problem, load_configuration, look
from .group import EXIT_FAILED, EnvironmentFault
from .machine_checks import Check, diagnose
from .presence import engine_lives, presence_checks
from .printing import console, say_json, table_of
from .start_engine import config_option, spark_master

KAFKA = "kafka://"


@click.command()
@option("--queue", help="Also check that this queue exists.")
@config_option
@option(
    "--master", envvar="LAKEQUEUE_MASTER", callback=spark_master,
    help="The Spark master that will run the engine.  [default: local, with slots for all]",
)  # fmt: skip
@call_options
@click.pass_context
def doctor(
    ctx: click.Context, queue: str | None, config: Path, master: str | None, call: EngineCall
) -> None:
    """Check everything that lakequeue needs; exit status 1 if something is missing.

    Checks this machine, the home's checkpoint, Spark's task slots, Kafka (topics, retention,
    copies, rights, disk space), the engine, clocks and versions. With --url, or --home of a running
    engine, Kafka and the engine must answer.

    \b
    Examples:
      lakequeue doctor
      lakequeue doctor --home .lakequeue --queue orders
      lakequeue doctor --url kafka-1:9092 --config queues.yaml --master 'local[4]' --json
    """
    presence, bootstrap = _presence(call, queue)
    checks = diagnose(call.home)
    configuration, wrong = load_configuration(config)
    checks += [*wrong, *look(call.home, configuration, master), *presence]
    if bootstrap is not None:
        lives = engine_lives(presence)
        checks += deployment_checks(bootstrap, configuration, call.home, call.vpn, lives)
    if call.as_json:
        names = ("name", "ok", "found", "wanted", "advice")
        say_json([{name: getattr(check, name) for name in names} for check in checks])
    else:
        _show(checks)
    if not all(check.ok for check in checks):
        ctx.exit(EXIT_FAILED)


def _show(checks: list[Check]) -> None:
    table = table_of("", "check", "found", "wanted", "what to do")
    for column in table.columns:
        column.overflow = "fold"
    for check in checks:
        good = "–" if check.advice and not check.required else "[green]ok[/green]"
        sign = good if check.ok else "[red]no[/red]"
        table.add_row(sign, *map(Text, (check.name, check.found, check.wanted, check.advice)))
    console().print(table)


def _presence(call: EngineCall, queue: str | None) -> tuple[list[Check], str | None]:
    """The checks of Kafka and the engine at the named address or home, and Kafka's address if a
    broker answers there. The home may not have been started yet."""
    named = bool(call.url or queue)
    try:
        address = call.find()
    except EnvironmentFault as fault:
        found, advice = str(fault).split(": ", 1)
        if call.home is not None and home_problem(call.home):
            advice = "See checkpoint, above."
        return [Check("Kafka", not named, found, "a broker that answers", advice, named)], None
    required = named or call.home is not None
    checks = presence_checks(address, call.its_home(), call.vpn, queue, required)
    meant = required and bool(checks) and checks[0].ok
    return checks, address.removeprefix(KAFKA) if meant else None
