"""The state store adapter: the only place that touches a Spark state handle.

`StatePages` is the bare state, for the page cache of the loop. `HandleStore` is what a micro-batch
steps on: a page of a megabyte takes Spark 10 ms to store, and a step that takes in a burst writes
dozens, so a large page, and what is written after it, is written by a thread meanwhile.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

# As types: a schema as text is sent to the Java process to be parsed, in every batch.
_KEY = StructType([StructField("key", StringType())])
_PAGE = StructType([StructField("page", BinaryType())])
_SNAPSHOT = StructType([StructField("snapshot", BinaryType())])
LARGE = 100_000  # bytes; below, handing over costs more than writing


class StatePages:
    """Pages in the operator's map state, and beside them the loop's own snapshot."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._pages = handle.getMapState("pages", _KEY, _PAGE)
        self._snapshot = handle.getValueState("snapshot", _SNAPSHOT)

    def get(self, key: str) -> bytes | None:
        """The page, or None."""
        row = self._pages.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""
        self._pages.updateValue((key,), (value,))

    def delete(self, key: str) -> None:
        """Remove a page."""
        self._pages.removeKey((key,))

    def keys(self) -> set[str]:
        """Every page's key."""
        return {row[0] for row in self._pages.keys()}  # noqa: SIM118 (it is no dict)

    def load(self) -> bytes | None:
        """The snapshot that was saved last, or None."""
        row = self._snapshot.get()
        return None if row is None else bytes(row[0])

    def save(self, snapshot: bytes) -> None:
        """Save the snapshot."""
        self._snapshot.update((snapshot,))


class HandleStore:
    """Pages in the operator's map state, under text keys."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._pages = handle.getMapState("pages", _KEY, _PAGE)
        self._calls = threading.Lock()  # a handle takes one call at a time
        self._writer: ThreadPoolExecutor | None = None
        self._unwritten: list[Future[None]] = []
        self._newest: dict[str, Future[None]] = {}

    def get(self, key: str) -> bytes | None:
        """The page, or None."""
        if (written := self._newest.get(key)) is not None:
            written.result()
        with self._calls:
            row = self._pages.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        """Write a page, now or later: see `finish`."""
        if self._writer is None:
            if len(value) < LARGE:
                self._write(key, value)
                return
            self._writer = ThreadPoolExecutor(1, "lakequeue-state")
        self._later(key, self._writer.submit(self._write, key, value))

    def delete(self, key: str) -> None:
        """Remove a page, now or later; one that is not there is no error."""
        if self._writer is None:
            self._remove(key)
        else:
            self._later(key, self._writer.submit(self._remove, key))

    def keys(self) -> set[str]:
        """Every page's key; before anything is written."""
        return {row[0] for row in self._pages.keys()}  # noqa: SIM118 (it is no dict)

    def finish(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        unwritten, self._unwritten = self._unwritten, []
        self._newest.clear()
        for written in unwritten:
            written.result()

    def _later(self, key: str, written: Future[None]) -> None:
        self._unwritten.append(written)
        self._newest[key] = written

    def _write(self, key: str, value: bytes) -> None:
        with self._calls:
            self._pages.updateValue((key,), (value,))

    def _remove(self, key: str) -> None:
        with self._calls:
            self._pages.removeKey((key,))
