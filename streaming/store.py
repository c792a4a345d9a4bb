"""The state store adapter: the only place that touches a Spark state handle."""

from __future__ import annotations

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

# As types: a schema as text is sent to the Java process to be parsed, in every batch.
_KEY = StructType([StructField("key", StringType())])
_PAGE = StructType([StructField("page", BinaryType())])


class HandleStore:
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
