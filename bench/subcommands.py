"""The command line of the benchmarks: their options, and how their rows are printed.

A benchmark is a module with `OPTIONS`, the parameters of its function `run`, which returns the rows
and gets `say` to report progress. It is imported when it is called; its docstring is its help.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..cli.group import LazyGroup
from ..cli.signals import interrupt_on_signals

TRIGGERS = ("real-time", "micro-batch")

# Name → module, and its line in `lakequeue bench --help`.
BENCHMARKS = {
    "bridge": ("bridge_cost", "A bridge between two homes, µs per message"),
    "burst": ("burst", "Bursts in one queue, beside steady traffic"),
    "celery": ("celery", "Celery with empty tasks, beside Redis and RabbitMQ"),
    "churn": ("churn", "The checkpoint's size after many messages"),
    "client": ("client", "The client alone, against a peer that only answers, 1 KB"),
    "core": ("core", "The pure step alone, µs per message"),
    "depth": ("depth", "The same traffic at growing depth"),
    "flood": ("flood", "A tenant's flood, beside another tenant's traffic"),
    "idle-queues": ("idle_queues", "The cost of unused queues"),
    "latency": ("latency", "Publish to received, ms"),
    "recovery": ("recovery", "The time from a kill to the next delivery, ms"),
    "scale": ("scale", "The same traffic through more brokers"),
    "sql": ("questions", "Queries of the tables, seconds each"),
    "tables": ("lake_speed", "The same traffic with the Delta tables and without, 1 KB"),
    "throughput": ("throughput", "Producers and two consumers at once, 1 KB, persistent"),
}


class Benchmarks(LazyGroup):
    """The group `lakequeue bench`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Build the command of a benchmark; None if there is none with that name."""
        if cmd_name not in BENCHMARKS:
            return None
        name, title = BENCHMARKS[cmd_name]
        module = importlib.import_module(f".{name}", __package__)

        @interrupt_on_signals()
        def measure(as_json: bool, **given: Any) -> None:
            rows = module.run(**given, say=lambda text: click.echo(text, err=True))
            show(title, rows, as_json)

        as_json = click.Option(
            ["--json", "as_json"], is_flag=True, help="One JSON object instead of a table."
        )
        parameters = [*module.OPTIONS, as_json]
        return click.Command(cmd_name, callback=measure, params=parameters, help=module.__doc__)


command = Benchmarks(
    "bench",
    BENCHMARKS,
    help="""Measure this installation; each benchmark prints a table.

    Example: lakequeue bench latency --json
    """,
)


# ---------------------------------------------------------------- options


def count(name: str, default: int, help: str | None = None) -> click.Option:
    """An option for a number from 1 on."""
    return click.Option(
        [name], type=click.IntRange(min=1), default=default, show_default=True, help=help
    )


def messages(default: int) -> click.Option:
    return count("--messages", default, "Number of messages.")


def numbers(name: str, default: str, help: str | None = None) -> click.Option:
    """An option for ascending numbers, separated by commas."""
    return click.Option([name], default=default, show_default=True, callback=_growing, help=help)


def _growing(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or found != sorted(set(found)):
        raise click.BadParameter(
            f"{text!r} is not a list of ascending numbers, such as 100000,1000000",
        )
    return found


def trigger() -> click.Option:
    """``--trigger``; see `harness.triggers`."""
    return click.Option(
        ["--trigger"], type=click.Choice([*TRIGGERS, "both"]), default=TRIGGERS[0],
        show_default=True, help="When the engine runs steps; a row for each.",
    )  # fmt: skip


# ---------------------------------------------------------------- rows


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print the rows of a benchmark. rows: at least one, all with the same keys. If the columns do
    not fit the terminal, each row is printed as a column."""
    if as_json:
        click.echo(json.dumps(rows[0] if len(rows) == 1 else rows))
        return

    console = Console()
    table = Table(title=title)
    for key in rows[0]:
        table.add_column(key, justify="right")
    for row in rows:
        table.add_row(*(_text(v) for v in row.values()))
    unbounded = console.options.update(max_width=10_000)
    if len(rows) == 1 or console.measure(table, options=unbounded).maximum > console.width:
        table = Table("", *("" for _ in rows), title=title, show_header=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for key in rows[0]:
            table.add_row(key, *(_text(row[key]) for row in rows))
    console.print(table)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
