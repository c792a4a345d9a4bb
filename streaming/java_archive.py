"""The classes of a Java program as one file that its next start maps (class data sharing).

Spark loads some 18,000 classes until a first message is delivered: each is found in a jar, read,
checked and linked, at every start. Java can do that once and keep what comes of it in an archive.

    no archive:  Java writes which classes it loads ─▶ a minute later, in a process of its own and
                 behind everything else, the archive is made of that list
    an archive:  Java maps it

An archive is of one Java and one class path, and its name says of which; Java looks itself, and
goes on without where it finds another or a damaged one. It lies beside the jars in the cache.
Whatever fails here costs the time that would have been saved, and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from .jars import cache_directory
from .tied_child import start_tied

AFTER_S = 60.0  # until then the tables have had their first batches, whose classes count too
MAKE_S_MAX = 900.0
MEMORY_BYTES_MIN = 2_000_000_000  # free; making takes a little more than half of that
UNUSED_S_MAX = 30 * 86_400.0
# The first to go when memory is short, and the last to get a core.
_HUMBLY = 'echo 1000 >/proc/self/oom_score_adj; exec nice -n 19 "$@"'


class JavaArchive:
    """Of one program, such as `spark`. record: where Java writes the list of classes while there is
    no archive; None: it writes none. Whoever starts Java says in `class_path` which it has."""

    def __init__(self, program: str, record: Path | None = None) -> None:
        self._program, self._record = program, record
        self._java = Path()
        self.path: Path | None = None
        self.class_path = ""

    def options(self, java: Path, files: Iterable[Path], words: Sequence[str] = ()) -> list[str]:
        """For the start of Java. files: of the class path; words: what else decides over it."""
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
        """Make it of what was loaded so far, where there is none; another process may be at it."""
        with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeError):
            if self._wanted() and psutil.virtual_memory().available >= MEMORY_BYTES_MIN:
                _folder().mkdir(parents=True, exist_ok=True)
                with (_folder() / "lock").open("a") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
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
            command = [str(self._java), "-Xshare:dump", "-Xmx512m", "-cp", self.class_path]
            command += [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={partial}"]
            humbly = ["sh", "-c", _HUMBLY, "sh", *command]
            null = subprocess.DEVNULL
            child = start_tied(humbly, stdin=null, stdout=null, stderr=null)
            try:
                made = child.wait(MAKE_S_MAX) == 0
            finally:
                child.kill()
            if made:
                with partial.open("rb") as file:  # a machine that dies must not leave its name only
                    os.fsync(file.fileno())
                partial.replace(self.path)
                self._record.unlink()
        finally:
            for path in (listed, partial):
                path.unlink(missing_ok=True)


def make_later(archives: Iterable[JavaArchive], after_s: float = AFTER_S) -> None:
    """Make them in a thread that nobody waits for; what it started ends with this process."""

    def make() -> None:
        time.sleep(after_s)
        for archive in archives:
            archive.make()

    threading.Thread(target=make, name="java-archives", daemon=True).start()


def _folder() -> Path:
    return cache_directory() / "classes"


def _digest(java: Path, files: Iterable[Path], words: Sequence[str]) -> str:
    """Java's own look is finer; what this leaves out costs an archive that Java does not take."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in (java.resolve(), *files):
        with contextlib.suppress(OSError):
            state = path.stat()
            digest.update(f"\0{path}\0{state.st_size}\0{state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _remove_unused() -> None:
    """Archives of jars or a Java that have been replaced. Who has one mapped keeps it."""
    for path in _folder().glob("*.jsa"):
        if path.stat().st_mtime < time.time() - UNUSED_S_MAX:
            path.unlink()
