"""Giving messages to a command, whose exit status acks or cancels (`consume --exec`, C7, L11).

A command that fails comes again after a pause, so that one that is down for a minute does not use
up a message's attempts in a second: the pause that was asked for, else the queue's own back-off,
else one of ours.

Who reads what a command prints, and how much of it has been taken.

A pipe holds 64 KB that nobody has read. What was written to it without an error is not yet in
anybody's hands: `lakequeue consume orders | head -1` would fill it with messages that `head` never
sees. So a message counts as taken when the reader has taken all of it out of the pipe, which Linux
tells of either end (FIONREAD). Elsewhere, and where standard output is a file or a terminal, it
counts once it is flushed.

`lakequeue consume`: print messages, or give each to a command and ack by its exit status.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..protocol import commands
from ..protocol.errors import LeaseLost
from .common import (
    connect,
    connection_options,
    counted,
    json_option,
    json_text,
    key_fields,
    note,
    option,
    payload_fields,
    say_json,
    stop_on_signals,
)
from .group import EXIT_FAILED

BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0
# What a kernel takes as a program's environment: Linux 128 KiB for one, some 2 MB for all.
HEADER_BYTES_MAX, HEADERS_BYTES_MAX = 64_000, 500_000


class Executor:
    """Runs a command for each message. retry_delay: the pause after a failure; None: the queue's
    own where ``queue_backs_off``, else 1 s, doubled with each attempt, 60 s at most."""

    def __init__(self, command: str, retry_delay: str | None, queue_backs_off: bool) -> None:
        self._command = command
        self._retry_delay = retry_delay
        self._queue_backs_off = queue_backs_off
        self.given = 0
        self.failed = 0

    def __call__(self, message: Any) -> None:
        """Run it with one message."""
        self.given += 1
        status = _run(self._command, message)
        self.failed += status != 0
        try:
            if status == 0:
                message.ack()
            else:
                message.cancel(delay=self._delay(message.delivery_count))
        except LeaseLost:
            note(f"Message {message.id} took longer than its lease; it will be delivered again.")

    def _delay(self, attempt: int) -> str | float | None:
        if self._retry_delay is not None or self._queue_backs_off:
            return self._retry_delay
        return min(BACKOFF_S * 2.0 ** min(attempt - 1, 10), BACKOFF_S_MAX)


def _run(command: str, message: Any) -> int:
    """Its exit status. In a process group of its own: Ctrl-C is for `consume`, which lets the
    command end; a second one ends it too."""
    environment = {**os.environ, **message_environment(message)}
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, env=environment, process_group=0
    )
    try:
        process.communicate(message.payload)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    return process.returncode


def message_environment(message: Any) -> dict[str, str]:
    """What a command learns of its message, besides the payload."""
    out = {
        "LAKEQUEUE_MESSAGE_ID": message.id,
        "LAKEQUEUE_QUEUE": message.queue,
        "LAKEQUEUE_DELIVERY_COUNT": str(message.delivery_count),
        "LAKEQUEUE_REDELIVERED": "1" if message.redelivered else "0",
        "LAKEQUEUE_PRIORITY": str(message.priority),
    }
    room, left_out = HEADERS_BYTES_MAX, 0
    for name, value in (message.headers or {}).items():
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        size = len(plain) + len(text.encode("utf-8", "surrogateescape"))
        if size > min(HEADER_BYTES_MAX, room):  # or no command could be started with it, ever
            left_out += 1
            continue
        room -= size
        out[f"LAKEQUEUE_HEADER_{plain}"] = text.replace("\0", "")
    return {**out, "LAKEQUEUE_HEADERS_LEFT_OUT": str(left_out)} if left_out else out


LOOK_S_MIN, LOOK_S_MAX = 0.00002, 0.01  # a reader that keeps up is waited for in microseconds
WRITABLE_MS = 100  # how long a full pipe is waited for before the signals are looked at


class StdoutReader:
    """Standard output. stopped: tells that waiting for the reader should end."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._pipe = _pipe_of_stdout()
        self._poll = select.poll()
        if self._pipe is not None:
            self._poll.register(self._pipe, select.POLLOUT)

    def give(self, line: bytes) -> bool:
        """Print a line; whether it was taken. False: told to stop before that.

        Raises BrokenPipeError when nobody reads any more and it was not taken.
        """
        if self._pipe is None:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return True
        return self._write(self._pipe, line) and self._wait_until_taken(self._pipe)

    def check(self) -> None:
        """Raise BrokenPipeError when nobody reads any more."""
        if self._pipe is not None and any(e & ~select.POLLOUT for _, e in self._poll.poll(0)):
            raise BrokenPipeError

    def _write(self, pipe: int, line: bytes) -> bool:
        """In pieces that a writable pipe takes at once, so that no write outlasts a signal."""
        left = memoryview(line)
        while left:
            ready = self._poll.poll(WRITABLE_MS)
            if ready:
                left = left[os.write(pipe, left[: select.PIPE_BUF]) :]  # raises when it is broken
            elif self._stopped():
                return False
        return True

    def _wait_until_taken(self, pipe: int) -> bool:
        pause_s = LOOK_S_MIN
        while _unread(pipe):
            try:
                self.check()
            except BrokenPipeError:
                if _unread(pipe):
                    raise
                break  # it was read between the two looks, by who then went
            if self._stopped():
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_S_MAX)
        return True


