"""Files that carry a broker's state into a new checkpoint (R3, M4).

A rebuild or a change of brokers writes a file per broker. A loop whose checkpoint has no state, or
an older one, starts with the pages in the file, and Spark commits them with the first batch. Until
then the file is the only copy; the home removes it once a checkpoint has replaced it.

A file consists of frames, each preceded by its length: the loop's snapshot, then a key and a page
in turn, and an empty frame at the end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from .errors import LakequeueError

FOLDER, SUFFIX, QUEUES = "rebuilt", ".state", "queues.json"
_LENGTH = 4


class State(Protocol):
    """A store of state pages, written by `restore`."""

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""

    def delete(self, key: str) -> None:
        """Remove a page."""

    def keys(self) -> set[str]:
        """Every page's key."""

    def save(self, snapshot: bytes) -> None:
        """Save the loop's own snapshot."""


def write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically, even if the process or the machine crashes."""
    draft = file.with_suffix(".draft")
    with draft.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())  # else a power loss could leave an empty file under the new name
    draft.replace(file)


def state_file(home: Path, broker: str) -> Path:
    """The path of a broker's rebuilt state."""
    return home / FOLDER / f"{broker}{SUFFIX}"


def write_state(file: Path, snapshot: bytes, pages: Iterable[tuple[str, bytes]]) -> None:
    """Write a state file atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    with draft.open("wb") as out:
        _frame(out, snapshot)
        for key, page in pages:
            _frame(out, key.encode())
            _frame(out, page)
        _frame(out, b"")
        out.flush()
        os.fsync(out.fileno())  # other files may refer to it from now on
    draft.replace(file)


def restore(file: Path, state: State, replaces: bool = False) -> bytes:
    """Load a file's pages into the operator's state; returns the loop's snapshot. replaces: pages
    of an older state are deleted (M4)."""
    before = state.keys() if replaces else set()
    found = read_state(file)
    _, snapshot = next(found)
    for key, page in found:
        state.put(key, page)
        before.discard(key)
    for gone in sorted(before):
        state.delete(gone)
    state.save(snapshot)
    return snapshot


def read_state(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the loop's snapshot under an empty key, then every page."""
    with _opened(file) as found:
        frames = _frames(file, found)
        yield "", next(frames)
        for key in frames:
            if not key:
                return
            yield key.decode(), next(frames)
        raise _cut(file)


class Position(msgspec.Struct):
    """The last step before a state was saved, and its time; a part of the loop's snapshot."""

    step: int = 0
    now: int = 0


position_of = msgspec.msgpack.Decoder(Position).decode


def is_newer(file: Path, saved: bytes) -> bool:
    """Whether the state in a file is newer than the one with this snapshot (M4)."""
    return step_of(file) > position_of(saved).step


def step_of(file: Path) -> int:
    """The last step before the state in a file was saved."""
    _, snapshot = next(read_state(file))
    return position_of(snapshot).step


def _opened(file: Path) -> IO[bytes]:
    """Open a file. Raises LakequeueError if it cannot be read, as on a worker without the home's
    folder."""
    try:
        return file.open("rb")
    except OSError as error:
        raise LakequeueError(
            f"{file} cannot be read on {socket.gethostname()} ({error.strerror or error}). The "
            "broker starts from this file: workers need the home's folder under the same path. "
            "Share it with all machines of the cluster, or start the engine with a local master"
        ) from error


def _frame(out: IO[bytes], content: bytes) -> None:
    out.write(len(content).to_bytes(_LENGTH, "big"))
    out.write(content)


def _frames(file: Path, found: IO[bytes]) -> Iterator[bytes]:
    while head := found.read(_LENGTH):
        content = found.read(int.from_bytes(head, "big"))
        if len(head) < _LENGTH or len(content) < int.from_bytes(head, "big"):
            raise _cut(file)
        yield content


def _cut(file: Path) -> LakequeueError:
    return LakequeueError(f"{file} is cut off: run `lakequeue rebuild` again")
