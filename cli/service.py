"""Runs an engine in the foreground until a signal, and writes its log; for `up` and `run`.

The log has one event per line, as text or, with `lakequeue.log_format=json`, as JSON. ERROR:
something has stopped until an operator acts. WARNING: the engine continues, but an operator should
know. INFO: normal operation. The subject of an event is in fields (`broker`, `vpn`, `queue`,
`message_id`, …), passed as `extra={"fields": …}`, so programs can find a queue's lines without
parsing text.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..monitor.formatting import one_line
from ..protocol.errors import ConfigError, LakequeueError
from ..streaming.java import JavaArchive, make_later
from .command_options import ADDRESS_FILE
from .group import EnvironmentFault, forget_standard_output, sentences
from .printing import console, json_text, note, say_json, table_of
from .signals import ending_signals, interrupt_on_signals

TEXT, JSON = "text", "json"


class PlainLines(logging.Formatter):
    """`12:00:00Z what happened`, always on one line; a traceback follows it."""

    converter = staticmethod(time.gmtime)

    def __init__(self, form: str = "%(asctime)s %(message)s", time: str = "%H:%M:%SZ") -> None:
        super().__init__(form, time)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


class JsonLines(logging.Formatter):
    """One JSON object per line, with the traceback inside; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json_text(line)


def line_format(name: str) -> logging.Formatter:
    return JsonLines() if name == JSON else PlainLines()


if TYPE_CHECKING:
    from ..streaming import Engine

PAGE = "monitor"


@contextlib.contextmanager
def environment_faults() -> Iterator[None]:
    """Turn failures while starting into EnvironmentFault, except errors of the configuration."""
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    try:
        yield
    except (ConfigError, EnvironmentFault):
        raise
    except (LakequeueError, OSError) as error:
        raise EnvironmentFault(sentences(error)[0]) from error


@contextlib.contextmanager
def in_the_foreground(home: Path, as_json: bool) -> Iterator[None]:
    """Run a command's body until a signal ends it, also at its start; then print the last line."""
    with contextlib.suppress(KeyboardInterrupt), interrupt_on_signals():
        yield
    goodbye(home, as_json)


def run_engine(
    engine: Engine,
    home: Path,
    as_json: bool,
    fault: Callable[[], LakequeueError | None] = lambda: None,
    page_port: int = -1,
    archives: Sequence[JavaArchive] = (),
) -> None:
    """Start an engine, print its addresses, and serve until a signal or a failure.

    fault: returns the error of something else that must not fail (an embedded Kafka); it ends the
    service. page_port: for the page; 0 for the port it had before or a free one, -1 for no page.
    archives: of Java programs besides Spark, so that they start faster next time.
    """
    with logging_to(home / "spark.log", engine.log_format), contextlib.ExitStack() as at_the_end:
        at_the_end.callback(engine.stop)
        with environment_faults():
            engine.start()
            address = write_address(home, engine.bootstrap)
        at_the_end.callback(address.unlink, missing_ok=True)
        with page_shown(engine, home, page_port) as page:
            show_addresses(page | engine.addresses, home, as_json)
            make_later([engine.application.archive, *archives])
            serve(engine, as_json, fault)


@contextlib.contextmanager
def page_shown(engine: Engine, home: Path, port: int) -> Iterator[dict[str, str]]:
    """Serve the page of an engine; yields its address, or nothing if there is no page or its
    packages are not installed."""
    from ..streaming.home.home_folder import HomeFolder
    from .monitor import page_of

    folder, page = HomeFolder(home), None
    if port >= 0:
        try:
            page = page_of(engine, port or folder.port(PAGE))
        except OSError as error:
            if port:
                raise port_fault("lakequeue.monitor_port", port, error) from error
            page = page_of(engine, 0)
    if page is None:
        yield {}
        return
    folder.remember_port(PAGE, page.port)
    page.start()
    try:
        yield {PAGE: page.address}
    finally:
        page.stop()


def port_fault(key: str, port: int, error: OSError) -> EnvironmentFault:
    """The error for a port in the engine's settings that another program uses."""
    why = (error.strerror or str(error)).partition(" (while ")[0]  # drops the repeated address
    return EnvironmentFault(
        f"{key}: port {port} cannot be used ({why}); choose another, or 0 for a free one"
    )


@contextlib.contextmanager
def logging_to(file: Path, log_format: str = TEXT) -> Iterator[None]:
    """Write the engine's lines (alerts, dead messages, restarts) to stderr, and the libraries'
    lines to a file: a library's traceback for a dead process tells less than our own line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(line_format(log_format))
    rest = logging.FileHandler(file, delay=True)
    rest.setLevel(logging.WARNING)
    rest.handleError = lambda record: None  # type: ignore[method-assign]  # the disk is full
    rest.setFormatter(
        PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%SZ")
        if log_format == TEXT else line_format(log_format)
    )  # fmt: skip
    engine = logging.getLogger("lakequeue.engine")
    before = engine.level
    engine.setLevel(logging.INFO)
    handlers = ((engine, lines), (logging.getLogger(), rest))
    for logger, handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, handler in handlers:
            logger.removeHandler(handler)
        engine.setLevel(before)
        for _, handler in handlers:
            handler.close()


def progress(log_format: str, line: str) -> None:
    """Print a line on stderr while starting, in the log's format."""
    if log_format == TEXT:
        note(line)
        return
    said = {"name": "lakequeue.engine", "levelname": "INFO", "msg": line}
    note(line_format(log_format).format(logging.makeLogRecord(said)))


def show_addresses(addresses: Mapping[str, str], home: Path, as_json: bool) -> None:
    """Print every address that is served: a table, or one line of JSON."""
    if as_json:
        say_json({"event": "ready", "addresses": dict(addresses), "home": str(home)})
        return
    table = table_of()
    for name, address in addresses.items():
        table.add_row(f"[bold]{name}[/bold]", address)
    console().print(table)


def serve(engine: Any, as_json: bool, fault: Callable[[], LakequeueError | None]) -> None:
    """Wait for a signal or a failure, then stop the engine.

    The engine waits in a thread, because only the main thread gets signals.
    """
    failure: list[BaseException] = []
    ended = threading.Event()
    stop = threading.Event()

    def wait() -> None:
        try:
            engine.wait()
        except BaseException as error:  # raised in the main thread
            failure.append(error)
        ended.set()

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            note("Still finishing the batch.")
        stop.set()

    for which in ending_signals():
        signal.signal(which, asked)
    threading.Thread(target=wait, name="engine-wait", daemon=True).start()
    while not stop.is_set() and not ended.is_set():
        stop.wait(0.5)
        if (error := fault()) is not None:
            failure.append(error)
            break
    if failure:
        with contextlib.suppress(Exception):  # the user must see the failure, not this
            engine.stop()
        raise failure[0]
    if not as_json:
        click.echo("Finishing the batch …")
    engine.stop()


def write_address(home: Path, bootstrap_servers: str) -> Path:
    """Write the address to where other commands with `--home` read it."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / ADDRESS_FILE
    path.write_text(f"kafka://{bootstrap_servers}\n")
    return path


def goodbye(home: Path, as_json: bool) -> None:
    """Print the last line; ends normally even without a reader (`up --json | head -1`)."""
    try:
        if as_json:
            say_json({"event": "goodbye", "home": str(home)})
        else:
            click.echo(f"Goodbye. Everything is kept in {home}; the next start continues there.")
    except BrokenPipeError:
        forget_standard_output()
