"""Finds out whether Kafka, the engine and a queue are available, and names what is missing.

Kafka: a broker answers at the address. The engine: a heartbeat arrives on `<vpn>.engine` now, so no
clocks are compared. A home on this machine: its lock is held while its `lakequeue up` runs. A
queue: the engine describes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakequeue

from ..monitor.formatting import counted
from ..protocol import topics
from ..protocol.errors import LakequeueError, NotConnected, Timeout
from ..protocol.home_places import ABOUT, TABLES, TABLES_LOCK
from .deployment_checks import clocks_check, versions_check
from .engine_checks import home_problem
from .group import EnvironmentFault
from .machine_checks import Check

HEARTBEAT_WAIT_S = 7.0  # one comes every 2 s, later on a busy machine
KAFKA = "kafka://"
NO_KAFKA = "no Kafka broker answers"
QUESTION = "; is it running?"  # the client's advice; ours replaces it


@contextlib.contextmanager
def explained(address: str, home: Path | None, vpn: str) -> Iterator[None]:
    """Turn a failure to connect into an error that names what is missing."""
    try:
        yield
    except (NotConnected, Timeout) as error:
        if not address.startswith(KAFKA):
            raise
        said = str(error).partition(QUESTION)[0].rstrip(".")
        missing = what_is_missing(address, home, vpn)
        if not missing.startswith(NO_KAFKA) or not said.startswith(NO_KAFKA):
            missing = f"{said}. {missing}"
        raise EnvironmentFault(missing) from error


def what_is_missing(address: str, home: Path | None, vpn: str) -> str:
    """A sentence about what answers, what is missing, and what to do."""
    place = address.removeprefix(KAFKA)
    if problem := kafka_problem(place):
        return f"{problem}. {what_to_start(home)}"
    try:
        heard = heartbeat(place, vpn)
    except LakequeueError:
        return (
            f"Kafka answers at {place}, but no engine has served the VPN {vpn!r} there: is --vpn "
            "right? An engine serves the VPNs in its configuration"
        )
    if heard is None:
        return (
            f"Kafka answers at {place}, but the engine does not run: it sent no heartbeat for "
            f"{HEARTBEAT_WAIT_S:.0f} s. {what_to_start(home)}"
        )
    return (
        f"Kafka answers at {place}, and the engine runs ({who(heard)}), but it does not answer: "
        f"it is starting, overloaded, or hangs; see {heard.get('home', '')}/spark.log there"
    )


def who(heard: dict[str, Any]) -> str:
    """The sender of a heartbeat."""
    return f"process {heard.get('process')} on {heard.get('host')}"


def kafka_problem(place: str) -> str:
    """The reason why no Kafka broker can be reached; empty if one answers."""
    from ..client.kafka.base import require_broker

    try:
        require_broker(place)
    except NotConnected as error:
        return str(error)
    return ""


def heartbeat(place: str, vpn: str, wait_s: float = HEARTBEAT_WAIT_S) -> dict[str, Any] | None:
    """The engine's next heartbeat; None if none comes. Raises LakequeueError if no engine has ever
    served the VPN."""
    from ..client.kafka import open_kafka

    topic = topics.topic(vpn, topics.ENGINE)
    with contextlib.closing(open_kafka(place, "presence")) as transport:
        transport.partitions(topic)  # raises if the topic is missing
        transport.listen(topic, 0)
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            for record in transport.poll(min(left, 0.5)):
                with contextlib.suppress(ValueError):
                    return dict(json.loads(record.value or b"{}"))
    return None


def home_is_held(home: Path) -> bool:
    """Whether a process on this machine holds a lock of the home: its embedded Kafka's, or its
    tables'."""
    for lock in (home / "kafka" / "home.lock", home / TABLES / TABLES_LOCK):
        try:
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
    return False


def what_to_start(home: Path | None) -> str:
    """Advice on how to start the engine, by the state of its home on this machine."""
    if home is None:
        return "Start it with `lakequeue up`, or name its address or home with --url or --home"
    if home_is_held(home):
        return (
            f"The home {home} is in use by a process that is starting, ending or failing: see its "
            "output, and try again"
        )
    if problem := home_problem(home):
        return f"Nothing runs at the home {home}, and it cannot be started as it is: {problem}"
    start = f"start it with `lakequeue up --home {home}`"
    if (home / ABOUT).is_file() and not (home / "kafka").is_dir():  # with an external Kafka
        start = "start it as before, with `lakequeue run` or `lakequeue submit`"
    return f"Nothing runs at the home {home}: {start}"


# ---------------------------------------------------------------- the rows of `lakequeue doctor`


def presence_checks(
    address: str, home: Path | None, vpn: str, queue: str | None, required: bool
) -> list[Check]:
    """Checks of Kafka, the engine, and a queue if one is named. required: an address was given, so
    a missing engine is a fault; otherwise it may just not have been started."""
    if not address.startswith(KAFKA):
        return []
    place = address.removeprefix(KAFKA)
    problem = kafka_problem(place)
    kafka = Check(
        "Kafka", not (problem and required), problem or f"answers at {place}",
        "a broker that answers", what_to_start(home) if problem else "", required,
    )  # fmt: skip
    if problem:
        return [kafka]
    out = [kafka, *_engine_checks(place, home, vpn, required)]
    if queue is not None and engine_lives(out):
        out.append(_queue_check(address, vpn, queue))
    return out


def engine_lives(checks: list[Check]) -> bool:
    """Whether a check found a running engine."""
    return any(check.name == "engine" and check.ok and not check.advice for check in checks)


def _engine_checks(place: str, home: Path | None, vpn: str, required: bool) -> list[Check]:
    wanted = f"a heartbeat on {topics.topic(vpn, topics.ENGINE)}"
    try:
        heard = heartbeat(place, vpn)
    except LakequeueError as error:
        advice = (
            "Start it, if it was never started; else, is --vpn right? An engine serves the VPNs in "
            "its configuration."
        )
        return [Check("engine", not required, f"never here: {error}", wanted, advice, required)]
    if heard is None:
        found = f"none for {HEARTBEAT_WAIT_S:.0f} s"
        return [Check("engine", not required, found, wanted, what_to_start(home), required)]
    lives = Check("engine", True, f"runs: {who(heard)}", wanted, required=required)
    return [lives, clocks_check(heard), versions_check(heard)]


def _queue_check(address: str, vpn: str, queue: str) -> Check:
    wanted = f"{queue} in VPN {vpn}"
    try:
        with lakequeue.connect(address, vpn=vpn, client_name="doctor") as connection:
            look = connection.admin().describe(queue)
    except LakequeueError as error:
        advice = "See `lakequeue queues`; define it with `lakequeue define`."
        return Check("queue", False, str(error), wanted, advice)
    depth = look["depth"]
    return Check("queue", True, counted(depth, "message"), wanted)
