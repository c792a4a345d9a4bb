"""The commands of `lakequeue bench`."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..cli.signals import interrupt_on_signals
from ..client.kafka import LIBRARIES

TRIGGERS = ("real-time", "micro-batch")


@click.group(name="bench")
def command() -> None:
    """Measure this installation; each benchmark prints a table.

    Example: lakequeue bench latency --json
    """


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print what was measured. rows: at least one, all with the same keys. If the columns do not
    fit the terminal, each row is printed as a column."""
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
    return (
        f"{value:,.2f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _say(text: str) -> None:
    click.echo(text, err=True)


_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")


def _add(module: str, name: str, title: str, help: str, *options: Callable) -> None:
    """A command that calls ``run`` of a module, which is imported then. Its options are the
    function's arguments, besides ``say``, which reports progress."""

    @interrupt_on_signals()
    def invoke(as_json: bool, **given: Any) -> None:
        run = importlib.import_module(f".{module}", __package__).run
        show(title, run(**given, say=_say), as_json)

    body: Callable = invoke
    for option in (*reversed(options), _json):
        body = option(body)
    command.command(name=name, help=help, short_help=title)(body)


def _numbers(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Numbers with commas between; each above the one before."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or found != sorted(set(found)):
        raise click.BadParameter(
            f"{text!r} is no list of growing numbers, such as 100000,1000000",
        )
    return found


def _count(name: str, default: int, help: str | None = None) -> Callable:
    return click.option(
        name, type=click.IntRange(min=1), default=default, show_default=True, help=help
    )


def _messages(default: int) -> Callable:
    return _count("--messages", default=default, help="How many.")


def _trigger() -> Callable:
    return click.option(
        "--trigger", type=click.Choice([*TRIGGERS, "both"]), default=TRIGGERS[0],
        show_default=True, help="How the engine steps; a row for each.",
    )  # fmt: skip


_add(
    "core", "core", "The pure step alone, µs per message",
    "The pure step: µs of CPU per message to publish, deliver and acknowledge.",
    _messages(200_000), _count("--batch", default=10_000),
)  # fmt: skip
_add(
    "bridge_cost", "bridge", "A bridge between two homes, µs per message",
    "A message over a bridge to another home, without Kafka: µs of CPU at both ends.",
    _messages(50_000), _count("--batch", default=50),
    _count("--destinations", default=1),
)  # fmt: skip
_add(
    "depth", "depth", "The same traffic at growing depth",
    "The cost of 1,000 messages in and 1,000 acked, as the queue grows deeper.",
    click.option("--depths", default="1000,100000,1000000", show_default=True, callback=_numbers),
    _count("--rounds", default=25),
    click.option("--trigger", type=click.Choice(TRIGGERS), default=TRIGGERS[0], show_default=True),
)  # fmt: skip
_add(
    "celery", "celery", "Celery with empty tasks, beside Redis and RabbitMQ",
    "Celery with empty tasks: tasks per second, the time from `delay()` to the start, CPU of all "
    "processes; beside Redis and RabbitMQ if they are installed.",
    _count("--tasks", default=15_000, help="How many."),
)  # fmt: skip
_add(
    "churn", "churn", "The checkpoint after messages came and went",
    "Bytes of the checkpoint after more and more messages came and went.",
    click.option("--counts", default="100000,1000000", show_default=True, callback=_numbers,
                 help="Messages in all, each time the size is taken."),
)  # fmt: skip
_add(
    "latency", "latency", "Publish to received, ms",
    "Publish to received at a steady rate, 1 KB, two consumers; beside Kafka alone.",
    _count("--rate", default=1000, help="Messages a second."),
    _count("--seconds", default=20),
    _trigger(),
)  # fmt: skip
_add(
    "throughput", "throughput", "Producers and two consumers at once, 1 KB, persistent",
    "Producers and two consumers at once; then a backlog first, consumers after; beside Kafka "
    "alone.",
    _messages(100_000),
    _trigger(),
)  # fmt: skip
_add(
    "recovery", "recovery", "The time from a kill to the next delivery, ms",
    "Kills the workers, then the whole engine: ms until a message sent after that is received.",
    _count("--rate", default=200, help="Messages a second."),
    _count("--seconds", default=15, help="Traffic before each kill."),
    click.option("--trigger", type=click.Choice(TRIGGERS), default=TRIGGERS[0], show_default=True),
)  # fmt: skip
_add(
    "scale", "scale", "The same traffic through more brokers",
    "The same traffic through 1, 2 and 4 brokers: messages per second, CPU per message, and how "
    "many cores were used.",
    _messages(200_000),
    click.option("--counts", default="1,2,4", show_default=True, callback=_numbers,
                 help="Numbers of brokers."),
    click.option(
        "--spread", is_flag=True,
        help="Instead: the time of receipts for topics whose queues are on one broker, and on two, "
        "with a hundredth of the messages.",
    ),
)  # fmt: skip
_add(
    "burst", "burst", "Everything at once, beside steady traffic",
    "All messages of a queue expire at once, are redriven and purged; then large ones come in. "
    "Shows the longest step, the worker's memory, and the delay of another queue's messages.",
    _messages(1_000_000),
    _count("--rate", default=100, help="Messages a second elsewhere."),
    click.option("--trigger", type=click.Choice(TRIGGERS), default=TRIGGERS[0], show_default=True),
)  # fmt: skip
_add(
    "flood", "flood", "A tenant's flood, beside another tenant's traffic",
    "One VPN sends a flood: garbage, acks for unknown ids, subscriptions, session names. Shows the "
    "delay of another VPN's messages, and the worker's memory.",
    _count("--commands", default=1_000_000, help="Commands of the flood."),
    _count("--rate", default=100, help="Messages a second elsewhere."),
    click.option("--trigger", type=click.Choice(TRIGGERS), default=TRIGGERS[0], show_default=True),
)  # fmt: skip
_add(
    "idle_queues", "idle-queues", "The cost of queues that nobody uses",
    "Ten queues, then thousands of which ten are used: the time of a start and of a step.",
    click.option("--counts", default="10,10000", show_default=True, callback=_numbers,
                 help="Queues, in each run."),
    _count("--used", default=10, help="How many of them have traffic."),
    _count("--rate", default=200, help="Messages a second, in all."),
    _count("--seconds", default=20),
)  # fmt: skip
_add(
    "client", "client", "The client alone, against a peer that only answers, 1 KB",
    "The cost of the client itself: one process sends, then receives and acks.",
    _messages(100_000),
    click.option("--library", type=click.Choice(LIBRARIES), default=LIBRARIES[0],
                 show_default=True),
)  # fmt: skip
_add(
    "questions", "sql", "Questions to the tables, seconds each",
    "How long `lakequeue sql` and `trace` take over a journal of so many messages.",
    _messages(1_000_000),
)  # fmt: skip
_add(
    "lake_speed", "tables", "The same traffic with the Delta tables and without, 1 KB",
    "The tables' cost, lag and size, and how long a rebuild takes.",
    _messages(400_000),
    _count("--queued", default=1_000_000,
                 help="Messages in the queues when `queued` is asked."),
)  # fmt: skip
