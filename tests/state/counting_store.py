"""A store that counts, for tests of a step's cost."""

from __future__ import annotations

from lakequeue.state.storage.store import Store


class CountingStore:
    """Remembers the pages read and written, for tests to count."""

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
        """Reset the counters."""
        self.reads.clear()
        self.writes.clear()
