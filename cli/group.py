"""The command group: imports commands when they are called, and turns errors into sentences."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click

from ..monitor.formatting import counted, one_line
from ..protocol.errors import ConfigError, LakequeueError, NotConnected, Timeout
from ..streaming.version import code_version


class EnvironmentFault(LakequeueError):
    """Something that lakequeue needs is missing: Kafka, Java, a free port, a package (exit status
    3)."""


EXIT_FAILED = 1
EXIT_CONFIGURATION = 2
EXIT_ENVIRONMENT = 3
EXIT_BROKEN_PIPE = 128 + 13  # a shell's status for a tool that SIGPIPE has killed


def version_option() -> click.Option:
    """``--version``: the release and its code, as in the log of steps and in `doctor`."""

    def say(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            click.echo(f"{ctx.info_name}, version {code_version()}")
            ctx.exit()

    return click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=say,
        help="Show the version and exit.",
    )  # fmt: skip


class LazyGroup(click.Group):
    """A group whose commands are named as ``module:attribute`` and imported when called.

    other_names: other systems' names for commands, with ours.
    """

    def __init__(
        self, name: str, where: Mapping[str, tuple[str, str]],
        other_names: Mapping[str, str] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(name, **settings)
        self._where, self._other_names = where, other_names or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. If there is none of this name, suggest the most likely one."""
        name = args[0]
        if name not in self._where and not name.startswith("-"):
            close = difflib.get_close_matches(name, self._where, 1)
            meant = self._other_names.get(name) or (close[0] if close else None)
            if meant:
                ctx.fail(f"No such command {name!r}. Did you mean `{ctx.command_path} {meant}`?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._where)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none with that name."""
        if cmd_name not in self._where:
            return None
        module, attribute = self._where[cmd_name][0].split(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._where.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error becomes one sentence on standard error and an exit status."""
        _print_any_text()
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:  # `lakequeue consume orders | head`
            forget_standard_output()
            ctx.exit(EXIT_BROKEN_PIPE)
        except Exception as error:  # no user sees a traceback unless they ask for it
            if os.environ.get("LAKEQUEUE_DEBUG", "0") not in ("", "0"):
                raise
            for line in sentences(error):
                click.echo(one_line(line), err=True)
            ctx.exit(exit_status(error))


def _print_any_text() -> None:
    """Escape characters that the terminal's encoding lacks, which a payload may have. If standard
    error is closed, discard its lines, so that they do not go to standard output."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def standard(stream: TextIO | None, name: str) -> TextIO:
    """A standard stream. Raises EnvironmentFault if the program was started without it."""
    if stream is None:
        raise EnvironmentFault(f"standard {name} is closed, but this command needs it")
    return stream


def forget_standard_output() -> None:
    """Discard buffered output whose reader has ended; else flushing it would fail when the process
    ends."""
    with contextlib.suppress(OSError, ValueError):  # in tests it is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_status(error: BaseException) -> int:
    if isinstance(error, ConfigError):
        return EXIT_CONFIGURATION
    if isinstance(error, EnvironmentFault | NotConnected | Timeout):
        return EXIT_ENVIRONMENT
    return EXIT_FAILED


def sentences(error: BaseException) -> list[str]:
    """An error as text: one line, or one per problem of a configuration."""
    if isinstance(error, ConfigError) and error.problems:
        found = counted(len(error.problems), "problem")
        head = f"Found {found}; nothing was done:"
        return [head, *(f"  {problem}" for problem in error.problems)]
    if isinstance(error, LakequeueError):
        return [str(error) or type(error).__doc__ or type(error).__name__]
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return [f"{place}{error.strerror or error}"]
    return [
        f"This should not have happened: {type(error).__name__}: {error}. "
        "Run it again with LAKEQUEUE_DEBUG=1 to see where."
    ]
