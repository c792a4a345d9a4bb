"""`lakequeue consume`: print messages, or give each to a command and ack by its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..protocol.errors import LeaseLost
from .common import (
    connect,
    connection_options,
    json_option,
    note,
    option,
    payload_fields,
    say_json,
    stop_on_signals,
)

POLL_S = 0.5
BACKLOG = 100
ACK_MODES = ("individual", "client", "auto", "dups_ok", "pre_ack", "no_ack")
AFTER_WORK = ("individual", "client")  # the modes in which this command itself acks


@click.command()
@click.argument("queue")
@option("--count", type=click.IntRange(min=1), help="End after this many messages.")
@option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="End when no message came for so long.  [default: wait for ever]",
)  # fmt: skip
@option("--filter", "where", metavar="EXPRESSION", help="Only such messages: '/price > 10'.")
@option(
    "--ack-mode", type=click.Choice(ACK_MODES), default="individual", show_default=True,
    help="individual and client: acked once printed, or when the command has ended.",
)  # fmt: skip
@option(
    "--max-backlog", type=click.IntRange(min=1),
    help="Most messages held at once; the queue's limit holds too.  [default: 100; --exec: 1]",
)  # fmt: skip
@option(
    "--exec", "command", metavar="COMMAND",
    help="Run this with each payload on its standard input; status 0 acks, another cancels.",
)  # fmt: skip
@option("--retry-delay", metavar="DURATION", help="With --exec: how long a canceled one waits.")
@connection_options
@json_option
def consume(
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

    A command of --exec finds LAKEQUEUE_MESSAGE_ID, LAKEQUEUE_QUEUE, LAKEQUEUE_DELIVERY_COUNT,
    LAKEQUEUE_REDELIVERED, LAKEQUEUE_PRIORITY and LAKEQUEUE_HEADER_<NAME> in its environment.
    What is held when the command ends goes back to the queue.

    \b
    Examples:
      lakequeue consume orders --count 10
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
    work = _executor(command, retry_delay) if command else _printer(as_json, ack_mode)
    with connect(url, home, vpn, "consume") as connection, stop_on_signals() as stop:
        options = {"filter": where} if where else {}
        with connection.consumer(
            queue, ack_mode=ack_mode, max_backlog=backlog, **options
        ) as consumer:
            done = _receive(consumer, work, count, timeout, stop.is_set)
    if command:
        note(f"{done:,} messages given to the command")


def _receive(
    consumer: Any,
    work: Callable[[Any], None],
    count: int | None,
    timeout: float | None,
    stopped: Callable[[], bool],
) -> int:
    """Receive and work until the count, the silence or a signal; returns how many."""
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
            continue
        try:
            work(message)
        except LeaseLost:
            note(f"Message {message.id} took longer than its lease; it will be delivered again.")
        done += 1
        quiet_since = time.monotonic()
    return done


def _printer(as_json: bool, ack_mode: str) -> Callable[[Any], None]:
    """Prints a message; then acks it where that is this command's business."""

    def work(message: Any) -> None:
        if as_json:
            say_json(message_fields(message))
        else:
            sys.stdout.buffer.write(message.payload + b"\n")
            sys.stdout.buffer.flush()
        if ack_mode in AFTER_WORK:
            message.ack()

    return work


def message_fields(message: Any) -> dict[str, Any]:
    """A message for JSON; a payload that is not UTF-8 in base64."""
    return {
        "id": message.id,
        "queue": message.queue,
        **payload_fields(message.payload),
        "headers": message.headers,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
        "priority": message.priority,
    }


def _executor(command: str, retry_delay: str | None) -> Callable[[Any], None]:
    """Runs the command with a message; its exit status acks or cancels."""

    def work(message: Any) -> None:
        environment = {**os.environ, **message_environment(message)}
        done = subprocess.run(command, shell=True, input=message.payload, env=environment)
        if done.returncode == 0:
            message.ack()
        elif retry_delay is None:
            message.cancel()
        else:
            message.cancel(delay=retry_delay)

    return work


def message_environment(message: Any) -> dict[str, str]:
    """What a command learns of its message, besides the payload."""
    out = {
        "LAKEQUEUE_MESSAGE_ID": message.id,
        "LAKEQUEUE_QUEUE": message.queue,
        "LAKEQUEUE_DELIVERY_COUNT": str(message.delivery_count),
        "LAKEQUEUE_REDELIVERED": "1" if message.redelivered else "0",
        "LAKEQUEUE_PRIORITY": str(message.priority),
    }
    for name, value in (message.headers or {}).items():
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name).upper()
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        out[f"LAKEQUEUE_HEADER_{plain}"] = text.replace("\0", "")
    return out
