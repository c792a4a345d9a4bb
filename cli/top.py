"""`lakequeue top`: the queues in a terminal, and why they do not move."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .common import connection_options, console, find_url, option, stop_on_signals
from .monitor import opener

if TYPE_CHECKING:
    from rich.console import Console

    from ..monitor.snapshot import VpnMonitor

KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1bOA": "up",
    "\x1bOB": "down", "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\x03": "q", "\x04": "q",
}  # fmt: skip


@click.command()
@option(
    "--every", type=click.FloatRange(min=0.5), default=2.0, show_default=True, metavar="SECONDS",
    help="How often it looks; less often when that takes the engine long.",
)  # fmt: skip
@connection_options
def top(every: float, url: str | None, home: Path | None, vpn: str) -> None:
    """Show the queues in this terminal, and why they do not move, until q.

    \b
    Keys: up and down choose a queue, Enter shows it in depth, Esc goes back, s sorts, q ends.

    \b
    Examples:
      lakequeue top
      ssh -t host lakequeue top --home /var/lib/lakequeue
    """
    from ..monitor.snapshot import VpnMonitor

    screen = console()
    if not screen.is_terminal or not sys.stdin.isatty():
        raise click.UsageError("top needs a terminal; `lakequeue queues --json` is for programs")
    vpn_monitor = VpnMonitor(opener(find_url(url, home), vpn), every)
    with stop_on_signals() as stop, keyboard(sys.stdin.fileno()) as key:
        show(vpn_monitor, screen, lambda wait_s: "q" if stop.is_set() else key(wait_s), every)
    vpn_monitor.close()


def show(
    vpn_monitor: VpnMonitor, screen: Console, key: Callable[[float], str], every: float
) -> None:
    """Until a key ends it. key: waits so long for one; empty when none came."""
    from rich.live import Live

    from ..monitor import terminal

    view = terminal.Screen()
    with Live(console=screen, auto_refresh=False, screen=True) as live:
        while not view.over:
            live.update(terminal.screen(vpn_monitor, view, screen.size.height), refresh=True)
            if given := key(every):
                view = terminal.pressed(view, given, vpn_monitor.look())


@contextlib.contextmanager
def keyboard(descriptor: int) -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, by name; the terminal is as it was afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda wait_s: read_key(descriptor, wait_s)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read_key(descriptor: int, wait_s: float) -> str:
    """The next key; empty when none comes in time, `q` when nothing can come any more."""
    try:
        if not select.select([descriptor], [], [], wait_s)[0]:
            return ""
        text = os.read(descriptor, 8).decode(errors="replace")
    except OSError:  # the terminal is gone
        return "q"
    # Of keys that came together the first counts.
    return (KEYS.get(text) or KEYS.get(text[:3]) or KEYS.get(text[0], text[0])) if text else "q"
