"""`lakequeue up`: an embedded Kafka broker and the engine, in one directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .before_running import check_ports
from .common import option
from .engine_options import engine_options, engine_settings, log_format
from .service import Progress, environment_faults, in_the_foreground, run_engine

if TYPE_CHECKING:
    from ..definitions import Configuration

PORT = 9092
KAFKA_STOP_S = 2.0  # behind the engine's own end there is nothing left that it must write


@click.command()
@engine_options("Directory for everything: broker data, checkpoint, tables, logs.")
@option(
    "--port", type=click.IntRange(0, 65_535), envvar="LAKEQUEUE_PORT",
    help=f"Kafka's port; 0 takes a free one.  [default: the one this home had, else {PORT}]",
)  # fmt: skip
def up(
    home: Path,
    config: Path,
    trigger: str | None,
    settings: tuple[str, ...],
    accept: bool,
    as_json: bool,
    port: int | None,
) -> None:
    """Start an embedded Kafka broker and the engine, and run until SIGTERM or Ctrl-C.

    Everything is kept in the home directory: started again, it continues where it stopped. If
    Kafka or Spark dies, it is restarted.

    \b
    Examples:
      lakequeue up
      lakequeue up --home /var/lib/lakequeue --config queues.yaml --port 0
      lakequeue up --set spark.driver.memory=4g --set lakequeue.metrics_port=9400
      lakequeue up --json | head -1      # the addresses, for programs
    """
    from ..conf import load

    configuration = load(config)  # Q7: a broken file starts nothing
    given = engine_settings(settings, trigger, accept)
    home = home.expanduser().absolute()
    check_ports(given, "monitor_port", "metrics_port")
    with in_the_foreground(home, as_json, log_format(given)) as progress:
        _run(home, configuration, _port(home, port), given, as_json, progress)


def _port(home: Path, port: int | None) -> int:
    """The port to ask for; 0 lets the broker take the one that its home had before."""
    if port is not None:
        return port
    return 0 if (home / "kafka" / "ports.json").is_file() else PORT


def _page_port(settings: dict[str, str]) -> int | None:
    """Of the page: `lakequeue.monitor_port`; -1 for none."""
    port = int(settings.get("lakequeue.monitor_port", 0))
    return port if port >= 0 else None


def _run(
    home: Path,
    configuration: Configuration,
    port: int,
    settings: dict[str, str],
    as_json: bool,
    progress: Progress,
) -> None:
    from ..streaming import Engine
    from ..streaming.home import HomeFolder
    from ..streaming.kafka_broker import EmbeddedKafka
    from ..streaming.kafka_watch import KafkaWatch

    with environment_faults():
        HomeFolder(home).open()  # what the engine would refuse, before Kafka starts
        progress("Starting Kafka …")
        kafka = EmbeddedKafka(home / "kafka", port, progress=progress)
        kafka.start()
    watch = KafkaWatch(kafka, progress.note)
    watch.start()
    try:
        engine = Engine(
            kafka.bootstrap_servers, home, configuration, settings=settings, progress=progress
        )
        run_engine(
            engine, home, kafka.bootstrap_servers, as_json, progress, lambda: watch.failure,
            _page_port(settings), [kafka.archive],
        )  # fmt: skip
    finally:
        watch.stop(KAFKA_STOP_S)
