"""The ready index: the places of ready messages, in the queue's order (O1, O2, L7).

A key is one integer: the place in the queue (*seq*), or under `priority` the inverted priority in
front of it, so that smaller keys go out first. A returned message is put back under its old key and
so keeps its place. Keys stand in sorted leaves of at most `LEAF` keys, each a page of its own; a
directory (first key, count, page) in the queue's header finds the leaf. A step loads only the
leaves that it touches: usually the first and the last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

import numpy as np

from .order import join_key, split_key
from .store import Store

LEAF = 2048


class ReadyIndex:
    """Sorted keys in pages. ``directory``: lists ``[first_high, first_low, count, page]``."""

    def __init__(self, store: Store, prefix: str, directory: list[list[int]], pages: int) -> None:
        self._store = store
        self._prefix = prefix
        self.pages = pages  # next page number
        self._stored = pages  # pages from here on are new and not in the store yet
        self._firsts = [join_key(d[:3]) for d in directory]
        self._counts = [d[3] for d in directory]
        self._numbers = [d[4] for d in directory]
        self._leaves: dict[int, list[int]] = {}
        self._dirty: set[int] = set()
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return sum(self._counts)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def directory(self) -> list[list[int]]:
        """What the queue's header keeps."""
        return [
            [*split_key(first), count, number]
            for first, count, number in zip(self._firsts, self._counts, self._numbers, strict=True)
        ]

    def _leaf(self, at: int) -> list[int]:
        number = self._numbers[at]
        leaf = self._leaves.get(number)
        if leaf is None:
            data = self._store.get(f"{self._prefix}{number}")
            assert data is not None, f"leaf {number} of {self._prefix} is missing"
            columns = np.frombuffer(data, "<u8")
            if len(columns) == 3 * self._counts[at]:
                n = self._counts[at]
                high = columns[:n].view("<i8").tolist()
                middle, low = columns[n : 2 * n].tolist(), columns[2 * n :].tolist()
                parts = zip(high, middle, low, strict=True)
                leaf = [join_key(list(p)) for p in parts]
            else:
                leaf = columns.tolist()
            self._leaves[number] = leaf
        return leaf

    def _changed(self, at: int) -> None:
        leaf = self._leaves[self._numbers[at]]
        if not leaf:
            number = self._numbers[at]
            self._gone.add(number)
            self._dirty.discard(number)
            del self._firsts[at], self._counts[at], self._numbers[at]
            return
        self._firsts[at] = leaf[0]
        self._counts[at] = len(leaf)
        self._dirty.add(self._numbers[at])

    def _split(self, at: int) -> None:
        """Cut an overfull leaf into full ones."""
        number = self._numbers[at]
        leaf = self._leaves[number]
        if len(leaf) <= LEAF:
            return
        parts = [leaf[i : i + LEAF] for i in range(0, len(leaf), LEAF)]
        self._leaves[number] = parts[0]
        self._counts[at] = len(parts[0])
        for i, part in enumerate(parts[1:], 1):
            new = self.pages
            self.pages += 1
            self._leaves[new] = part
            self._dirty.add(new)
            self._firsts.insert(at + i, part[0])
            self._counts.insert(at + i, len(part))
            self._numbers.insert(at + i, new)

    def add(self, keys: list[int]) -> None:
        """Put keys in; they are ascending and none is there already."""
        done, total = 0, len(keys)
        while done < total:
            if not self._numbers:
                self._numbers.append(self.pages)
                self._leaves[self.pages] = []
                self.pages += 1
                self._firsts.append(keys[done])
                self._counts.append(0)
            at = max(bisect_right(self._firsts, keys[done]) - 1, 0)
            stop = total
            if at + 1 < len(self._firsts):
                stop = bisect_left(keys, self._firsts[at + 1], done)
            leaf = self._leaf(at)
            part = keys[done:stop]
            if not leaf or part[0] > leaf[-1]:
                leaf.extend(part)
            elif len(part) == 1:
                insort(leaf, part[0])
            else:
                leaf.extend(part)
                leaf.sort()
            self._changed(at)
            self._split(at)
            done = stop

    def discard(self, keys: list[int]) -> None:
        """Take keys out; those that are not there are passed over. Ascending."""
        done, total = 0, len(keys)
        while done < total and self._numbers:
            at = max(bisect_right(self._firsts, keys[done]) - 1, 0)
            stop = total
            if at + 1 < len(self._firsts):
                stop = max(bisect_left(keys, self._firsts[at + 1], done), done + 1)
            leaf = self._leaf(at)
            part = keys[done:stop]
            if part[0] <= leaf[-1]:
                start = bisect_left(leaf, part[0])
                if leaf[start : start + len(part)] == part:
                    del leaf[start : start + len(part)]
                else:
                    out = set(part)
                    leaf[:] = [k for k in leaf if k not in out]
                self._changed(at)
            done = stop

    def peek(self, most: int, below: int | None = None) -> list[int]:
        """Up to ``most`` first keys, only those below ``below``; they stay."""
        found: list[int] = []
        at = 0
        while at < len(self._numbers) and len(found) < most:
            if below is not None and self._firsts[at] >= below:
                break
            leaf = self._leaf(at)
            stop = min(most - len(found), len(leaf))
            if below is not None:
                stop = min(stop, bisect_left(leaf, below))
            found += leaf[:stop]
            at += 1
        return found

    def __contains__(self, key: int) -> bool:
        if not self._numbers:
            return False
        leaf = self._leaf(max(bisect_right(self._firsts, key) - 1, 0))
        at = bisect_left(leaf, key)
        return at < len(leaf) and leaf[at] == key

    def first(self) -> int | None:
        """The first key, or None."""
        return self._firsts[0] if self._firsts else None

    def scan(self, start: int | None = None) -> Iterator[int]:
        """Keys from ``start`` on, ascending. Do not change the index meanwhile."""
        at = 0 if start is None else max(bisect_right(self._firsts, start) - 1, 0)
        while at < len(self._numbers):
            leaf = self._leaf(at)
            yield from leaf if start is None else leaf[bisect_left(leaf, start) :]
            at += 1

    def drop(self) -> None:
        """Delete every page."""
        self._gone.update(self._numbers)
        self._dirty.clear()
        self._firsts, self._counts, self._numbers = [], [], []

    def flush(self) -> None:
        """Write the leaves that changed."""
        for number in sorted(n for n in self._gone if n < self._stored):
            self._store.delete(f"{self._prefix}{number}")
        for number in sorted(self._dirty):
            leaf = self._leaves[number]
            if leaf[-1] >> 64 or leaf[0] < 0:
                high, middle, low = zip(*map(split_key, leaf), strict=True)
                unsigned = np.array(high, "<i8").view("<u8")
                data = np.concatenate((unsigned, np.array(middle, "<u8"), np.array(low, "<u8")))
            else:
                data = np.array(leaf, "<u8")
            self._store.put(f"{self._prefix}{number}", data.tobytes())
        self._dirty.clear()
        self._gone.clear()
        self._stored = self.pages
