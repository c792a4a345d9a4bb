"""`lakequeue up`: an embedded Kafka broker and the engine, in one directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import DEFAULT_HOME, json_option, option
from .service import Progress, environment_faults, in_the_foreground, run_engine

if TYPE_CHECKING:
    from ..definitions import Configuration

PORT = 9092
PACKAGE_CONFIGURATION = Path(__file__).resolve().parent.parent / "conf" / "queues.yaml"


@click.command()
@option(
    "--home", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT_HOME,
    show_default=True, envvar="LAKEQUEUE_HOME",
    help="Directory for everything: broker data, checkpoint, tables, logs.",
)  # fmt: skip
@option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), default=PACKAGE_CONFIGURATION,
    envvar="LAKEQUEUE_CONFIG",
    help="The queues, as a YAML file.  [default: conf/queues.yaml of the package]",
)  # fmt: skip
@option(
    "--port", type=click.IntRange(0, 65_535), envvar="LAKEQUEUE_PORT",
    help=f"Kafka's port; 0 takes a free one.  [default: the one this home had, else {PORT}]",
)  # fmt: skip
@json_option
def up(home: Path, config: Path, port: int | None, as_json: bool) -> None:
    """Start an embedded Kafka broker and the engine, and run until SIGTERM or Ctrl-C.

    Everything is kept in the home directory; started again, it continues where it stopped.
    The end is orderly: the batch is finished and nothing is lost.

    \b
    Examples:
      lakequeue up
      lakequeue up --home /var/lib/lakequeue --config queues.yaml --port 0
      lakequeue up --json | head -1      # the addresses, for programs
    """
    from ..conf import load

    configuration = load(config)  # Q7: a broken file starts nothing
    home = home.expanduser().absolute()
    with in_the_foreground(home, as_json) as progress:
        _run(home, configuration, _port(home, port), as_json, progress)


def _port(home: Path, port: int | None) -> int:
    """The port to ask for; 0 lets the broker take the one that its home had before."""
    if port is not None:
        return port
    return 0 if (home / "kafka" / "ports.json").is_file() else PORT


def _run(
    home: Path, configuration: Configuration, port: int, as_json: bool, progress: Progress
) -> None:
    from ..streaming import Engine
    from ..streaming.kafka_broker import EmbeddedKafka

    with environment_faults():
        progress("Starting Kafka …")
        kafka = EmbeddedKafka(home / "kafka", port, progress=progress)
        kafka.start()
    try:
        engine = Engine(kafka.bootstrap_servers, home, configuration, progress=progress)
        run_engine(engine, home, kafka.bootstrap_servers, as_json, progress)
    finally:
        kafka.stop()
