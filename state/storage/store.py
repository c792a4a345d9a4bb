"""The store of pages: bytes under text keys.

The core reads and writes only through this interface. `DictStore` keeps pages in a dict (tests,
``memory://``). The job keeps them in the operator's RocksDB state.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Store(Protocol):
    """Byte pages by key. A call costs 0.1–0.4 ms in the job, so the core makes few."""

    def get(self, key: str) -> bytes | None:
        """The page, or None."""

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""

    def delete(self, key: str) -> None:
        """Remove a page, if it is there."""


class DictStore:
    """Pages in a dict."""

    def __init__(self, pages: dict[str, bytes] | None = None) -> None:
        self.pages: dict[str, bytes] = dict(pages or {})

    def get(self, key: str) -> bytes | None:
        """The page, or None."""
        return self.pages.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Write a page."""
        self.pages[key] = value

    def delete(self, key: str) -> None:
        """Remove a page, if it is there."""
        self.pages.pop(key, None)

    def dump(self) -> bytes:
        """All pages as bytes. Equal pages give equal bytes."""
        return msgspec.msgpack.encode(dict(sorted(self.pages.items())))

    @classmethod
    def load(cls, dumped: bytes) -> DictStore:
        """The store that `dump` wrote."""
        return cls(msgspec.msgpack.decode(dumped, type=dict[str, bytes]))
