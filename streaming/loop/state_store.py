"""The state store adapter: the only place that touches a Spark state handle.

`MapPages` is the operator's map state, which a micro-batch writes at its end. `StatePages` adds the
loop's own snapshot; the page cache is in front of it.
"""

from __future__ import annotations

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

# As types, because Java would parse a schema given as text in every batch.
_KEY = StructType([StructField("key", StringType())])
_PAGE = StructType([StructField("page", BinaryType())])
_SNAPSHOT = StructType([StructField("snapshot", BinaryType())])


class MapPages:
    """Pages in the operator's map state, under text keys."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._pages = handle.getMapState("pages", _KEY, _PAGE)

    def get(self, key: str) -> bytes | None:
        """The page, or None."""
        row = self._pages.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""
        self._pages.updateValue((key,), (value,))

    def delete(self, key: str) -> None:
        """Remove a page; one that is not there is no error."""
        self._pages.removeKey((key,))

    def keys(self) -> set[str]:
        """Every page's key."""
        return {row[0] for row in self._pages.keys()}  # noqa: SIM118 (it is no dict)


class StatePages(MapPages):
    """The same pages, and the loop's own snapshot."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        super().__init__(handle)
        self._snapshot = handle.getValueState("snapshot", _SNAPSHOT)

    def load(self) -> bytes | None:
        """The snapshot that was saved last, or None."""
        row = self._snapshot.get()
        return None if row is None else bytes(row[0])

    def save(self, snapshot: bytes) -> None:
        """Save the snapshot."""
        self._snapshot.update((snapshot,))
