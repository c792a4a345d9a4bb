"""What commands share: options, the address to connect to, signals, output for programs."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from .group import EnvironmentFault

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_URL = "kafka://127.0.0.1:9092"
DEFAULT_HOME = ".lakequeue"
ADDRESS_FILE = "address"
PLAIN_WIDTH = 200

Function = TypeVar("Function", bound=Callable[..., Any])

# An option whose environment variable is shown in the help.
option = functools.partial(click.option, show_envvar=True)

json_option = option(
    "--json", "as_json", is_flag=True, envvar="LAKEQUEUE_JSON", help="JSON for programs."
)


def connection_options(command: Function) -> Function:
    """Add --url, --home and --vpn, which say where the engine is."""
    command = option(
        "--vpn", default="default", envvar="LAKEQUEUE_VPN", show_default=True,
        help="The message VPN, the tenant's namespace.",
    )(command)  # fmt: skip
    command = option(
        "--home", type=click.Path(file_okay=False, path_type=Path), envvar="LAKEQUEUE_HOME",
        help="The home of a running `lakequeue up`, to find its address.",
    )(command)  # fmt: skip
    return option(
        "--url", envvar="LAKEQUEUE_URL",
        help="Where the engine's Kafka is: kafka://host:port, or host:port alone.  "
        f"[default: that of --home, else {DEFAULT_URL}]",
    )(command)  # fmt: skip


def find_url(url: str | None, home: Path | None) -> str:
    """The address to connect to.

    The command line wins over the environment, and an address over a home; then comes a home that
    stands in this directory, then the default.
    """
    source = click.get_current_context().get_parameter_source
    home_is_nearer = (
        source("home") is ParameterSource.COMMANDLINE
        and source("url") is not ParameterSource.COMMANDLINE
    )
    if url and not home_is_nearer:
        return url if "://" in url else f"kafka://{url}"
    if home is not None:
        address = home / ADDRESS_FILE
        if not address.is_file():
            raise EnvironmentFault(
                f"Nothing runs at the home {home}: start it with `lakequeue up --home {home}`."
            )
        return address.read_text().strip()
    here = Path(DEFAULT_HOME) / ADDRESS_FILE
    return here.read_text().strip() if here.is_file() else DEFAULT_URL


def connect(url: str | None, home: Path | None, vpn: str, client_name: str) -> Any:
    """A connection to the engine, a context manager."""
    import lakequeue

    return lakequeue.connect(find_url(url, home), vpn=vpn, client_name=client_name)


def pairs(values: tuple[str, ...], option_name: str) -> dict[str, str]:
    """``k=v`` options as a mapping."""
    out: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            problem = f"{value!r} is not of the form key=value"
            raise click.BadParameter(problem, param_hint=option_name)
        out[key] = text
    return out


def console(stderr: bool = False) -> Console:
    """A console of rich; plain, and wide enough for any table, where it is no terminal."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False)
    if not out.is_terminal:
        out.width = PLAIN_WIDTH
    return out


def say_json(value: object) -> None:
    """One JSON value on one line of standard output, at once."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        shown = payload_fields(bytes(value))
        return shown["payload"] if "encoding" not in shown else shown
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def payload_fields(payload: bytes) -> dict[str, str]:
    """A payload for JSON: text, or base64 with ``encoding`` where it is not UTF-8."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def number(value: int | float | None) -> str:
    """A number for people: thousands apart; nothing for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: float | None) -> str:
    """A size for people, in powers of ten."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event; a second one interrupts at once.

    Works in the main thread only; elsewhere the event is just an event.
    """
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM interrupts like Ctrl-C: for phases that cannot look at an event."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def note(text: str) -> None:
    """A line for people on standard error."""
    print(text, file=sys.stderr, flush=True)
