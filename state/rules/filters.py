"""Subscriptions with a filter take only what it lets through; others go past it (F5).

Each distinct filter text of a queue looks at every ready message once, however long it stays. How
far it has looked is its *cursor*, a key of the queue's order; what it found there and is still
ready stands in an *index* of its own. What has become ready below the cursor since (returned, or of
higher priority) is *unseen*. So, always:

    index of a filter = {ready keys below its cursor that it lets through} - unseen

Expressions are evaluated by delivery alone, where somebody has room, and within `Limits.looks`: it
looks at the unseen first, then moves the cursor on. What leaves *ready* leaves the indexes too.
With the last subscription of a text its cursor and indexes go.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ...expressions import compile_program, is_true
from ..header import FilterState, QueueHeader
from ..storage import Array, ReadyIndex, Store, join_key, split_key
from .order import first_key_of, seq_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..limits import Budget, Limits
    from ..queue import Queue

CHUNK = 128  # messages that are looked at together
LOWEST = first_key_of(0)


class Filter:
    """One filter text of a queue during a step."""

    def __init__(
        self, store: Store, queue: int, text: str, state: FilterState, limits: Limits
    ) -> None:
        self.text = text
        self.state = state
        self.cursor = join_key(state.cursor)
        self.index = ReadyIndex(
            store, f"g/{queue}/{state.number}/", state.ready, state.next_ready, limits
        )
        self.unseen = ReadyIndex(
            store, f"h/{queue}/{state.number}/", state.unseen, state.next_unseen, limits
        )

    def found(self, below: int | None) -> int:
        """How many keys below ``below`` are known to be the next ones."""
        fence = lowest(below, self.unseen.first())
        return len(self.index) if fence is None else self.index.count_before(fence)

    def first(self, most: int, below: int | None) -> list[int]:
        """Up to so many of these."""
        return self.index.peek(most, lowest(below, self.unseen.first()))

    def settle(self, keys: list[int], fit: list[int]) -> None:
        """These keys were unseen, and of them these are let through."""
        self.unseen.discard(keys)
        self.index.add(fit)

    def flush(self) -> None:
        """Write what changed."""
        self.index.flush()
        self.unseen.flush()
        self.state.cursor = split_key(self.cursor)
        self.state.ready = self.index.directory()
        self.state.next_ready = self.index.pages
        self.state.unseen = self.unseen.directory()
        self.state.next_unseen = self.unseen.pages


class Filters:
    """The filters of a queue."""

    def __init__(self, store: Store, header: QueueHeader, limits: Limits) -> None:
        self._store = store
        self._header = header
        self._limits = limits
        self._known: dict[str, Filter] = {}

    def of(self, text: str) -> Filter:
        """The filter with this text; a new one has looked at nothing."""
        found = self._known.get(text)
        if found is None:
            header = self._header
            state = header.filters.get(text)
            if state is None:
                state = FilterState(header.next_filter, split_key(LOWEST))
                header.next_filter += 1
                header.filters[text] = state
            found = self._known[text] = Filter(
                self._store, header.number, text, state, self._limits
            )
        return found

    def all(self) -> Iterator[Filter]:
        """Every filter that has looked at something."""
        for text in list(self._header.filters):
            yield self.of(text)

    def indexes(self) -> list[ReadyIndex]:
        """Their indexes."""
        return [index for f in self.all() for index in (f.index, f.unseen)]

    def forget(self, text: str) -> None:
        """The last subscription with this text has ended."""
        if text in self._header.filters:
            gone = self.of(text)
            for index in (gone.index, gone.unseen):
                index.drop()
                index.flush()
            del self._known[text], self._header.filters[text]

    def discard(self, keys: list[int]) -> None:
        """These keys are no longer ready. Ascending."""
        for one in self.all():
            if keys[0] < one.cursor:
                one.settle(keys, [])
                one.index.discard(keys)

    def flush(self) -> None:
        """Write what changed."""
        for one in self._known.values():
            one.flush()


def lowest(one: int | None, other: int | None) -> int | None:
    """The lower of two keys, where None is above all."""
    return min((key for key in (one, other) if key is not None), default=None)


def takes_nothing(queue: Queue, text: str, below: int | None) -> bool:
    """Whether a filter has looked at all that is ready below ``below``, and let nothing through."""
    if text not in queue.header.filters:
        return False
    one = queue.filters.of(text)
    looked = one.unseen.first() is None and next(queue.ready.scan(one.cursor, below), None) is None
    return looked and not one.first(1, below)


def note_ready(queue: Queue, keys: list[int]) -> None:
    """Keys that have become ready, ascending; filters that have looked beyond did not see them."""
    for one in queue.filters.all():
        one.unseen.add([k for k in keys if k < one.cursor])


def look(broker: Broker, queue: Queue, one: Filter, below: int | None, budget: Budget) -> bool:
    """Let a filter look at the next messages; False when there is nothing more to look at below
    ``below``, or the budget is spent."""
    if budget.spent:
        return False
    most = min(CHUNK, budget.rows)
    if keys := one.unseen.peek(most, below):
        keys = _affordable(queue, keys, one.text, budget)
        one.settle(keys, _let_through(broker, queue, keys, one.text))
    elif keys := list(islice(queue.ready.scan(one.cursor, below), most)):
        keys = _affordable(queue, keys, one.text, budget)
        one.index.add(_let_through(broker, queue, keys, one.text))
        one.cursor = keys[-1] + 1
    return bool(keys)


def _affordable(queue: Queue, keys: list[int], text: str, budget: Budget) -> list[int]:
    """As many of the first keys as the budget allows, one at least; they are counted. A look reads
    a payload and the filter."""
    seqs = np.array([seq_of(k) for k in keys], np.int64)
    sizes = queue.gather(seqs, "size") + np.int64(len(text))
    n = budget.fits(sizes)
    budget.take(n, int(sizes[:n].sum()))
    return keys[:n]


def lets_through(broker: Broker, queue: Queue, text: str, key: int, budget: Budget) -> bool:
    """Whether a filter lets one ready message through; what it sees below its cursor is kept."""
    one = queue.filters.of(text)
    if key < one.cursor and key not in one.unseen:
        return key in one.index
    fit = _let_through(broker, queue, _affordable(queue, [key], text, budget), text)
    if key < one.cursor:
        one.settle([key], fit)
    return bool(fit)


def _let_through(broker: Broker, queue: Queue, keys: list[int], text: str) -> list[int]:
    seqs = np.array([seq_of(k) for k in keys], np.int64)
    return [k for k, yes in zip(keys, matching(broker, queue, seqs, text), strict=True) if yes]


def matching(broker: Broker, queue: Queue, seqs: Array, text: str) -> list[bool]:
    """Which of these messages an expression is true for."""
    ids = queue.gather(seqs, "id")
    program = compile_program((text,))
    priorities = broker.spool.gather(ids, "priority").tolist()
    return [
        content is not None and is_true(program.run(content[0], priority, content[1])[0])
        for content, priority in zip(broker.spool.contents(ids), priorities, strict=True)
    ]
