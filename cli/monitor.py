"""`lakequeue monitor` (web page) and `lakequeue top` (terminal): the queues, and the reasons why
they do not move."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click
import lakequeue
from rich.console import Console
from rich.live import Live

from ..monitor.auth import Auth
from ..monitor.engine_figures import EngineFigures
from ..monitor.snapshot import VpnMonitor
from .command_options import WHICH_ENGINE, EngineCall, Number, call_options, gathered, option
from .group import EnvironmentFault, standard
from .printing import console, note, say_json
from .signals import stop_on_signals

if TYPE_CHECKING:
    from ..monitor.server import PageServer
    from ..streaming import Engine

PORT = 9480
CLIENT = "lakequeue-monitor"
EXTRA = "the page needs Python packages: pip install starlette uvicorn jinja2"


@click.command()
@option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; other "
        "than this machine only with a token.")  # fmt: skip
@option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True,
        help="The port; 0 for a free one.")  # fmt: skip
@option("--admin", is_flag=True, help="Allow redriving dead messages from the page. Needs a token.")
@option("--token-file", type=click.File(), metavar="FILE",
        help="A file whose first line is the token that the page asks for.")  # fmt: skip
@option("--metrics", metavar="ADDRESS", help="The address of the engine's metrics.  "
        "[default: that of --home]")  # fmt: skip
@call_options
def monitor(
    host: str,
    port: int,
    admin: bool,
    token_file: TextIO | None,
    metrics: str | None,
    call: EngineCall,
) -> None:
    """Serve a page that shows the queues, and why they do not move, until Ctrl-C.

    With a home on this machine it also traces messages and shows brokers and streaming queries. It
    is read-only without --admin. `lakequeue up` serves it too.

    \b
    Examples:
      lakequeue monitor
      head -c 24 /dev/urandom | base64 > token && chmod 600 token
      lakequeue monitor --admin --token-file token
      lakequeue monitor --url kafka.example.com:9092 --host 0.0.0.0 --token-file token
    """
    with stop_on_signals() as stop:  # also while it starts
        try:
            auth = Auth(token_file.readline().strip() if token_file else None, admin, host)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        vpn_monitor = VpnMonitor(opener(call.find(), call.vpn))
        place = call.its_home()
        monitors, figures = {call.vpn: vpn_monitor}, _figures(metrics, place)
        try:
            server = _server(monitors, auth, place, figures, host, port)
        except OSError as error:
            problem = error.strerror or error
            raise EnvironmentFault(f"{host}:{port}: {problem}: choose --port") from error
        server.start()
        if call.as_json:
            say_json({"event": "ready", "address": server.address})
        else:
            click.echo(f"{server.address}  (Ctrl-C ends it)")
        if problem := vpn_monitor.look().problem:  # it may be temporary: the page shows it too
            note(problem)
        stop.wait()
        server.stop()
        vpn_monitor.close()


def page_of(engine: Engine, port: int) -> PageServer | None:
    """The page of an engine in this process, local and read-only; None if its packages are not
    installed. Raises OSError if the port is in use."""
    from prometheus_client import generate_latest

    address = f"kafka://{engine.bootstrap}"
    vpns = sorted(engine.configuration.vpns, key=lambda vpn: (vpn != "default", vpn))
    monitors = {vpn: VpnMonitor(opener(address, vpn)) for vpn in vpns}
    figures = EngineFigures(lambda: generate_latest(engine.metrics.registry).decode())
    try:
        return _server(monitors, Auth(), engine.home, figures, "127.0.0.1", port)
    except EnvironmentFault:
        return None


def _server(
    monitors: dict[str, VpnMonitor], auth: Auth, home: Path | None, figures: EngineFigures,
    host: str, port: int,
) -> PageServer:  # fmt: skip
    """The page's server. Raises EnvironmentFault if its packages are not installed, OSError if the
    port is in use."""
    try:
        from ..monitor.server import PageServer
        from ..monitor.web import Page, make_app
    except ImportError as error:
        raise EnvironmentFault(f"{EXTRA} ({error.name} is missing)") from error
    return PageServer(make_app(Page(monitors, auth, _life(home), figures)), host, port)


def opener(address: str, vpn: str) -> Callable[[], Any]:
    """Returns a function that opens a connection for the page."""
    return partial(lakequeue.connect, address, vpn=vpn, client_name=CLIENT)


def _life(home: Path | None) -> Callable[[str], list[str]] | None:
    """Returns a function that shows a message's life as `lakequeue trace` prints it."""
    if home is None:
        return None

    def told(number: str) -> list[str]:
        from ..lake import trace as life_of
        from .sql import asked, lines

        with asked(home) as lake:
            return list(lines(life_of(lake, number)))

    return told


