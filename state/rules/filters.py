"""Subscriptions with a filter take only what it lets through; others go past it (F5).

Each distinct filter text of a queue looks at every ready message once, however long it stays. How
far it has looked is its *cursor*, a key of the queue's order; what it found there and is still
ready stands in an *index* of its own. So, always:

    index of a filter = {ready keys below its cursor that it lets through}

Delivery moves the cursor on when the index is empty and somebody has room. What becomes ready below
a cursor (returned, or of higher priority) is looked at on the spot; what leaves *ready* leaves the
indexes too. With the last subscription of a text its cursor and index go.
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

CHUNK = 64  # messages that are looked at together
LOWEST = first_key_of(0)


class Filter:
    """One filter text of a queue during a step."""

    def __init__(
        self, store: Store, prefix: str, text: str, state: FilterState, limits: Limits
    ) -> None:
        self.text = text
        self.state = state
        self.cursor = join_key(state.cursor)
        self.index = ReadyIndex(
            store, f"{prefix}{state.number}/", state.ready, state.next_ready, limits
        )

    def flush(self) -> None:
        """Write what changed."""
        self.index.flush()
        self.state.cursor = split_key(self.cursor)
        self.state.ready = self.index.directory()
        self.state.next_ready = self.index.pages


class Filters:
    """The filters of a queue."""

    def __init__(
        self, store: Store, prefix: str, header: QueueHeader, limits: Limits
    ) -> None:
        self._store = store
        self._prefix = prefix
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
                self._store, self._prefix, text, state, self._limits
            )
        return found

    def all(self) -> Iterator[Filter]:
        """Every filter that has looked at something."""
        for text in list(self._header.filters):
            yield self.of(text)

    def indexes(self) -> list[ReadyIndex]:
        """Their indexes."""
        return [f.index for f in self.all()]

    def forget(self, text: str) -> None:
        """The last subscription with this text has ended."""
        if text in self._header.filters:
            gone = self.of(text)
            gone.index.drop()
            gone.index.flush()
            del self._known[text], self._header.filters[text]

    def discard(self, keys: list[int]) -> None:
        """These keys are no longer ready. Ascending."""
        for one in self.all():
            if one.index and keys[0] < one.cursor:
                one.index.discard(keys)

    def flush(self) -> None:
        """Write what changed."""
        for one in self._known.values():
            one.flush()


def look_at(broker: Broker, queue: Queue, keys: list[int]) -> None:
    """Keys that have become ready, ascending: filters that have looked beyond them look now."""
    for one in queue.filters.all():
        passed = [k for k in keys if k < one.cursor]
        if passed:
            one.index.add(_let_through(broker, queue, passed, one.text))


def look_ahead(
    broker: Broker, queue: Queue, one: Filter, below: int | None, budget: Budget
) -> bool:
    """Move a filter's cursor on until it finds something; False when there is nothing more to look
    at, or the budget is spent."""
    while not budget.spent:
        keys = list(islice(queue.ready.scan(one.cursor), CHUNK))
        if below is not None:
            keys = [k for k in keys if k < below]
        if not keys:
            return False
        budget.take(len(keys))
        found = _let_through(broker, queue, keys, one.text)
        one.cursor = keys[-1] + 1
        if found:
            one.index.add(found)
            return True
    return False


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
