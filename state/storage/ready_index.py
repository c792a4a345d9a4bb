"""The ready index: the places of ready messages, in the queue's order (O1, O2, L7).

A key is one integer, and smaller keys go out first; what it is made of is the queue's affair. A
returned message is put back under its old key and so keeps its place. Keys stand in sorted
*leaves*, each a page. Leaves are named by *branches* (first key, number of keys, page), and those
by others, as high as it takes; the top branch stands in the queue's header and has few entries. So
a step loads and writes the pages on the way to the leaves that it touches, usually the first and
the last, and the header does not grow with the depth.

An overfull page is cut: into full ones where keys were appended (places count up), else into equal
halves. An underfull one is joined with a neighbour, so that holes do not leave many small pages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..limits import Limits
from .index_pages import Branch, Leaf, join_key, pack, split_key, unpack
from .memo import MEMO
from .store import Store


class ReadyIndex:
    """Sorted keys in pages.

    ``directory``: lists ``[first key in three words, keys, page, level]``, kept in the queue's
    header; level 0 are leaves. ``pages``: the next page number, kept there too.
    """

    def __init__(
        self, store: Store, prefix: str, directory: list[list[int]], pages: int, limits: Limits,
        leaf_keys: int | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._prefix = prefix
        self._limits = limits
        self._leaf_keys = leaf_keys or limits.leaf_keys
        self.pages = pages
        self._stored = pages  # pages from here on are new and not in the store yet
        self._root = Branch(
            -1, directory[0][5] + 1 if directory else 1,
            [join_key(d[:3]) for d in directory], [d[3] for d in directory],
            [d[4] for d in directory],
        )  # fmt: skip
        self._nodes: dict[int, Leaf | Branch] = {}
        self._dirty: set[int] = set()
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return sum(self._root.counts)

    def __bool__(self) -> bool:
        return bool(self._root.counts)

    def directory(self) -> list[list[int]]:
        """What the queue's header keeps."""
        root = self._root
        return [
            [*split_key(first), count, page, root.level - 1]
            for first, count, page in zip(root.firsts, root.counts, root.pages, strict=True)
        ]

    # ------------------------------------------------------------ pages

    def _child(self, branch: Branch, at: int) -> Leaf | Branch:
        page = branch.pages[at]
        node = self._nodes.get(page)
        if node is None:
            data = self._store.get(f"{self._prefix}{page}")
            assert data is not None, f"page {page} of {self._prefix} is missing"
            known: Leaf | Branch | None = MEMO.take(data)
            if known is None:
                known = unpack(page, branch.level - 1, data, branch.counts[at])
            node = self._nodes[page] = known
        return node

    def _new(self, node: Leaf | Branch) -> None:
        """Give a page a number."""
        node.page = self.pages
        self.pages += 1
        self._nodes[node.page] = node
        self._dirty.add(node.page)

    def _forget(self, page: int) -> None:
        self._nodes.pop(page, None)
        self._dirty.discard(page)
        if page < self._stored:
            self._gone.add(page)

    # ------------------------------------------------------------ changes

    def add(self, keys: list[int]) -> None:
        """Put keys in; they are ascending and none is there already."""
        if not keys:
            return
        root = self._root
        if not root.pages:
            root.level = 1
            leaf = Leaf(0, [])
            self._new(leaf)
            root.insert(0, keys[0], 0, leaf.page)
        self._add(root, keys)
        while len(root) > self._limits.root_entries:  # one level more
            parts = root.cut(self._limits.branch_entries)
            root = self._root = Branch(-1, root.level + 1, [], [], [])
            for part in parts:
                self._new(part)
                root.insert(len(root), part.first, part.count, part.page)

    def _add(self, branch: Branch, keys: list[int]) -> None:
        done = 0
        while done < len(keys):
            at = branch.find(keys[done])
            stop = len(keys)
            if at + 1 < len(branch):
                stop = bisect_left(keys, branch.firsts[at + 1], done)
            part = keys if stop - done == len(keys) else keys[done:stop]
            node = self._child(branch, at)
            appended = True
            if isinstance(node, Branch):
                self._add(node, part)
            elif not node.keys or part[0] > node.keys[-1]:
                node.keys.extend(part)
            else:
                appended = False
                if len(part) == 1:
                    insort(node.keys, part[0])
                else:
                    node.keys.extend(part)
                    node.keys.sort()
            self._added(branch, at, node, appended)
            done = stop

    def _added(self, branch: Branch, at: int, node: Leaf | Branch, appended: bool) -> None:
        """Bring the entry of a page that grew up to date, and cut the page if it is overfull."""
        self._dirty.add(node.page)
        if isinstance(node, Branch):
            parts: list[Any] = node.cut(self._limits.branch_entries)
        else:
            parts = node.cut(self._leaf_keys, appended)
        branch.replace(at, node)
        for i, part in enumerate(parts[1:], 1):
            self._new(part)
            branch.insert(at + i, part.first, part.count, part.page)

    def discard(self, keys: list[int]) -> None:
        """Take keys out; those that are not there are passed over. Ascending."""
        if keys and self._root.pages:
            self._discard(self._root, keys)
            self._lower()

    def _discard(self, branch: Branch, keys: list[int]) -> bool:
        """Whether anything was taken out."""
        done, changed = 0, False
        while done < len(keys) and branch.pages:
            at = branch.find(keys[done])
            stop = len(keys)
            if at + 1 < len(branch):
                stop = max(bisect_left(keys, branch.firsts[at + 1], done), done + 1)
            part = keys[done:stop]
            done = stop
            if part[-1] < branch.firsts[at]:
                continue
            node = self._child(branch, at)
            taken = self._discard(node, part) if isinstance(node, Branch) else node.discard(part)
            if taken:
                changed = True
                self._taken(branch, at, node)
        return changed

    def _taken(self, branch: Branch, at: int, node: Leaf | Branch) -> None:
        """Bring the entry of a page that shrank up to date; join it if it is underfull."""
        if not len(node):
            self._forget(node.page)
            branch.delete(at)
            return
        branch.replace(at, node)
        self._dirty.add(node.page)
        leaves = isinstance(node, Leaf)
        most = self._leaf_keys if leaves else self._limits.branch_entries
        if len(node) * 2 > most:
            return
        for left in (at, at - 1):
            if left < 0 or left + 1 >= len(branch):
                continue
            # How full a leaf is its entry says, without a look at it.
            if leaves and branch.counts[left] + branch.counts[left + 1] > most:
                continue
            one, two = self._child(branch, left), self._child(branch, left + 1)
            if len(one) + len(two) <= most:
                one.join(two)
                self._dirty.add(one.page)
                self._forget(two.page)
                branch.delete(left + 1)
                branch.replace(left, one)
                return

    def _lower(self) -> None:
        """Take levels away that are not needed any more."""
        while self._root.level > 1 and len(self._root) == 1:
            child = self._child(self._root, 0)
            assert isinstance(child, Branch)
            if len(child) * 2 > self._limits.root_entries:
                return
            self._forget(child.page)
            self._root = child
        if not self._root.pages:
            self._root.level = 1

    # ------------------------------------------------------------ looking

    def first(self) -> int | None:
        """The first key, or None."""
        return self._root.firsts[0] if self._root.firsts else None

    def __contains__(self, key: int) -> bool:
        return next(self.scan(key, key + 1), None) is not None

    def peek(self, most: int, below: int | None = None) -> list[int]:
        """Up to ``most`` first keys, only those below ``below``; they stay."""
        return list(islice(self.scan(stop=below), most))

    def scan(self, start: int | None = None, stop: int | None = None) -> Iterator[int]:
        """Keys from ``start`` on and below ``stop``, ascending. Do not change the index
        meanwhile."""
        return self._scan(self._root, start, stop)

    def _scan(self, branch: Branch, start: int | None, stop: int | None) -> Iterator[int]:
        for at in range(0 if start is None else branch.find(start), len(branch)):
            if stop is not None and branch.firsts[at] >= stop:
                return
            node = self._child(branch, at)
            if isinstance(node, Branch):
                yield from self._scan(node, start, stop)
                continue
            keys = node.keys
            begin = 0 if start is None else bisect_left(keys, start)
            yield from keys[begin : len(keys) if stop is None else bisect_left(keys, stop)]

    def count_before(self, key: int) -> int:
        """How many keys are smaller; reads one page per level."""
        node: Leaf | Branch = self._root
        count = 0
        while isinstance(node, Branch):
            if not node.pages:
                return count
            at = node.find(key)
            count += sum(node.counts[:at])
            node = self._child(node, at)
        return count + bisect_left(node.keys, key)

    def overview(self) -> dict[str, Any]:
        """Every leaf's keys, and the levels above; reads every page."""
        leaves = [node.keys[:] for node in self._walk(self._root) if isinstance(node, Leaf)]
        branches = sum(isinstance(node, Branch) for node in self._walk(self._root))
        return {
            "keys": len(self), "levels": self._root.level, "header_entries": len(self._root),
            "branches": branches, "leaves": leaves,
        }  # fmt: skip

    def _walk(self, branch: Branch) -> Iterator[Leaf | Branch]:
        for at in range(len(branch)):
            node = self._child(branch, at)
            yield node
            if isinstance(node, Branch):
                yield from self._walk(node)

    # ------------------------------------------------------------ end of the step

    def drop(self) -> None:
        """Delete every page; reads the branches, not the leaves."""
        self._drop(self._root)
        self._root = Branch(-1, 1, [], [], [])

    def _drop(self, branch: Branch) -> None:
        for at in range(len(branch)):
            if branch.level > 1:
                child = self._child(branch, at)
                assert isinstance(child, Branch)
                self._drop(child)
            self._forget(branch.pages[at])

    def flush(self) -> None:
        """Write the pages that changed."""
        for page in sorted(self._gone):
            self._store.delete(f"{self._prefix}{page}")
        for page, node in sorted(self._nodes.items()):
            if page in self._dirty or node.stored is None:
                node.stored = pack(node)
                self._store.put(f"{self._prefix}{page}", node.stored)
            MEMO.keep(node.stored, node)
        self._nodes.clear()
        self._dirty.clear()
        self._gone.clear()
        self._stored = self.pages
