"""Pages of columns: fixed rows, one numpy array per field, packed small.

A column whose values are all equal is stored as that value, one that counts up by one as its first
value, any other as raw bytes. Most columns of most pages are constant, so a page of 1,024 messages
takes a few kilobytes instead of sixty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

PAGE_BITS = 10
PAGE_ROWS = 1 << PAGE_BITS
ROW_MASK = PAGE_ROWS - 1
NEVER = (1 << 63) - 1

Array = NDArray[Any]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class ColumnPage:
    """Rows of a page; `FIELDS` gives name, dtype and default of each column.

    used: rows in use, from 0; extras: small per-row data that few rows have.
    """

    FIELDS: ClassVar[tuple[tuple[str, str, int], ...]] = ()
    __slots__ = ("dirty", "extras", "number", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = 0
        self.extras: dict[int, Any] = {}
        self.dirty = False
        for name, dtype, default in self.FIELDS:
            setattr(self, name, np.full(PAGE_ROWS, default, dtype=dtype))

    def pack(self) -> bytes:
        """The page as bytes; equal pages give equal bytes."""
        used = self.used
        packed: list[Any] = []
        for name, _, _ in self.FIELDS:
            column = getattr(self, name)[:used]
            if used == 0 or (column == column[0]).all():
                packed.append(int(column[0]) if used else 0)
            elif column.dtype.itemsize == 8 and (np.diff(column) == 1).all():
                packed.append([int(column[0])])
            else:
                packed.append(column.tobytes())
        extras = sorted(self.extras.items())
        return _encode([used, packed, extras])

    @classmethod
    def unpack(cls, number: int, data: bytes) -> Any:
        """The page that `pack` wrote."""
        page = cls.__new__(cls)
        page.number = number
        used, packed, extras = _decode(data)
        page.used = used
        page.extras = dict(extras)
        page.dirty = False
        for (name, dtype, default), stored in zip(cls.FIELDS, packed, strict=True):
            column = np.full(PAGE_ROWS, default, dtype=dtype)
            if isinstance(stored, list):
                column[:used] = np.arange(used, dtype=dtype) + np.array(stored[0], dtype=dtype)
            elif isinstance(stored, bytes):
                column[:used] = np.frombuffer(stored, dtype=dtype)
            else:
                column[:used] = stored
            setattr(page, name, column)
        return page


def by_page(numbers: Array) -> Iterator[tuple[int, Array, Array | slice]]:
    """Group numbers (sequences or id counters) by page.

    Yields (page number, rows in the page, positions in the input), pages ascending, the order of
    the input kept inside a page.
    """
    if not len(numbers):
        return
    pages = numbers >> PAGE_BITS
    first, last = int(pages.min()), int(pages.max())
    if first == last:
        yield first, (numbers & ROW_MASK).astype(np.intp), slice(None)
        return
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for positions in np.split(order, cuts):
        rows = (numbers[positions] & ROW_MASK).astype(np.intp)
        yield int(pages[positions[0]]), rows, positions
