"""The pages of the ready index: leaves of keys, and branches that name pages below.

A key is an integer of up to 192 bits with a sign; msgpack and numpy take it in three words. A leaf
whose keys all fit into one word without a sign keeps one word of each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

_WORD = (1 << 64) - 1


def split_key(key: int) -> list[int]:
    """A key in three words, the highest with the sign."""
    return [key >> 128, (key >> 64) & _WORD, key & _WORD]


def join_key(words: list[int]) -> int:
    """The key that `split_key` split."""
    high, middle, low = words
    return (high << 128) + (middle << 64) + low


@dataclass(slots=True)
class Leaf:
    """Sorted keys."""

    page: int
    keys: list[int]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def first(self) -> int:
        """The smallest key."""
        return self.keys[0]

    @property
    def count(self) -> int:
        """How many keys."""
        return len(self.keys)

    def discard(self, keys: list[int]) -> bool:
        """Take out those of these keys that are there; says whether there were any."""
        own, before = self.keys, len(self.keys)
        start = bisect_left(own, keys[0])
        if own[start : start + len(keys)] == keys:
            del own[start : start + len(keys)]
        else:
            out = set(keys)
            own[:] = [k for k in own if k not in out]
        return len(own) < before

    def cut(self, most: int, appended: bool) -> list[Leaf]:
        """This leaf and what is too much for it: full ones behind each other, or equal parts."""
        n = len(self.keys)
        if n <= most:
            return [self]
        size = most if appended else -(-n // -(-n // most))
        parts = [Leaf(-1, self.keys[i : i + size]) for i in range(size, n, size)]
        del self.keys[size:]
        return [self, *parts]

    def join(self, other: Leaf | Branch) -> None:
        """Take in the keys of the next leaf."""
        assert isinstance(other, Leaf), "a leaf is joined with a leaf"
        self.keys += other.keys


@dataclass(slots=True)
class Branch:
    """Entries in columns: first key, number of keys and page of each page below."""

    page: int
    level: int  # of the pages below, and one
    firsts: list[int]
    counts: list[int]
    pages: list[int]

    def __len__(self) -> int:
        return len(self.pages)

    @property
    def first(self) -> int:
        """The smallest key below."""
        return self.firsts[0]

    @property
    def count(self) -> int:
        """How many keys are below."""
        return sum(self.counts)

    def find(self, key: int) -> int:
        """The entry in which a key stands, or would stand."""
        return max(bisect_right(self.firsts, key) - 1, 0)

    def insert(self, at: int, first: int, count: int, page: int) -> None:
        """One entry more."""
        self.firsts.insert(at, first)
        self.counts.insert(at, count)
        self.pages.insert(at, page)

    def replace(self, at: int, node: Leaf | Branch) -> None:
        """The entry of a page that changed."""
        self.firsts[at], self.counts[at] = node.first, node.count

    def delete(self, at: int) -> None:
        """One entry less."""
        del self.firsts[at], self.counts[at], self.pages[at]

    def cut(self, most: int) -> list[Branch]:
        """This branch and what is too much for it, in equal parts."""
        n = len(self)
        if n <= most:
            return [self]
        size = -(-n // -(-n // most))
        parts = [
            Branch(
                -1, self.level, self.firsts[i : i + size], self.counts[i : i + size],
                self.pages[i : i + size],
            )
            for i in range(size, n, size)
        ]  # fmt: skip
        del self.firsts[size:], self.counts[size:], self.pages[size:]
        return [self, *parts]

    def join(self, other: Leaf | Branch) -> None:
        """Take in the entries of the next branch."""
        assert isinstance(other, Branch), "a branch is joined with a branch"
        self.firsts += other.firsts
        self.counts += other.counts
        self.pages += other.pages


def _pack_keys(keys: list[int]) -> bytes:
    """The words of the keys, one column behind the other."""
    words = [split_key(key) for key in keys]
    high = np.array([w[0] for w in words], "<i8")
    rest = np.array([[w[1] for w in words], [w[2] for w in words]], "<u8")
    return high.tobytes() + rest.tobytes()


def _unpack_keys(data: bytes) -> list[int]:
    n = len(data) // 24
    high = np.frombuffer(data, "<i8", n).tolist()
    middle, low = np.frombuffer(data, "<u8", offset=8 * n).reshape(2, n).tolist()
    return [(h << 128) + (m << 64) + s for h, m, s in zip(high, middle, low, strict=True)]


def pack_leaf(leaf: Leaf) -> bytes:
    """A leaf as bytes."""
    keys = leaf.keys
    if keys[0] < 0 or keys[-1] > _WORD:
        return _pack_keys(keys)
    return np.array(keys, "<u8").tobytes()


def pack_branch(branch: Branch) -> bytes:
    """A branch as bytes: counts, pages, first keys."""
    return np.array([branch.counts, branch.pages], "<u8").tobytes() + _pack_keys(branch.firsts)


def unpack(page: int, level: int, data: bytes, count: int) -> Leaf | Branch:
    """The page that was packed. count: of the keys in it, as the entry says."""
    if level:
        n = len(data) // 40
        counts, pages = np.frombuffer(data, "<u8", 2 * n).reshape(2, n).tolist()
        return Branch(page, level, _unpack_keys(data[16 * n :]), counts, pages)
    if len(data) == 8 * count:
        return Leaf(page, np.frombuffer(data, "<u8").tolist())
    assert len(data) == 24 * count, f"leaf {page} has {len(data)} bytes for {count} keys"
    return Leaf(page, _unpack_keys(data))
