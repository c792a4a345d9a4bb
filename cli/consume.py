"""`lakequeue consume`: print messages, or give each to a command and ack by its exit status (C7,
L11).

`Executor` runs the command of `--exec`. After a failure the message waits before it is delivered
again, so that a command that fails for a minute does not use up a message's attempts in a second.
It waits for `--retry-delay`, else for the queue's own back-off, else for the default.

`StdoutReader` finds out which output the reader of a pipe has read. A pipe buffers 64 KB:
`lakequeue consume orders | head -1` would fill it with messages that `head` never reads. So on
Linux a message counts as read when it has left the pipe (FIONREAD); elsewhere, and for files and
terminals, when it is flushed.
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
from typing import Any

import click

from ..client.consumer.settling import ACK_MODES
from ..client.values import duration_ms
from ..monitor.formatting import counted
from ..protocol import commands
from ..protocol.errors import LeaseLost
from .command_options import EngineCall, Number, call_options, option
from .group import EXIT_FAILED, standard
from .printing import json_text, key_fields, note, payload_fields, say_json
from .signals import stop_on_signals

BACKOFF_S, BACKOFF_S_MAX = 1.0, 60.0
# Linux limits a program's environment to 128 KiB per variable and about 2 MB in all.
HEADER_BYTES_MAX, HEADERS_BYTES_MAX = 64_000, 500_000


class Executor:
    """Runs a command for each message. retry_delay: the pause after a failure. If it is None, the
    queue's own applies (``queue_backs_off``), else 1 s, doubled with each attempt, at most 60 s."""

    def __init__(self, command: str, retry_delay: str | None, queue_backs_off: bool) -> None:
        self._command = command
        self._retry_delay = retry_delay
        self._queue_backs_off = queue_backs_off
        self.given = 0
        self.failed = 0

    def __call__(self, message: Any) -> None:
        self.given += 1
        status = _run(self._command, message)
        self.failed += status != 0
        if status == 0:
            _settle(message, message.ack)
        else:
            delay = self._delay(message.delivery_count)
            _settle(message, lambda: message.cancel(delay=delay))

    def _delay(self, attempt: int) -> str | float | None:
        if self._retry_delay is not None or self._queue_backs_off:
            return self._retry_delay
        return min(BACKOFF_S * 2.0 ** min(attempt - 1, 10), BACKOFF_S_MAX)


def _settle(message: Any, how: Callable[[], None]) -> None:
    try:
        how()
    except LeaseLost:
        note(f"Message {message.id} took longer than its lease and will be delivered again.")


def _run(command: str, message: Any) -> int:
    """Run the command; returns its exit status. It runs in its own process group: the first Ctrl-C
    reaches only `consume`, which lets the command finish; the second one ends the command."""
    environment = {**os.environ, **message_environment(message)}
    process = subprocess.Popen(
        command, shell=True, stdin=subprocess.PIPE, env=environment, process_group=0
    )
    try:
        process.communicate(message.payload)
    except BaseException:  # the second Ctrl-C
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    return process.returncode


def message_environment(message: Any) -> dict[str, str]:
    """Environment variables that describe a message to a command."""
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
        if size > min(HEADER_BYTES_MAX, room):  # or the command could never be started
            left_out += 1
            continue
        room -= size
        out[f"LAKEQUEUE_HEADER_{plain}"] = text.replace("\0", "")
    return {**out, "LAKEQUEUE_HEADERS_LEFT_OUT": str(left_out)} if left_out else out


LOOK_S_MIN, LOOK_S_MAX = 0.00002, 0.01  # a fast reader reads a line within microseconds
WRITABLE_MS = 100  # wait this long for room in the pipe, then check for signals


