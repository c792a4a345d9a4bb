"""Locks on files. The operating system holds them, so they are released however a process ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

AGAIN_S = 0.1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock, and hold it while the context lasts."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class OwnedLock:
    """A lock whose file names its owner. owner: the text in the file. refusal: makes the error for
    another process, from the owner's text.

    It uses flock, not lockf: the lock belongs to the open file, so it also excludes a second object
    in this process, and a child that inherits the file keeps the lock while it lives.
    """

    def __init__(self, path: Path, owner: str, refusal: Callable[[str], Exception]) -> None:
        self._path, self._owner, self._refusal = path, owner, refusal
        self.file: IO[str] | None = None

    def take(self, wait_s: float = 0.0) -> None:
        """Take the lock; does nothing if this object has it. Raises the refusal, or OSError."""
        if self.file is not None:
            return
        file = self._path.open("a+")
        try:
            self._wait(file, time.monotonic() + wait_s)
            file.truncate(0)
            file.write(f"{self._owner}\n")
            file.flush()
        except BaseException:
            file.close()
            raise
        self.file = file

    def _wait(self, file: IO[str], until: float) -> None:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    file.seek(0)
                    raise self._refusal(file.read().strip() or "an unknown process") from None
            time.sleep(AGAIN_S)

    def release(self) -> None:
        """Release the lock, if this object has it."""
        if self.file is not None:
            self.file.close()
            self.file = None
