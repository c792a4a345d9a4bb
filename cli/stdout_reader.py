"""Who reads what a command prints, and how much of it has been taken.

A pipe holds 64 KB that nobody has read. What was written to it without an error is not yet in
anybody's hands: `lakequeue consume orders | head -1` would fill it with messages that `head` never
sees. So a message counts as taken when the reader has taken all of it out of the pipe, which Linux
tells of either end (FIONREAD). Elsewhere, and where standard output is a file or a terminal, it
counts once it is flushed.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable

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
