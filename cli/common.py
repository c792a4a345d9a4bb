"""What commands share: options, the address to connect to, signals, output for people and
programs."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import lakequeue
from click.core import ParameterSource

from ..monitor.formatting import one_line
from .group import EnvironmentFault, standard
from .presence import explained, what_to_start

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

DEFAULT_URL = "kafka://127.0.0.1:9092"
DEFAULT_HOME = ".lakequeue"
ADDRESS_FILE = "address"
PLAIN_WIDTH = 200
SAME_SIGNAL_S = 0.5

# An option whose environment variable is shown in the help.
option = functools.partial(click.option, show_envvar=True)

json_option = option(
    "--json", "as_json", is_flag=True, envvar="LAKEQUEUE_JSON", help="JSON for programs."
)


class Number(click.FloatRange):
    """A finite number in a range: every range of click has room for NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Folder(click.Path):
    """A directory. No text is no directory: `--home "$UNSET"` does not mean the current one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty: name a directory, or leave the option out.", param, ctx)
        return super().convert(value, param, ctx)


def home_option(text: str, **settings: Any) -> Callable[[Any], Any]:
    """Add --home, by default the one in this directory."""
    given = {"envvar": "LAKEQUEUE_HOME", "default": DEFAULT_HOME, "show_default": True, **settings}
    return option("--home", type=Folder(), help=text, **given)


def gathered(into: type, name: str, *options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add options and pass their values to the command as one dataclass. into: the dataclass, whose
    fields are named as the options; name: of the command's parameter."""
    names = [field.name for field in dataclasses.fields(into)]

    def add(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def call(*positional: Any, **given: Any) -> Any:
            given[name] = into(**{one: given.pop(one) for one in names})
            return command(*positional, **given)

        for one in reversed(options):
            call = one(call)
        return call

    return add


@dataclasses.dataclass(frozen=True, slots=True)
class EngineAddress:
    """Which engine a command means: its --url, --home and --vpn."""

    url: str | None = None
    home: Path | None = None
    vpn: str = "default"

    def find(self) -> str:
        """The address to connect to.

        The command line wins over the environment, and an address over a home. Then comes a home
        in this directory, then the default.
        """
        source = click.get_current_context().get_parameter_source
        home_is_nearer = (
            source("home") is ParameterSource.COMMANDLINE
            and source("url") is not ParameterSource.COMMANDLINE
        )
        if self.url and not home_is_nearer:
            return self.url if "://" in self.url else f"kafka://{self.url}"
        if self.home is not None:
            address = self.home / ADDRESS_FILE
            if not address.is_file():
                raise EnvironmentFault(f"{what_to_start(self.home)}.")
            return address.read_text().strip()
        here = Path(DEFAULT_HOME) / ADDRESS_FILE
        return here.read_text().strip() if here.is_file() else DEFAULT_URL

    def its_home(self) -> Path | None:
        """The home on this machine, if no address was given."""
        return None if self.url else nearest_home(self.home)

    @contextlib.contextmanager
    def connect(self, client_name: str) -> Iterator[Any]:
        """Connect to the engine. If no answer comes, the error says what is missing."""
        address = self.find()
        with explained(address, self.its_home(), self.vpn):
            with lakequeue.connect(address, vpn=self.vpn, client_name=client_name) as connection:
                yield connection


connection_options = gathered(
    EngineAddress, "engine",
    option("--url", envvar="LAKEQUEUE_URL",
           help="The engine's Kafka: kafka://host:port, or just host:port.  "
           f"[default: that of --home, else {DEFAULT_URL}]"),
    home_option("The home of a running `lakequeue up`, which has its address.",
                default=None, show_default=False),
    option("--vpn", default="default", envvar="LAKEQUEUE_VPN", show_default=True,
           help="The message VPN, the tenant's namespace."),
)  # fmt: skip


def nearest_home(home: Path | None) -> Path | None:
    """The named home, else one in this directory, else None."""
    here = Path(DEFAULT_HOME)
    return home if home is not None else (here if here.is_dir() else None)


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


def say(text: str) -> None:
    """Print a line for people on standard output."""
    click.echo(one_line(text))


def cell(text: str) -> Text:
    """Text from elsewhere for a table, without rich's markup."""
    from rich.text import Text

    return Text(one_line(text))


def console(stderr: bool = False) -> Console:
    """A console of rich; plain and wide enough for any table if it is no terminal."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False)
    if not out.is_terminal:
        out.width = PLAIN_WIDTH
    return out


def table_of(*columns: str) -> Table:
    """An empty table, without a header if no column has a name. Columns whose names begin with >
    are aligned to the right."""
    from rich.table import Table

    names = [column.removeprefix(">") for column in columns]
    out = Table(box=None, padding=(0, 2, 0, 0), show_header=any(names))
    for column, name in zip(columns, names, strict=True):
        out.add_column(name, justify="right" if column.startswith(">") else "left")
    return out


def json_text(value: object) -> str:
    """A JSON value on one line. Characters that a terminal might obey, or that no file can hold,
    are escaped; the value is the same."""
    text = json.dumps(value, ensure_ascii=False, default=plain_value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def say_json(value: object) -> None:
    """Print a JSON value on one line of standard output."""
    click.echo(json_text(value))


def answer(fields: dict[str, Any], text: str, as_json: bool) -> None:
    """Print what a command did: JSON for programs, or a sentence."""
    say_json(fields) if as_json else say(text)


def confirm(question: str, as_json: bool) -> None:
    """Ask whether to go on; end the command if not. With JSON, the question goes to standard
    error."""
    standard(sys.stdin, "input")
    click.confirm(one_line(question), abort=True, err=as_json)


def plain_value(value: Any) -> Any:
    """A JSON form for bytes (text or base64) and times (ISO-8601)."""
    if isinstance(value, bytes | bytearray | memoryview):
        shown = payload_fields(bytes(value))
        return shown["payload"] if "encoding" not in shown else shown
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def payload_fields(payload: bytes) -> dict[str, str]:
    """A payload for JSON: text, or base64 with ``encoding`` if it is not UTF-8."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(payload).decode(), "encoding": "base64"}


def key_fields(key: bytes | None) -> dict[str, str | None]:
    """A record's key for JSON: text, or base64 with ``key_encoding`` if it is not UTF-8."""
    if key is None:
        return {"key": None}
    shown = payload_fields(key)
    out: dict[str, str | None] = {"key": shown["payload"]}
    return {**out, "key_encoding": shown["encoding"]} if "encoding" in shown else out


def counted(count: int, what: str) -> str:
    """A count with its noun: ``1 message``, ``2 messages``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def percent(level: float, limit: float | None) -> str:
    """The used share of a limit in percent; – without a limit."""
    return f"{level * 100 / limit:.1f}" if limit else "–"


def ending_signals() -> list[signal.Signals]:
    """The signals that ask a command to end. SIGHUP, of a terminal that closes, is one of them,
    except where it is ignored, as under `nohup`."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    hangup = [] if ignores_hangup else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextlib.contextmanager
def _on_signals(
    handle: Callable[[], None], stays: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Call a function at each of `ending_signals`. Works in the main thread only; elsewhere nothing
    is called. stays: whether the handlers stay at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: handle()) for s in ending_signals()}
    try:
        yield
    finally:
        for which, handler in () if stays() else before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """`ending_signals` set the event; a second signal interrupts at once. `timeout 10 lakequeue
    …` sends its signal twice, to the process and to its group, which counts as one. After a signal
    the handlers stay, because its second half may arrive while the command is ending."""
    event = threading.Event()
    first = 0.0

    def handle() -> None:
        nonlocal first
        if not event.is_set():
            first = time.monotonic()
            event.set()
        elif time.monotonic() - first > SAME_SIGNAL_S:
            raise KeyboardInterrupt

    with _on_signals(handle, event.is_set):
        yield event


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """`ending_signals` interrupt like Ctrl-C, for phases that cannot look at an event. One that
    comes twice interrupts once, so that it does not cut short what cleans up."""
    last = -math.inf

    def handle() -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > SAME_SIGNAL_S:
            raise KeyboardInterrupt

    with _on_signals(handle):
        yield


def note(text: str) -> None:
    """Print a line for people on standard error."""
    print(one_line(text), file=sys.stderr, flush=True)