def _pipe_of_stdout() -> int | None:
    """The file number of standard output if it is a pipe that tells what is unread in it."""
    if sys.platform != "linux":
        return None
    try:
        number = sys.stdout.fileno()
        sys.stdout.flush()
    except (OSError, ValueError):  # io.UnsupportedOperation: in tests it is no file
        return None
    return number if stat.S_ISFIFO(os.fstat(number).st_mode) else None


def _unread(pipe: int) -> int:
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


POLL_S = 0.5
ANSWER_S_MIN, ANSWER_S_MAX = 5.0, 30.0
BACKLOG = 100
ACK_MODES = ("individual", "client", "auto", "dups_ok", "pre_ack", "no_ack")
AFTER_WORK = ("individual", "client")  # the modes in which this command itself acks


@click.command()
@click.argument("queue")
@option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="End when no message came for so long; an engine has 5 s at least to answer.  [default: "
    "wait for ever, 30 s for an engine]",
)  # fmt: skip
@option("--filter", "where", metavar="EXPRESSION", help="Only such messages: '/price > 10'.")
@option(
    "--ack-mode", type=click.Choice(ACK_MODES), default="individual", show_default=True,
    help="individual and client: acked once the reader has taken it, or the command has ended.",
)  # fmt: skip
@option(
    "--max-backlog", type=click.IntRange(min=1),
    help="Most messages held at once; the queue's limit holds too.  [default: 100; --exec: 1]",
)  # fmt: skip
@option(
    "--exec", "command", metavar="COMMAND",
    help="Run this with each payload on its standard input; status 0 acks, another cancels.",
)  # fmt: skip
@option(
    "--retry-delay", metavar="DURATION",
    help="With --exec: how long a canceled one waits.  [default: the queue's redelivery_delay, "
    "else 1s, doubled with each attempt, 1m at most]",
)  # fmt: skip
@connection_options
@json_option
@click.pass_context
def consume(
    ctx: click.Context,
    queue: str,
    count: int | None,
    timeout: float | None,
    where: str | None,
    ack_mode: str,
    max_backlog: int | None,
    command: str | None,
    retry_delay: str | None,
    url: str | None,
    home: Path | None,
    vpn: str,
    as_json: bool,
) -> None:
    """Receive messages of QUEUE and print their payloads, one a line.

    The environment of a command of --exec has LAKEQUEUE_MESSAGE_ID, LAKEQUEUE_QUEUE,
    LAKEQUEUE_DELIVERY_COUNT, LAKEQUEUE_REDELIVERED, LAKEQUEUE_PRIORITY and
    LAKEQUEUE_HEADER_<NAME>. Headers of more than 64 KB, or beyond 500 KB in all, are left out;
    LAKEQUEUE_HEADERS_LEFT_OUT counts them. Exit status 1 if a command failed.

    At the end unsettled messages return to the queue, also those that the reader of a pipe has not
    taken. The first Ctrl-C or SIGTERM lets a running command finish, the second stops it.

    \b
    Examples:
      lakequeue consume orders --count 10
      lakequeue consume orders | head -1
      lakequeue consume orders --json --timeout 5 --filter '/price > 10'
      lakequeue consume orders --exec 'curl -fsS -d @- http://shop/orders' --retry-delay 30s
    """
    if command is not None and ack_mode not in AFTER_WORK:
        raise click.BadParameter(
            f"with --exec the exit status acks, so it is one of {', '.join(AFTER_WORK)}",
            param_hint="--ack-mode",
        )
    if retry_delay is not None and command is None:
        raise click.UsageError("--retry-delay needs --exec")
    backlog = max_backlog or (1 if command else BACKLOG)  # a slow command outlives its leases
    backlog = min(backlog, count) if count else backlog
    with connect(url, home, vpn, "consume") as connection, stop_on_signals() as stop:
        definition = _definition(connection, queue, timeout)
        backs_off = bool(definition["redelivery_delay_ms"])
        executor = Executor(command, retry_delay, backs_off) if command else None
        printer = Printer(as_json, ack_mode, stop.is_set)
        options = {"filter": where} if where else {}
        with connection.consumer(
            queue, ack_mode=ack_mode, max_backlog=backlog, **options
        ) as consumer:
            _receive(consumer, executor or printer, count, timeout, stop.is_set)
    if executor is not None:
        _close(executor, as_json)
        if executor.failed:
            ctx.exit(EXIT_FAILED)


