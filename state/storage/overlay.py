"""A store over a store: what is written stays in memory until it is applied or thrown away.

A command that may fail half-way works on an overlay: `commit` makes all its writes the store's,
`drop` makes it as if nothing had been tried. An overlay may stand over another.
"""

from __future__ import annotations

from .store import Store


class StoreFailed(Exception):
    """The store itself failed: ``error`` is what it raised. No rule is at fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Overlay:
    """Pages that were written since, over a store that does not know of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[str, bytes | None] = {}  # None: deleted
        self.reads = 0  # pages that were asked for

    def get(self, key: str) -> bytes | None:
        """The page as written here, else as the store below has it."""
        self.reads += 1
        if key in self._changed:
            return self._changed[key]
        try:
            return self._store.get(key)
        except StoreFailed:
            raise
        except Exception as error:
            raise StoreFailed(error) from error

    def put(self, key: str, value: bytes) -> None:
        """Write a page, here only."""
        self._changed[key] = value

    def delete(self, key: str) -> None:
        """Remove a page, here only."""
        self._changed[key] = None

    def commit(self) -> None:
        """Write what changed to the store below, in the order of the keys."""
        for key, value in sorted(self._changed.items()):
            if value is None:
                self._store.delete(key)
            else:
                self._store.put(key, value)
        self._changed.clear()

    def drop(self) -> None:
        """Forget what changed."""
        self._changed.clear()

    def overview(self) -> dict[str, int | None]:
        """Changed keys with the size of the page; None where it is deleted."""
        return {
            key: None if value is None else len(value)
            for key, value in sorted(self._changed.items())
        }
