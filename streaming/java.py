"""Java processes: an archive of classes for a fast start, and children that end with this process.

Spark loads about 18,000 classes before it delivers the first message. At each start Java finds
each in a jar, reads, checks and links it. Class data sharing does that only once:

    without an archive   Java lists the classes that it loads. A minute later a process with low
                         priority makes the archive from that list.
    with an archive      Java maps it.

An archive belongs to one Java and one class path, whose digest is in its name. Java checks both
again, and ignores an archive that is damaged or does not fit. Archives are in the cache, beside the
jars. A failure here only makes the start slower.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil

from .file_lock import locked
from .jars import cache_directory

AFTER_S = 60.0  # by then the tables have had their first batches, whose classes count too
MAKE_S_MAX = 900.0
# free memory that making an archive requires; it takes a little more than half of it
MEMORY_BYTES_MIN = 2_000_000_000
UNUSED_S_MAX = 30 * 86_400.0
# The kernel kills this process first when memory is short, and gives it a core last.
_LOWEST_PRIORITY = 'echo 1000 >/proc/self/oom_score_adj; exec nice -n 19 "$@"'


class JavaArchive:
    """The archive of one program, such as `spark`. record: the file in which Java lists its classes
    while there is no archive; None: it lists none. The code that starts Java sets `class_path`."""

    def __init__(self, program: str, record: Path | None = None) -> None:
        self._program, self._record = program, record
        self._java = Path()
        self.path: Path | None = None
        self.class_path = ""

    def options(self, java: Path, files: Iterable[Path], words: Sequence[str] = ()) -> list[str]:
        """Options for the start of Java. files: of the class path; words: other texts on which the
        archive depends."""
        self._java = java
        self.path = _folder() / f"{self._program}-{_digest(java, files, words)}.jsa"
        if self.path.is_file():
            with contextlib.suppress(OSError):
                os.utime(self.path)  # it is in use
            return [
                f"-XX:SharedArchiveFile={self.path}",
                "-XX:+VerifySharedSpaces",
                "-Xlog:cds*=off",
            ]
        if self._record is None:
            return []
        return ["-XX:+IgnoreUnrecognizedVMOptions", f"-XX:DumpLoadedClassList={self._record}"]

    def make(self) -> None:
        """Make the archive if it is missing. Another process may be doing the same."""
        with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeError):
            if self._wanted() and psutil.virtual_memory().available >= MEMORY_BYTES_MIN:
                _folder().mkdir(parents=True, exist_ok=True)
                with locked(_folder() / "lock"):
                    if self._wanted():
                        self._make()
                        _remove_unused()

    def _wanted(self) -> bool:
        if self.path is None or self._record is None or not self.class_path:
            return False
        return self._record.is_file() and not self.path.is_file()

    def _make(self) -> None:
        assert self.path is not None
        assert self._record is not None
        # Java is still writing it.
        classes = self._record.read_text().rpartition("\n")[0]
        listed, partial = (self.path.with_suffix(end) for end in (".classes", ".partial"))
        try:
            listed.write_text(classes + "\n")
            # C1 alone: most of the work is done once, so compiling it well takes 8 % more
            command = [str(self._java), "-Xshare:dump", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
            command += ["-cp", self.class_path]
            command += [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={partial}"]
            at_low_priority = ["sh", "-c", _LOWEST_PRIORITY, "sh", *command]
            null = subprocess.DEVNULL
            child = start_tied(at_low_priority, stdin=null, stdout=null, stderr=null)
            try:
                made = child.wait(MAKE_S_MAX) == 0
            finally:
                child.kill()
            if made:
                # a machine that dies must not leave an empty file of this name
                with partial.open("rb") as file:
                    os.fsync(file.fileno())
                partial.replace(self.path)
                self._record.unlink()
        finally:
            for path in (listed, partial):
                path.unlink(missing_ok=True)


def make_later(archives: Iterable[JavaArchive], after_s: float = AFTER_S) -> None:
    """Make archives later, in a thread. Its child processes end with this process."""

    def make() -> None:
        time.sleep(after_s)
        for archive in archives:
            archive.make()

    threading.Thread(target=make, name="java-archives", daemon=True).start()


def _folder() -> Path:
    return cache_directory() / "classes"


def _digest(java: Path, files: Iterable[Path], words: Sequence[str]) -> str:
    """The digest in an archive's name. Java's own check is stricter: if this one misses a
    difference, Java ignores the archive."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in (java.resolve(), *files):
        with contextlib.suppress(OSError):
            state = path.stat()
            digest.update(f"\0{path}\0{state.st_size}\0{state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _remove_unused() -> None:
    """Remove archives of replaced jars or Javas, and the remains of a process that died while it
    made one: this process has the lock. A process that has mapped an archive keeps it."""
    for path in _folder().iterdir():
        unused = path.stat().st_mtime < time.time() - UNUSED_S_MAX
        if path.suffix in (".classes", ".partial") or (path.suffix == ".jsa" and unused):
            path.unlink()


_PR_SET_PDEATHSIG = 1


def start_tied(
    command: list[str], at_end: signal.Signals = signal.SIGKILL, **options: Any
) -> subprocess.Popen[Any]:
    """Start a child that the kernel kills when this process dies, however it dies.
    at_end: the signal that it sends then.

    Linux ties the child to the thread that forked it, so that thread lives as long as the child.
    Other systems have no such guarantee.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()

    def die_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, at_end)
            if os.getppid() != parent:  # it died between the fork and the call
                os._exit(1)

    started: Future[subprocess.Popen[Any]] = Future()

    def keep() -> None:
        try:
            child = subprocess.Popen(command, preexec_fn=die_with_parent, **options)
        except BaseException as error:  # raised in the thread that waits for it
            started.set_exception(error)
            return
        started.set_result(child)
        child.wait()

    threading.Thread(target=keep, name="child-keeper", daemon=True).start()
    return started.result()
