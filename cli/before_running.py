"""What must be so before `up`, `run` and `submit` start an engine, said at once.

Spark tries for a minute to reach a master that is not there, and says it in a stack trace. And a
home that has no state yet, on topics that an engine serves, would begin their steps anew beside it:
whoever forgets --home does that. A port that another program has would be noticed when everything
has started, and end it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..protocol.errors import LakequeueError
from .environment_fault import EnvironmentFault
from .presence import heartbeat, who

if TYPE_CHECKING:
    from ..definitions import Configuration

CONNECT_SECONDS_MAX = 5.0
HEARTBEAT_S = 5.0  # one comes every 2 s
SPARK = "spark://"


def check_kafka(bootstrap: str) -> None:
    """Refuse at once what nobody listens on; Spark would try for minutes."""
    if reasons := _silent(bootstrap.split(","), "--bootstrap", "127.0.0.1:9092"):
        raise EnvironmentFault(
            f"No Kafka broker answers ({reasons}): start one, name another with "
            "--bootstrap, or let `lakequeue up` start its own."
        )


def check_master(master: str | None) -> None:
    """The same of Spark's own master; of other clusters Spark says it itself."""
    if master is None or not master.startswith(SPARK):
        return
    places = master.removeprefix(SPARK).split(",")
    if reasons := _silent(places, "--master", "spark://spark:7077"):
        raise EnvironmentFault(
            f"No Spark master answers ({reasons}): start one, or name another with --master."
        )


def check_alone(bootstrap: str, home: Path, configuration: Configuration) -> None:
    """Refuse a new home on a Kafka where an engine serves one of its VPNs."""
    from ..streaming.home import ABOUT

    if (home / ABOUT).exists():  # it knows its topics, and its locks keep two from it
        return
    for vpn in sorted({*configuration.vpns, *(queue.vpn for queue in configuration.queues)}):
        heard = None
        with contextlib.suppress(LakequeueError):  # nobody has ever served it
            heard = heartbeat(bootstrap, vpn, HEARTBEAT_S)
        if heard is not None:
            raise EnvironmentFault(
                f"An engine serves the VPN {vpn!r} on this Kafka already ({who(heard)}, home "
                f"{heard.get('home', 'unknown')}), and {home} is a new home: stop that one and "
                "start with its --home, or name other VPNs and brokers in the configuration."
            )


def check_ports(settings: Mapping[str, str], *names: str) -> None:
    """Refuse ports of this machine that were asked for and that another program has."""
    for name in names:
        key = f"lakequeue.{name}"
        port = int(settings.get(key, 0))
        if port <= 0:
            continue
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            raise EnvironmentFault(
                f"{key}: {port} cannot be served ({error.strerror or error}): choose another, or 0 "
                "for a free one"
            ) from error


def _silent(addresses: Iterable[str], option: str, example: str) -> str:
    """Why none of these addresses answers; empty when one does."""
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
