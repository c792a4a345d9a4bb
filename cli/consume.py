"""`lakequeue consume`: print messages, or give each to a command and ack by its exit status."""

from __future__ import annotations

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
from .executor import Executor
from .group import EXIT_FAILED
from .stdout_reader import StdoutReader

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
