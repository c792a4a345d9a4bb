"""`lakequeue run`: the engine on a Kafka and a Spark that are there already."""

from __future__ import annotations

from pathlib import Path

import click

from .before_running import check_alone, check_kafka, check_master, check_ports
from .common import option
from .engine_options import engine_options, engine_settings, log_format
from .service import in_the_foreground, run_engine


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
    accept: bool,
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
    given = engine_settings(settings, trigger, accept)
    home = home.expanduser().absolute()
    check_kafka(bootstrap)
    check_master(master)
    check_alone(bootstrap, home, configuration)
    check_ports(given, "metrics_port")
    with in_the_foreground(home, as_json, log_format(given)) as progress:
        from ..streaming import Engine

        engine = Engine(
            bootstrap, home, configuration,
            master=master, settings=given, progress=progress,
        )  # fmt: skip
        run_engine(engine, home, bootstrap, as_json, progress)
