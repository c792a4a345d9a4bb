"""`lakequeue up` (with an embedded Kafka broker) and `lakequeue run` (on an existing Kafka and
Spark).

Also shared with `lakequeue submit`: the engine's options, and checks before the start. Without
these checks Spark would try for a minute to reach a missing master and then print a stack trace,
and a port in use would stop the engine after everything has started. A new home on topics that
another engine serves, for example if --home was forgotten, would start a second log of steps.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..conf import load
from ..conf.client_keys import client_keys
from ..definitions import Configuration
from ..protocol.errors import LakequeueError
from ..protocol.home_places import ABOUT
from ..streaming.engine_settings import TRIGGERS, EngineSettings
from ..streaming.home.home_folder import HomeFolder
from ..streaming.kafka.embedded_kafka import EmbeddedKafka, free_port, known_ports, port_is_free
from ..streaming.kafka.kafka_watch import KafkaWatch
from .command_options import gathered, home_option, json_option, option, pairs
from .group import EnvironmentFault
from .presence import heartbeat, who
from .service import environment_faults, in_the_foreground, port_fault, progress, run_engine

PACKAGE_CONFIGURATION = Path(__file__).resolve().parent.parent / "conf" / "queues.yaml"
CONNECT_SECONDS_MAX = 5.0
HEARTBEAT_S = 5.0  # the engine sends one every 2 s
SPARK = "spark://"
MASTER = re.compile(r"spark://.+|k8s://.+|yarn|local(-cluster)?(\[.+\])?")
PORT = 9092
KAFKA_STOP_S = 2.0  # after the engine has ended, Kafka has nothing left to write


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options that `up`, `run` and `submit` share."""

    home: Path
    config: Path
    trigger: str | None
    settings: tuple[str, ...]
    accept: bool
    as_json: bool

    def configuration(self) -> Configuration:
        """Load the configuration. A wrong file starts nothing (Q7)."""
        return load(self.config)

    def absolute_home(self) -> Path:
        """The absolute path of the home."""
        return self.home.expanduser().absolute()

    def engine_settings(self) -> dict[str, str]:
        """The engine's settings; `--trigger` and `--accept-other-kafka` are short forms. Raises
        ConfigError for a wrong setting, before anything starts."""
        found, trigger = pairs(self.settings, "--set"), self.trigger
        if trigger is not None and found.setdefault("lakequeue.trigger", trigger) != trigger:
            other = found["lakequeue.trigger"]
            raise click.UsageError(
                f"--trigger {trigger} and --set lakequeue.trigger={other} contradict each other."
            )
        if self.accept:
            found["lakequeue.other_kafka"] = "accept"
        EngineSettings(found)
        return found


config_option = option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), default=PACKAGE_CONFIGURATION,
    envvar="LAKEQUEUE_CONFIG",
    help="The queues, as a YAML file.  [default: conf/queues.yaml of the package]",
)  # fmt: skip


def engine_options(home_help: str) -> Callable[[Any], Any]:
    """Add --home, --config, --trigger, --set, --accept-other-kafka and --json."""
    return gathered(
        EngineOptions, "given",
        home_option(home_help),
        config_option,
        option(
            "--trigger", type=click.Choice(TRIGGERS), envvar="LAKEQUEUE_TRIGGER",
            help="How the engine runs its steps: in its own loop, or once per Spark batch."
            "  [default: real-time]",
        ),
        option(
            "--set", "settings", multiple=True, metavar="KEY=VALUE",
            help="A setting of Spark or, with KEY `lakequeue.…`, of the engine; repeatable.",
        ),
        option(
            "--accept-other-kafka", "accept", is_flag=True, envvar="LAKEQUEUE_ACCEPT_OTHER_KAFKA",
            help="Start on another Kafka than this home's, or on an older copy of it. The queues "
            "are kept, and Kafka's records are read from the beginning.",
        ),
        json_option,
    )  # fmt: skip


def spark_master(ctx: click.Context, parameter: click.Parameter, master: str | None) -> str | None:
    """Refuse a wrong master, for which Spark would print a Java stack trace."""
    if master is None or MASTER.fullmatch(master):
        return master
    raise click.BadParameter(
        f"{master!r} is not a Spark master, such as local[4], spark://host:7077, yarn or "
        "k8s://https://host:6443"
    )


def log_format(settings: dict[str, str]) -> str:
    """The format of the engine's log lines."""
    return settings.get("lakequeue.log_format", "text")


def check_kafka(bootstrap: str) -> None:
    """Fail at once if nothing listens at Kafka's address; Spark would try for minutes."""
    if reasons := _silent(bootstrap.split(","), "--bootstrap", "127.0.0.1:9092"):
        raise EnvironmentFault(
            f"No Kafka broker answers ({reasons}): start one, name another with "
            "--bootstrap, or let `lakequeue up` start its own."
        )


def check_master(master: str | None) -> None:
    """Like `check_kafka`, for a standalone Spark master; other clusters report the problem
    themselves."""
    if master is None or not master.startswith(SPARK):
        return
    places = master.removeprefix(SPARK).split(",")
    if reasons := _silent(places, "--master", "spark://spark:7077"):
        raise EnvironmentFault(
            f"No Spark master answers ({reasons}): start one, or name another with --master."
        )


