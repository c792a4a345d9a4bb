"""Giving messages to a command, whose exit status acks or cancels (`consume --exec`, C7, L11).

A command that fails comes again after a pause, so that one that is down for a minute does not use
up a message's attempts in a second: the pause that was asked for, else the queue's own back-off,
else one of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any

from ..protocol.errors import LeaseLost
from .common import note

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
