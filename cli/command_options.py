"""The options that commands share, and the engine that a command connects to."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import lakequeue
from click.core import ParameterSource

from ..monitor.formatting import one_line
from .group import EnvironmentFault, standard
from .presence import explained, what_to_start
from .printing import say, say_json

DEFAULT_URL = "kafka://127.0.0.1:9092"
DEFAULT_HOME = ".lakequeue"
ADDRESS_FILE = "address"

# An option whose environment variable is shown in the help.
option = functools.partial(click.option, show_envvar=True)

where_option = option("--where", metavar="EXPRESSION", help="Matching messages: '/price > 10'.")

json_option = option(
    "--json", "as_json", is_flag=True, envvar="LAKEQUEUE_JSON", help="JSON for programs."
)


class Number(click.FloatRange):
    """A finite number in a range. click's own ranges accept NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Folder(click.Path):
    """A directory. An empty path is refused, so `--home "$UNSET"` does not mean the current
    directory."""

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
    fields have the options' names; name: of the command's parameter."""
    names = [field.name for field in dataclasses.fields(into)]

    def add(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def call(*positional: Any, **given: Any) -> Any:
            given[name] = into(**{one: given.pop(one) for one in names if one in given})
            return command(*positional, **given)

        for one in reversed(options):
            call = one(call)
        return call

    return add


@dataclasses.dataclass(frozen=True, slots=True)
class EngineCall:
    """The engine that a command connects to (--url, --home, --vpn), and whether it prints JSON
    (--json)."""

    url: str | None = None
    home: Path | None = None
    vpn: str = "default"
    as_json: bool = False

    def find(self) -> str:
        """The address to connect to.

        The command line has precedence over the environment, and an address over a home; then a
        home in this directory, then the default.
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
        """Connect to the engine. If it does not answer, the error names what is missing."""
        address = self.find()
        with explained(address, self.its_home(), self.vpn):
            with lakequeue.connect(address, vpn=self.vpn, client_name=client_name) as connection:
                yield connection

    @contextlib.contextmanager
    def admin(self, client_name: str) -> Iterator[Any]:
        """Connect as an administrator."""
        with self.connect(client_name) as connection:
            yield connection.admin()

    def answer(self, fields: dict[str, Any], text: str) -> None:
        """Print the command's result: JSON for programs, or a sentence."""
        say_json(fields) if self.as_json else say(text)

    def confirm(self, question: str) -> None:
        """Ask whether to continue; end the command if not. With JSON, the question goes to standard
        error."""
        standard(sys.stdin, "input")
        click.confirm(one_line(question), abort=True, err=self.as_json)


vpn_option = option(
    "--vpn", default="default", envvar="LAKEQUEUE_VPN", show_default=True,
    help="The message VPN, the tenant's namespace.",
)  # fmt: skip
WHICH_ENGINE = (
    option("--url", envvar="LAKEQUEUE_URL",
           help="The engine's Kafka: kafka://host:port, or just host:port.  "
           f"[default: that of --home, else {DEFAULT_URL}]"),
    home_option("The home of a running `lakequeue up`, whose address to use.",
                default=None, show_default=False),
    vpn_option,
)  # fmt: skip
call_options = gathered(EngineCall, "call", *WHICH_ENGINE, json_option)


def nearest_home(home: Path | None) -> Path | None:
    """The named home, else one in this directory, else None."""
    here = Path(DEFAULT_HOME)
    return home if home is not None else (here if here.is_dir() else None)


def pairs(values: tuple[str, ...], option_name: str) -> dict[str, str]:
    """Parse ``key=value`` options."""
    out: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            problem = f"{value!r} is not of the form key=value"
            raise click.BadParameter(problem, param_hint=option_name)
        out[key] = text
    return out
