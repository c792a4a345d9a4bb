"""One engine writes a set of tables: the second is refused (R1).

What is in the tables says what is still to be written, and each engine asks that once, when it
starts. Two of them would write everything twice. The lock is the operating system's, on a file
beside the tables: who dies lets go of it, however that was.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from ..protocol.errors import LakequeueError

LOCK = ".writer"


class TablesTaken(LakequeueError):
    """Another process has the tables. owner: who it is, as far as it said so."""

    def __init__(self, tables: Path, owner: str) -> None:
        super().__init__(
            f"The tables {tables} are written by another engine ({owner}): stop that one, or use "
            "another --home"
        )
        self.owner = owner


class TablesLock:
    """Of one engine. tables: the folder that holds them."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Have the tables for oneself; raises TablesTaken where another engine has them, OSError
        where the file beside them cannot be written."""
        if self._file is not None:
            return
        file = (self._tables / LOCK).open("a+")
        try:
            # flock, not lockf: a second engine in this process is kept out too.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "an unknown process"
            file.close()
            raise TablesTaken(self._tables, owner) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go of them."""
        if self._file is not None:
            self._file.close()
            self._file = None
