"""Where the state lives: small byte pages under text keys.

The step reads and writes through this face only. `DictStore` keeps pages in a dict (tests,
``memory://``); the job keeps them in the operator's RocksDB state. What stands above reads a page
at most once and writes it at most once per step, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.storage.store import CountingStore, DictStore, Store

__all__ = ["CountingStore", "DictStore", "Store", "ValuePages"]

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class ValuePages:
    """Small msgpack values by key, read once and written once per step, sorted by key.

    For pages that are plain maps: names, routes, sessions, producers, calendar buckets.
    A value that became empty or None is deleted.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, Any] = {}
        self._dirty: set[str] = set()

    def read(self, key: str) -> Any:
        """The value, or None. Do not change it without `write`."""
        if key not in self._values:
            page = self._store.get(key)
            self._values[key] = None if page is None else _decode(page, strict=False)
        return self._values[key]

    def write(self, key: str, value: Any) -> None:
        """Set a value; None or an empty one deletes the page."""
        self._values[key] = value
        self._dirty.add(key)

    def overview(self) -> dict[str, Any]:
        """What was read or written, and is there."""
        return {key: value for key, value in sorted(self._values.items()) if value}

    def flush(self) -> None:
        """Write what changed."""
        for key in sorted(self._dirty):
            value = self._values[key]
            if value:
                self._store.put(key, _encode(value))
            else:
                self._store.delete(key)
        self._dirty.clear()
