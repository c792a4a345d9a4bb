"""The pages of the ready index: leaves of keys, and branches that name pages below.

A key is an integer of up to 192 bits with a sign; msgpack and numpy take it in three words.
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
    stored: bytes | None = None  # what it was read from or written as

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
    stored: bytes | None = None

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
    """The words of sorted keys, one column behind the other; one column where one word is enough,
    which is so for a queue in the order of its places; the first alone where they count up."""
    if keys[0] >= 0 and keys[-1] <= _WORD:
        counting = keys[-1] - keys[0] == len(keys) - 1  # none is there twice
        return np.array(keys[:1] if counting else keys, "<u8").tobytes()
    words = [split_key(key) for key in keys]
    high = np.array([w[0] for w in words], "<i8")
    rest = np.array([[w[1] for w in words], [w[2] for w in words]], "<u8")
    return high.tobytes() + rest.tobytes()


def _unpack_keys(data: bytes, n: int) -> list[int]:
    words: list[int] = np.frombuffer(data, "<u8").tolist()
    if len(words) == n:
        return words
    if len(words) == 1:
        return list(range(words[0], words[0] + n))
    assert len(words) == 3 * n, f"{len(words)} words for {n} keys"
    high: list[int] = np.frombuffer(data, "<i8", n).tolist()
    rest = zip(high, words[n : 2 * n], words[2 * n :], strict=True)
    return [(h << 128) + (m << 64) + s for h, m, s in rest]


def pack(node: Leaf | Branch) -> bytes:
    """A leaf as bytes: its keys; a branch: how many entries, counts, pages, first keys."""
    if isinstance(node, Leaf):
        return _pack_keys(node.keys)
    head = np.array([len(node), *node.counts, *node.pages], "<u8")
    return head.tobytes() + _pack_keys(node.firsts)


def unpack(page: int, level: int, data: bytes, count: int) -> Leaf | Branch:
    """The page that was packed. count: of the keys in it, as the entry says."""
    if not level:
        return Leaf(page, _unpack_keys(data, count), data)
    n = int(np.frombuffer(data, "<u8", 1)[0])
    head = np.frombuffer(data, "<u8", 1 + 2 * n).tolist()
    firsts = _unpack_keys(data[8 + 16 * n :], n)
    return Branch(page, level, firsts, head[1 : 1 + n], head[1 + n :], data)