class StdoutReader:
    """Standard output. stopped: returns whether to stop waiting for the reader."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._pipe = _pipe_of_stdout()
        self._poll = select.poll()
        if self._pipe is not None:
            self._poll.register(self._pipe, select.POLLOUT)

    def give(self, line: bytes) -> bool:
        """Print a line; returns True once it was read, False if stopped before.

        Raises BrokenPipeError if the reader has ended.
        """
        if self._pipe is None:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return True
        return self._write(self._pipe, line) and self._wait_until_taken(self._pipe)

    def check(self) -> None:
        """Raise BrokenPipeError if the reader has ended."""
        if self._pipe is not None and any(e & ~select.POLLOUT for _, e in self._poll.poll(0)):
            raise BrokenPipeError

    def _write(self, pipe: int, line: bytes) -> bool:
        """Write in pieces that the pipe accepts at once, so that no write blocks after a signal."""
        left = memoryview(line)
        while left:
            ready = self._poll.poll(WRITABLE_MS)
            if ready:
                left = left[os.write(pipe, left[: select.PIPE_BUF]) :]  # raises if it is broken
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
                break  # the reader read it and then ended
            if self._stopped():
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LOOK_S_MAX)
        return True


def _pipe_of_stdout() -> int | None:
    """The file number of standard output, if it is a pipe whose unread bytes can be counted."""
    stream = standard(sys.stdout, "output")  # or messages would be acknowledged unread
    if sys.platform != "linux":
        return None
    try:
        number = stream.fileno()
        stream.flush()
    except (OSError, ValueError):  # io.UnsupportedOperation: in tests it is not a file
        return None
    return number if stat.S_ISFIFO(os.fstat(number).st_mode) else None


def _unread(pipe: int) -> int:
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


POLL_S = 0.5
ANSWER_S_MIN, ANSWER_S_MAX = 5.0, 30.0
BACKLOG = 100
AFTER_WORK = ("individual", "client")  # modes in which this command acks


@click.command()
@click.argument("queue")
@option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@option(
    "--timeout", type=Number(min=0), metavar="SECONDS",
    help="End if no message arrives for this long; wait for the engine at least 5 s.  [default: "
    "wait for ever, 30 s for the engine]",
)  # fmt: skip
@option(
    "--filter",
    "where",
    metavar="EXPRESSION",
    help="Only matching messages: '/price > 10'.",
)
@option(
    "--ack-mode", type=click.Choice(ACK_MODES), default="individual", show_default=True,
    help="individual, client: ack when the message was read or the command has ended.",
)  # fmt: skip
@option(
    "--max-backlog", type=click.IntRange(min=1),
    help="Lease at most this many at once; the queue has a limit too.  [default: 100; --exec: 1]",
)  # fmt: skip
@option(
    "--exec", "command", metavar="COMMAND",
    help="Run this with each payload on standard input; status 0 acks, any other cancels.",
)  # fmt: skip
@option(
    "--retry-delay", metavar="DURATION",
    help="With --exec: how long a canceled message waits.  [default: the queue's redelivery_delay, "
    "else 1s, doubled with each attempt, 1m at most]",
)  # fmt: skip
@call_options
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
    call: EngineCall,
) -> None:
    """Receive messages of QUEUE and print their payloads, one per line.

    A command run by --exec finds in its environment LAKEQUEUE_MESSAGE_ID, LAKEQUEUE_QUEUE,
    LAKEQUEUE_DELIVERY_COUNT, LAKEQUEUE_REDELIVERED, LAKEQUEUE_PRIORITY and
    LAKEQUEUE_HEADER_<NAME>. Headers of more than 64 KB, or beyond 500 KB in all, are omitted;
    LAKEQUEUE_HEADERS_LEFT_OUT counts them. Exit status 1 if a command failed.

    At the end, unsettled messages return to the queue, also those that a pipe's reader has not
    read. The first Ctrl-C or SIGTERM lets a running command finish, the second stops it.

    \b
    Examples:
      lakequeue consume orders --count 10
      lakequeue consume orders | head -1
      lakequeue consume orders --json --timeout 5 --filter '/price > 10'
      lakequeue consume orders --exec 'curl -fsS -d @- http://shop/orders' --retry-delay 30s
    """
    if command is not None and ack_mode not in AFTER_WORK:
        raise click.BadParameter(
            f"{ack_mode} – with --exec the exit status acks; allowed are {', '.join(AFTER_WORK)}",
            param_hint="--ack-mode",
        )
    if command is not None and not command.strip():
        raise click.BadParameter("is empty: name a command", param_hint="--exec")
    if retry_delay is not None:
        if command is None:
            raise click.UsageError("--retry-delay needs --exec")
        duration_ms(retry_delay, "--retry-delay")  # check it now, not when the first command fails
    backlog = max_backlog or (1 if command else BACKLOG)  # leases of waiting messages could end
    backlog = min(backlog, count) if count else backlog
    with call.connect("consume") as connection, stop_on_signals() as stop:
        definition = _definition(connection, queue, timeout)
        backs_off = bool(definition["redelivery_delay_ms"])
        executor = Executor(command, retry_delay, backs_off) if command else None
        work = executor or Printer(call.as_json, ack_mode, stop.is_set)
        options = {"filter": where} if where else {}
        with connection.consumer(
            queue, ack_mode=ack_mode, max_backlog=backlog, **options
        ) as consumer:
            _receive(consumer, work, count, timeout, stop.is_set)
    if executor is not None:
        _close(executor, call)
        if executor.failed:
            ctx.exit(EXIT_FAILED)


def _definition(connection: Any, queue: str, timeout: float | None) -> dict[str, Any]:
    """The queue's definition. Waits for the engine as long as for a message, but at least 5 s."""
    wait_s = ANSWER_S_MAX if timeout is None else max(timeout, ANSWER_S_MIN)
    look = connection.request(commands.Describe(queue=queue), timeout=wait_s)
    return look["definition"]


def _close(executor: Executor, call: EngineCall) -> None:
    """Report how many messages were given to the command, and how many failed."""
    given, failed = executor.given, executor.failed
    if call.as_json:
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
    """Receive and handle messages until the count or the timeout is reached, a signal arrives, or
    the reader of the output has ended."""
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
    """Prints messages, and acks them if the ack mode requires it."""

    def __init__(self, as_json: bool, ack_mode: str, stopped: Callable[[], bool]) -> None:
        self._as_json = as_json
        self._acks = ack_mode in AFTER_WORK
        self.reader = StdoutReader(stopped)

    def __call__(self, message: Any) -> None:
        """Print one message. Raises BrokenPipeError if the reader has ended."""
        line = message.payload
        if self._as_json:
            fields = message_fields(message)
            line = json_text(fields).encode()
        if self.reader.give(line + b"\n") and self._acks:
            _settle(message, message.ack)


def message_fields(message: Any) -> dict[str, Any]:
    """A message as JSON fields; payload and key in base64 if they are not UTF-8."""
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
