"""Where the state lives: small byte pages under text keys.

The step reads and writes through this face only. `DictStore` keeps pages in a dict (tests,
``memory://``); the job keeps them in the operator's RocksDB state. What stands above reads a page
at most once and writes it at most once per step, in a fixed order.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Store(Protocol):
    """Byte pages by key; a call costs 0.1–0.4 ms in the job, so calls are few and pages small."""

    def get(self, key: str) -> bytes | None:
        """The page, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""

    def delete(self, key: str) -> None:
        """Remove a page; one that is not there is no error."""


class DictStore:
    """Pages in a dict."""

    def __init__(self, pages: dict[str, bytes] | None = None) -> None:
        self.pages: dict[str, bytes] = dict(pages or {})

    def get(self, key: str) -> bytes | None:
        return self.pages.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.pages[key] = value

    def delete(self, key: str) -> None:
        self.pages.pop(key, None)

    def dump(self) -> bytes:
        """The whole state as bytes, equal for equal states."""
        return _encode(dict(sorted(self.pages.items())))

    @classmethod
    def load(cls, dumped: bytes) -> DictStore:
        """The state that `dump` wrote."""
        return cls(msgspec.msgpack.decode(dumped, type=dict[str, bytes]))


class CountingStore:
    """A store that remembers which pages were read and written: an operation is held to numbers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads: list[str] = []
        self.writes: list[str] = []  # puts and deletes

    def get(self, key: str) -> bytes | None:
        self.reads.append(key)
        return self._store.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.writes.append(key)
        self._store.put(key, value)

    def delete(self, key: str) -> None:
        self.writes.append(key)
        self._store.delete(key)

    def reset(self) -> None:
        """Begin to count again."""
        self.reads.clear()
        self.writes.clear()


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
