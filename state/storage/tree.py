"""A tree of column pages: a row of a page above sums up a whole page below.

Rows are numbered from 0, in pages of 2^bits rows; only pages with a row that is *present* exist.
The one page on top is summed up in `root`, a short list in the owner's header, so that the header
never grows. A question is answered by going down where a summary says that there is something to
find: it costs a page per level, however many rows there are. The levels are as many as the highest
present row needs, and absent rows are as they were at first: the same content gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from ..few import greatest_of, least_of, total_of
from .columns import Array, ColumnPage
from .store import Store

_REDUCE: dict[str, Callable[[Array], int]] = {
    "sum": total_of,
    "min": least_of,
    "max": greatest_of,
}


class SummaryTree:
    """Rows of numbers with summaries. ``root``: ``[levels, *summary]``, empty without a row."""

    LEAF: ClassVar[type[ColumnPage]]  # pages of rows
    INNER: ClassVar[type[ColumnPage]]  # pages of summaries
    SUMMED: ClassVar[tuple[tuple[str, str], ...]]  # columns of both, and how they are summed up
    PRESENT: ClassVar[str]  # a row is present where this column is not 0; it is a sum

    def __init__(self, store: Store, prefix: str, root: list[int], bits: int) -> None:
        self._store = store
        self._prefix = prefix
        self.root = root
        self._bits = bits
        self._nodes: dict[tuple[int, int], Any] = {}
        self._unsettled: set[tuple[int, int]] = set()
        names = [name for name, _ in self.SUMMED]
        self._at = {name: 1 + i for i, name in enumerate(names)}

    def total(self, column: str) -> int | None:
        """A column summed up over all rows; None without a row."""
        self.settle()
        return self.root[self._at[column]] if self.root else None

    # ------------------------------------------------------------ pages

    @property
    def _levels(self) -> int:
        return self.root[0] if self.root else 0

    def _node(self, level: int, number: int) -> Any:
        """A page; read only where the summary above says that it is there."""
        node = self._nodes.get((level, number))
        if node is None:
            kind = self.INNER if level else self.LEAF
            there = number >> self._bits * max(self._levels - level - 1, 0) == 0
            if level + 1 >= self._levels:
                there = level + 1 == self._levels and bool(self.root[self._at[self.PRESENT]])
            elif there:
                above = self._node(level + 1, number >> self._bits)
                there = bool(getattr(above, self.PRESENT)[number & (1 << self._bits) - 1])
            data = self._store.get(f"{self._prefix}{level}/{number}") if there else None
            assert data or not there, f"page {self._prefix}{level}/{number} is missing"
            node = kind.read(number, data, self._bits) if data else kind(number, self._bits)
            self._nodes[level, number] = node
        return node

    def row(self, number: int) -> dict[str, int]:
        """The columns of a row; defaults where it is absent."""
        at = number & (1 << self._bits) - 1
        if number >> self._bits * max(self._levels, 1):
            return {name: default for name, _, default in self.LEAF.FIELDS}
        node = self._node(0, number >> self._bits)
        return {name: int(getattr(node, name)[at]) for name, _, _ in self.LEAF.FIELDS}

    def write(self, number: int, values: dict[str, int]) -> None:
        """Set all columns of a row; without its present column it is absent."""
        if not values[self.PRESENT]:
            values = {name: default for name, _, default in self.LEAF.FIELDS}
            if not self.root or number >> self._bits * self._levels:
                return
        self._reach(number)
        self._write(0, number, values)

    def _write(self, level: int, number: int, values: dict[str, int]) -> None:
        node = self._node(level, number >> self._bits)
        row = number & (1 << self._bits) - 1
        columns = [(getattr(node, name), value) for name, value in values.items()]
        if all(column[row] == value for column, value in columns):
            return
        for column, value in columns:
            column[row] = value
        node.used = max(node.used, row + 1)
        node.dirty = True
        self._unsettled.add((level, node.number))

    def _reach(self, number: int) -> None:
        """Add levels until the tree reaches a row."""
        needed = max(-(-number.bit_length() // self._bits), 1)
        if self._levels >= needed:
            return
        self.settle()
        if not self.root:
            self.root[:] = [needed, *(0 for _ in self.SUMMED)]
            return
        while self.root[0] < needed:
            self._nodes.setdefault((self.root[0], 0), self.INNER(0, self._bits))
            self.root[0] += 1
            line = dict(zip(self._at, self.root[1:], strict=True))
            self._write(self.root[0] - 1, 0, line)

    # ------------------------------------------------------------ summaries

    def settle(self) -> None:
        """Bring the summaries up to date with the rows that changed."""
        if not self._unsettled:
            return
        level = 0
        while self._unsettled:
            numbers = sorted(number for at, number in self._unsettled if at == level)
            self._unsettled.difference_update((level, number) for number in numbers)
            for number in numbers:
                node = self._nodes[level, number]
                used = node.used  # behind it all is as at first, which changes no summary
                line = {name: _REDUCE[how](getattr(node, name)[:used]) for name, how in self.SUMMED}
                if level + 1 == self._levels:
                    self.root[1:] = line.values()
                    continue
                if not line[self.PRESENT]:
                    line = {name: default for name, _, default in self.INNER.FIELDS}
                self._write(level + 1, number, line)
            level += 1
        self._shrink()

    def _shrink(self) -> None:
        if self.root and not self.root[self._at[self.PRESENT]]:
            self.root.clear()
        while self._levels > 1:
            present = getattr(self._node(self._levels - 1, 0), self.PRESENT)
            if present[1:].any():
                return
            top = self._nodes[self._levels - 1, 0]
            for name, _, default in self.INNER.FIELDS:
                getattr(top, name)[0] = default
            top.dirty = True
            self.root[0] -= 1

    # ------------------------------------------------------------ looking

    def walk(self, wanted: Callable[[Any], Array], start: int = 0) -> Iterator[int]:
        """Rows from ``start`` on, ascending, for which ``wanted`` holds: it is given a page and
        says which rows. A page is looked at when it is reached."""
        self.settle()
        if self.root:
            yield from self._walk(wanted, start, self._levels - 1, 0)

    def _walk(
        self, wanted: Callable[[Any], Array], start: int, level: int, number: int
    ) -> Iterator[int]:
        node = self._node(level, number)
        shift = self._bits * level
        found = np.flatnonzero(wanted(node)) + (number << self._bits)
        for below in found[np.searchsorted(found, start >> shift) :].tolist():
            if level == 0:
                yield below
            else:
                yield from self._walk(wanted, start, level - 1, below)

    def present(self, start: int = 0) -> Iterator[int]:
        """Rows that are present, ascending."""
        return self.walk(lambda node: getattr(node, self.PRESENT) > 0, start)

    def overview(self) -> dict[int, dict[str, int]]:
        """Every present row."""
        return {number: self.row(number) for number in self.present()}

    # ------------------------------------------------------------ end of the step

    def drop(self) -> None:
        """Delete every page."""
        pages = {node for node, page in self._nodes.items() if page.dirty}
        for row in self.present():
            pages.update((at, row >> self._bits * (at + 1)) for at in range(self._levels))
        for level, number in sorted(pages):
            self._store.delete(f"{self._prefix}{level}/{number}")
        self.root.clear()
        self._nodes.clear()
        self._unsettled.clear()

    def flush(self) -> None:
        """Write the pages that changed; one without a present row is deleted."""
        self.settle()
        for (level, number), node in sorted(self._nodes.items()):
            if not node.dirty and node.stored is None:
                continue  # one that is not there
            key = f"{self._prefix}{level}/{number}"
            present = getattr(node, self.PRESENT).nonzero()[0] if node.dirty else None
            if present is None:
                node.settle(self._store, key)
            elif len(present):
                node.used = int(present[-1]) + 1
                node.settle(self._store, key)
            else:
                self._store.delete(key)
        self._nodes.clear()