def _definition(connection: Any, queue: str, timeout: float | None) -> dict[str, Any]:
    """The queue's definition. An engine that is not there is waited for no longer than a message,
    but long enough for one that is."""
    wait_s = ANSWER_S_MAX if timeout is None else max(timeout, ANSWER_S_MIN)
    look = connection.request(commands.Describe(queue=queue), timeout=wait_s)
    return look["definition"]


def _close(executor: Executor, as_json: bool) -> None:
    """How many were given to the command, and with how many it failed."""
    given, failed = executor.given, executor.failed
    if as_json:
        say_json({"given": given, "failed": failed})
        return
    note(f"{counted(given, 'message')} given to the command, {failed:,} failed")


def _receive(
    consumer: Any,
    work: Printer | Executor,
    count: int | None,
    timeout: float | None,
    stopped: Callable[[], bool],
) -> None:
    """Receive and work until the count, the silence, a signal, or nobody reads any more."""
    done = 0
    quiet_since = time.monotonic()
    while not stopped() and (count is None or done < count):
        poll = POLL_S
        if timeout is not None:
            left = quiet_since + timeout - time.monotonic()
            if left <= 0 and timeout > 0:
                break
            poll = min(POLL_S, max(left, 0.0))
        message = consumer.receive(timeout=poll)
        if message is None:
            if timeout == 0:
                break
            if isinstance(work, Printer):
                work.reader.check()
            continue
        work(message)
        done += 1
        quiet_since = time.monotonic()


class Printer:
    """Prints a message; then acks it where that is this command's business."""

    def __init__(self, as_json: bool, ack_mode: str, stopped: Callable[[], bool]) -> None:
        self._as_json = as_json
        self._acks = ack_mode in AFTER_WORK
        self.reader = StdoutReader(stopped)

    def __call__(self, message: Any) -> None:
        """Print one message. Raises BrokenPipeError when nobody reads any more."""
        line = message.payload
        if self._as_json:
            fields = message_fields(message)
            line = json_text(fields).encode()
        if not self.reader.give(line + b"\n") or not self._acks:
            return
        try:
            message.ack()
        except LeaseLost:
            note(f"Message {message.id} took longer than its lease; it will be delivered again.")


def message_fields(message: Any) -> dict[str, Any]:
    """A message for JSON; a payload or a key that is not UTF-8 in base64."""
    return {
        "id": message.id,
        "queue": message.queue,
        **payload_fields(message.payload),
        **key_fields(message.key),
        "headers": message.headers,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
        "priority": message.priority,
        "is_barrier": message.is_barrier,
        "published_at": message.published_at,
        "expires_at": message.expires_at,
        "lease_expires_at": message.lease_expires_at,
    }
