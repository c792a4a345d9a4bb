"""Pages of columns: fixed rows, one numpy array per field, packed small.

A column whose values are all equal is stored as that value, one that counts up by one as its first
value, any other as raw bytes. Most columns of most pages are constant, so a page of 1,024 messages
takes a few kilobytes instead of sixty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..few import ends_of
from .memo import MEMO
from .store import Store

NEVER = (1 << 63) - 1

Array = NDArray[Any]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class ColumnPage:
    """Rows of a page; `FIELDS` gives name, dtype and default of each column.

    bits: the page has 2 to that power rows; used: rows in use, from 0; extras: small per-row data
    that few rows have; stored: its bytes when it was read or written.
    """

    FIELDS: ClassVar[tuple[tuple[str, str, int], ...]] = ()
    __slots__ = ("bits", "dirty", "extras", "number", "stored", "used")

    def __init__(self, number: int, bits: int) -> None:
        self.number = number
        self.bits = bits
        self.used = 0
        self.extras: dict[int, Any] = {}
        self.dirty = False
        self.stored: bytes | None = None
        for name, dtype, default in self.FIELDS:
            setattr(self, name, np.full(1 << bits, default, dtype=dtype))

    @property
    def base(self) -> int:
        """The number (place or counter) of row 0."""
        return self.number << self.bits

    def pack(self) -> bytes:
        """The page as bytes; equal pages give equal bytes."""
        used = self.used
        packed = [_pack_column(getattr(self, name)[:used]) for name, _, _ in self.FIELDS]
        extras = sorted(self.extras.items())
        return _encode([used, packed, extras])

    @classmethod
    def read(cls, number: int, data: bytes, bits: int) -> Self:
        """The page that these bytes are, to be changed; as it was kept, if it was."""
        known: Self | None = MEMO.take(data)
        return cls.unpack(number, data, bits) if known is None else known

    def settle(self, store: Store, key: str) -> None:
        """Write the page if it changed. It belongs to whoever reads it next."""
        if self.dirty or self.stored is None:
            self.dirty = False
            self.stored = self.pack()
            store.put(key, self.stored)
        MEMO.keep(self.stored, self)

    @classmethod
    def unpack(cls, number: int, data: bytes, bits: int) -> Self:
        """The page that `pack` wrote."""
        page = cls.__new__(cls)
        page.number = number
        page.bits = bits
        used, packed, extras = _decode(data)
        assert used <= 1 << bits, f"page {number} has {used} rows, {1 << bits} fit"
        page.used = used
        page.extras = dict(extras)
        page.dirty = False
        page.stored = data
        for (name, dtype, default), stored in zip(cls.FIELDS, packed, strict=True):
            column = np.full(1 << bits, default, dtype=dtype)
            if isinstance(stored, list):
                column[:used] = np.arange(used, dtype=dtype) + np.array(stored[0], dtype=dtype)
            elif isinstance(stored, bytes):
                column[:used] = np.frombuffer(stored, dtype=dtype)
            elif stored != default:
                column[:used] = stored
            setattr(page, name, column)
        return page

    def overview(self) -> list[dict[str, Any]]:
        """The rows in use as plain data."""
        names = [name for name, _, _ in self.FIELDS]
        columns = [getattr(self, name)[: self.used].tolist() for name in names]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        for row, extra in self.extras.items():
            rows[row]["extra"] = extra
        return rows


def _pack_column(column: Array) -> int | list[int] | bytes:
    """One value, the first of values that count up, or bytes."""
    used, size = len(column), column.itemsize
    data = column.tobytes()
    if data == data[:size] * used:
        return int(column[0]) if used else 0
    if size == 8:
        first = int(column[0])
        if int(column[-1]) - first == used - 1:
            counting = np.arange(used, dtype=column.dtype) + column[0]
            if data == counting.tobytes():
                return [first]
    return data


def holds_any(column: int | Array) -> bool:
    """Whether a column that is to be written has a value other than 0."""
    return bool(column) if isinstance(column, int) else bool(column.any())


def by_page(numbers: Array, bits: int) -> Iterator[tuple[int, Array, Array | slice]]:
    """Group numbers (places or id counters) by page.

    Yields (page number, rows in the page, positions in the input), pages ascending, the order of
    the input kept inside a page.
    """
    if not len(numbers):
        return
    mask = (1 << bits) - 1
    low, high = ends_of(numbers)
    if low >> bits == high >> bits:  # most often
        yield low >> bits, (numbers & mask).astype(np.intp, copy=False), slice(None)
        return
    pages = numbers >> bits
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for positions in np.split(order, cuts):
        rows = (numbers[positions] & mask).astype(np.intp)
        yield int(pages[positions[0]]), rows, positions


def uniform(values: list[int], dtype: Any) -> int | Array:
    """A column that is to be written: one value where all are equal, as most often."""
    first, n = values[0], len(values)
    if values[-1] == first and values.count(first) == n:
        return first
    return np.fromiter(values, dtype, n)


def write_rows(page: ColumnPage, row: int, columns: dict[str, int | Array], part: slice) -> None:
    """Write a part of columns from a row on, behind which nothing was in use."""
    stop = page.used = row + part.stop - part.start
    for name, column in columns.items():
        getattr(page, name)[row:stop] = column if isinstance(column, int) else column[part]