def _figures(metrics: str | None, home: Path | None) -> EngineFigures:
    from ..streaming.home.home_folder import HomeFolder

    if metrics is not None:
        if not metrics.startswith(("http://", "https://")):
            raise click.UsageError(f"--metrics {metrics}: must begin with http:// or https://")
        return EngineFigures.at(metrics)
    port = HomeFolder(home).port("metrics") if home is not None else 0
    return EngineFigures.at(f"http://127.0.0.1:{port}/metrics") if port else EngineFigures()


KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up",
    "\x1bOB": "down", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\x03": "q", "\x04": "q",
}  # fmt: skip


@click.command()
@option(
    "--every", type=Number(min=0.5), default=2.0, show_default=True, metavar="SECONDS",
    help="How often to refresh; less often if the engine answers slowly.",
)  # fmt: skip
@gathered(EngineCall, "call", *WHICH_ENGINE)  # without --json
def top(every: float, call: EngineCall) -> None:
    """Show the queues in this terminal, and why they do not move, until q.

    \b
    Keys: up and down choose a queue, Enter shows it in depth, Esc goes back, s sorts, q ends.

    \b
    Examples:
      lakequeue top
      ssh -t host lakequeue top --home /var/lib/lakequeue
    """
    screen = console()
    if not screen.is_terminal or not standard(sys.stdin, "input").isatty():
        raise click.UsageError("top needs a terminal; `lakequeue queues --json` is for programs")
    vpn_monitor = VpnMonitor(opener(call.find(), call.vpn), every)
    with stop_on_signals() as stop, keyboard(sys.stdin.fileno()) as key:
        show(vpn_monitor, screen, lambda wait_s: "q" if stop.is_set() else key(wait_s), every)
    vpn_monitor.close()


def show(
    vpn_monitor: VpnMonitor, screen: Console, key: Callable[[float], str], every: float
) -> None:
    """Show the screen until a key ends it. key: waits this long for a key; returns an empty text if
    none was pressed."""

    from ..monitor import terminal

    view = terminal.Screen()
    with Live(console=screen, auto_refresh=False, screen=True) as live:
        while not view.over:
            live.update(terminal.screen(vpn_monitor, view, screen.size.height), refresh=True)
            if given := key(every):
                view = terminal.pressed(view, given, vpn_monitor.look())


@contextlib.contextmanager
def keyboard(descriptor: int) -> Iterator[Callable[[float], str]]:
    """Read keys, by name, as they are pressed; restores the terminal afterwards."""

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda wait_s: read_key(descriptor, wait_s)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key(descriptor: int, wait_s: float) -> str:
    """The next key; empty if none is pressed in time, `q` if the terminal is gone."""
    try:
        if not select.select([descriptor], [], [], wait_s)[0]:
            return ""
        text = os.read(descriptor, 8).decode(errors="replace")
    except OSError:  # the terminal is gone
        return "q"
    # If several keys arrived together, use the first.
    return (KEYS.get(text) or KEYS.get(text[:3]) or KEYS.get(text[0], text[0])) if text else "q"