def check_alone(bootstrap: str, home: Path, configuration: Configuration) -> None:
    """Refuse a new home on a Kafka where an engine already serves one of its VPNs."""
    if _has_run(home):  # it knows its topics, and its locks keep others out
        return
    for vpn in sorted(configuration.vpns):
        heard = None
        with contextlib.suppress(LakequeueError):  # no engine has ever served it
            heard = heartbeat(bootstrap, vpn, HEARTBEAT_S)
        if heard is not None:
            raise EnvironmentFault(
                f"An engine serves the VPN {vpn!r} on this Kafka already ({who(heard)}, home "
                f"{heard.get('home', 'unknown')}), and {home} is a new home: stop that one and "
                "start with its --home, or name other VPNs and brokers in the configuration."
            )


def _has_run(home: Path) -> bool:
    """Whether an engine has ever run in this home. A failed start also creates a home."""
    try:
        return bool(json.loads((home / ABOUT).read_text()).get("checkpoints"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True  # the engine reports the problem


def check_ports(settings: Mapping[str, str], *names: str) -> None:
    """Refuse requested ports of this machine that another program uses."""
    for name in names:
        key = f"lakequeue.{name}"
        port = int(settings.get(key, 0))
        if port <= 0:
            continue
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            raise port_fault(key, port, error) from error


def _silent(addresses: Iterable[str], option: str, example: str) -> str:
    """The reasons why no address answers; empty if one does."""
    reasons: list[str] = []
    for address in addresses:
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            problem = f"{address!r} is not host:port, such as {example}"
            raise click.BadParameter(problem, param_hint=option)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS_MAX):
                return ""
        except (OSError, OverflowError) as error:
            reasons.append(f"{address.strip()}: {getattr(error, 'strerror', None) or error}")
    return "; ".join(reasons)


@click.command()
@engine_options("Directory for everything: broker data, checkpoint, tables, logs.")
@option(
    "--port", type=click.IntRange(0, 65_535), envvar="LAKEQUEUE_PORT",
    help=f"Kafka's port; 0 for a free one.  [default: the last one of this home, else {PORT}]",
)  # fmt: skip
def up(given: EngineOptions, port: int | None) -> None:
    """Start an embedded Kafka broker and the engine, and run until SIGTERM or Ctrl-C.

    Everything is stored in the home directory, and the next start continues there. If Kafka or
    Spark dies, it is restarted.

    \b
    Examples:
      lakequeue up
      lakequeue up --home /var/lib/lakequeue --config queues.yaml --port 0
      lakequeue up --set spark.driver.memory=4g --set lakequeue.metrics_port=9400
      lakequeue up --json | head -1      # the addresses, for programs
    """
    from ..streaming import Engine

    configuration, settings = given.configuration(), given.engine_settings()
    client_keys(configuration)  # a missing key starts nothing
    home, as_json = given.absolute_home(), given.as_json
    check_ports(settings, "monitor_port", "metrics_port")
    say = partial(progress, log_format(settings))
    with in_the_foreground(home, as_json):
        with environment_faults():
            HomeFolder(home).open()  # raises what the engine would, before Kafka starts
            say("Starting Kafka …")
            kafka = EmbeddedKafka(home / "kafka", _port(home, port), progress=say)
            kafka.start()
        watch = KafkaWatch(kafka, say)
        watch.start()
        try:
            engine = Engine(
                kafka.bootstrap_servers, home, configuration, settings=settings, progress=say
            )
            page_port = int(settings.get("lakequeue.monitor_port", 0))
            run_engine(engine, home, as_json, lambda: watch.failure, page_port, [kafka.archive])
        finally:
            watch.stop(KAFKA_STOP_S)


def _port(home: Path, port: int | None) -> int:
    """The port to request; 0 lets the broker use the last one of its home. If another program uses
    that one, --port 0 gets a free one. Without --port the start is then refused, since clients
    would still use the old port."""
    had = known_ports(home / "kafka").get("port", 0)
    if port is None:
        return 0 if had else PORT
    return free_port() if port == 0 and had and not port_is_free(had) else port


@click.command()
@engine_options("Directory for checkpoint, tables, logs.")
@option(
    "--bootstrap", default="127.0.0.1:9092", show_default=True, envvar="LAKEQUEUE_BOOTSTRAP",
    help="Kafka's addresses, host:port, separated by commas.",
)  # fmt: skip
@option(
    "--master", envvar="LAKEQUEUE_MASTER", callback=spark_master,
    help="Spark's master, such as local[4] or spark://host:7077.  [default: conf/spark.conf's]",
)  # fmt: skip
def run(given: EngineOptions, bootstrap: str, master: str | None) -> None:
    """Run the engine on an existing Kafka and Spark until SIGTERM or Ctrl-C.

    \b
    Examples:
      lakequeue run --bootstrap kafka-1:9092,kafka-2:9092 --config queues.yaml
      lakequeue run --bootstrap kafka:9092 --master spark://spark:7077 \\
          --set spark.executor.memory=4g --home /data/lakequeue
    """
    configuration, settings = given.configuration(), given.engine_settings()
    client_keys(configuration)  # a missing key starts nothing
    home, as_json = given.absolute_home(), given.as_json
    check_kafka(bootstrap)
    check_master(master)
    check_alone(bootstrap, home, configuration)
    check_ports(settings, "metrics_port")
    with in_the_foreground(home, as_json):
        from ..streaming import Engine

        engine = Engine(
            bootstrap, home, configuration,
            master=master, settings=settings, progress=partial(progress, log_format(settings)),
        )  # fmt: skip
        run_engine(engine, home, as_json)
