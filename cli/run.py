"""`lakequeue run`: the engine on a Kafka and a Spark that are there already."""

from __future__ import annotations

import socket
from pathlib import Path

import click

from .common import option
from .engine_options import engine_options, engine_settings, log_format
from .group import EnvironmentFault
from .service import in_the_foreground, run_engine

CONNECT_SECONDS_MAX = 5.0


@click.command()
@engine_options("Directory for checkpoint, tables, logs.")
@option(
    "--bootstrap", default="127.0.0.1:9092", show_default=True, envvar="LAKEQUEUE_BOOTSTRAP",
    help="Kafka's addresses, host:port, separated by commas.",
)  # fmt: skip
@option(
    "--master", envvar="LAKEQUEUE_MASTER",
    help="Spark's master, such as local[4] or spark://host:7077.  [default: conf/spark.conf's]",
)  # fmt: skip
def run(
    home: Path,
    config: Path,
    trigger: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
    master: str | None,
) -> None:
    """Run the engine on an existing Kafka and Spark until SIGTERM or Ctrl-C.

    \b
    Examples:
      lakequeue run --bootstrap kafka-1:9092,kafka-2:9092 --config queues.yaml
      lakequeue run --bootstrap kafka:9092 --master spark://spark:7077 \\
          --set spark.executor.memory=4g --home /data/lakequeue
    """
    from ..conf import load

    configuration = load(config)
    given = engine_settings(settings, trigger)
    home = home.expanduser().absolute()
    check_kafka(bootstrap)
    with in_the_foreground(home, as_json, log_format(given)) as progress:
        from ..streaming import Engine

        engine = Engine(
            bootstrap, home, configuration,
            master=master, settings=given, progress=progress,
        )  # fmt: skip
        run_engine(engine, home, bootstrap, as_json, progress)


def check_kafka(bootstrap: str) -> None:
    """Refuse at once what nobody listens on; Spark would try for minutes."""
    reasons: list[str] = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            raise click.BadParameter(
                f"{address!r} is not host:port, such as 127.0.0.1:9092", param_hint="--bootstrap"
            )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX):
                return
        except (OSError, OverflowError) as error:
            reasons.append(f"{address.strip()}: {getattr(error, 'strerror', None) or error}")
    raise EnvironmentFault(
        f"No Kafka broker answers ({'; '.join(reasons)}): start one, name another with "
        "--bootstrap, or let `lakequeue up` start its own."
    )
