"""Which messages go out now, and to whom (B1–B4, F1–F5, R5).

Every distinct filter text of a queue makes a *class* of subscriptions: those of one class can take
the same messages. With one class whole runs are shared out at once. With several it goes message by
message: the earliest that somebody with room can take, to the one whose turn it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...protocol.errors import Reason
from ..few import total_of
from ..limits import Budget
from ..mesh import barriers
from ..message import Event, apply
from ..rules.active_set import first_inactive
from ..rules.fairness import UNLIMITED, Candidate, candidates_of, choose, share, take
from ..rules.filters import lets_through, look, lowest
from ..rules.order import first_key_of, seq_of
from ..storage import Array

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


@dataclass(slots=True)
class Chosen:
    """Places and who gets each; unfinished: a budget ended the search."""

    seqs: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    receivers: list[Candidate] = field(default_factory=list)
    unfinished: bool = False


def choose_messages(
    broker: Broker, queue: Queue, free_unacked: int, budget: Budget, looks: Budget
) -> Chosen:
    """The next messages and their receivers; what they take of the budget is counted."""
    definition, header = queue.definition, queue.header
    if not queue.ready:
        return Chosen()
    candidates = candidates_of(definition, header.subscriptions)
    room = UNLIMITED  # for leases; where there is none, nobody gets anything (B1)
    if definition.max_backlog is not None:
        room = max(definition.max_backlog - header.leased, 0)
    if free_unacked <= 0:  # this limit is of leases only (B4)
        candidates = [c for c in candidates if c.free]
    if not candidates or room <= 0:
        return Chosen()
    search = _Search(broker, queue, looks)
    free = sum(c.free for c in candidates)
    classes = {c.subscription.filter for c in candidates}
    if len(classes) == 1 and free in (0, len(candidates)):
        most = min(budget.rows, sum(c.room for c in candidates))
        if free and header.keyed:  # with each that leaves, the next of its key takes its place
            most = 1
        if not free:  # what leaves on send takes no lease
            most = min(most, room, free_unacked)
        keys = _within(queue, search.first_of(next(iter(classes)), most), budget)
        receivers = share(definition.fairness_model, candidates, len(keys), header.served)
    else:
        keys, receivers = _one_by_one(queue, search, candidates, budget, room, free_unacked)
    if receivers:
        header.served = receivers[-1].subscription.number
    seqs = np.array([seq_of(k) for k in keys], np.int64)
    budget.take(len(keys))
    return Chosen(seqs, receivers, search.unfinished or budget.spent)


def choose_for(
    broker: Broker, queue: Queue, filters: list[str | None], most: int, budget: Budget,
    looks: Budget,
) -> tuple[Array, bool]:  # fmt: skip
    """Up to so many of the next messages that one of these filters lets through, for another broker
    (H4); whether a budget ended the search. Barriers are never among them."""
    if not queue.ready:
        return np.zeros(0, np.int64), False
    search = _Search(broker, queue, looks)
    keys = sorted({key for text in filters for key in search.first_of(text, most)})
    keys = _within(queue, keys[:most], budget)
    return np.array([seq_of(k) for k in keys], np.int64), search.unfinished


def _within(queue: Queue, keys: list[int], budget: Budget) -> list[int]:
    """As many of the first keys as the bytes allow, one at least; their bytes are counted."""
    if not keys:
        return keys
    sizes = queue.gather(np.array([seq_of(k) for k in keys], np.int64), "size")
    n = budget.fits(sizes)
    budget.take(0, total_of(sizes[:n]))
    return keys[:n]


class _Search:
    """The first messages that a class can take: behind no fence, not expired."""

    def __init__(self, broker: Broker, queue: Queue, looks: Budget) -> None:
        self.broker, self.queue, self.looks = broker, queue, looks
        self.below = _fence(queue)
        self.unfinished = False
        self.overdue = queue.is_due(broker.now)  # a budget left something

    def first_of(self, text: str | None, most: int) -> list[int]:
        """Up to ``most`` first keys for the class with this filter; they stay in the index."""
        while True:
            keys = self._keys(text, most)
            if not self.overdue or not keys:
                return keys
            seqs = np.array([seq_of(k) for k in keys], np.int64)
            self.looks.take(len(seqs))
            if len(_expire(self.broker, self.queue, seqs)) == len(seqs):
                return keys
            if self.looks.spent:
                self.unfinished = True
                return []

    def _keys(self, text: str | None, most: int) -> list[int]:
        if text is None:
            return self.queue.ready.peek(most, self.below)
        one = self.queue.filters.of(text)
        while one.found(self.below) < most:
            if not look(self.broker, self.queue, one, self.below, self.looks):
                self.unfinished = self.unfinished or self.looks.spent
                break
        return one.first(most, self.below)

    def lets_through(self, text: str | None, key: int) -> bool:
        """Whether the class with this filter can take a message that is the first of another."""
        if text is None:
            return True
        return lets_through(self.broker, self.queue, text, key, self.looks)


def _expire(broker: Broker, queue: Queue, seqs: Array) -> Array:
    """Of places that are about to go out: those whose time is over expire; gives the others."""
    over = queue.gather(seqs, "expires") <= broker.now
    if over.any():
        apply(broker, queue, seqs[over], Event.EXPIRE, reason=Reason.EXPIRED.value)
    return seqs[~over]


def _fence(queue: Queue) -> int | None:
    """The key from which on messages are held back: behind a barrier, or not active yet."""
    end, generation = first_inactive(queue), barriers.fence(queue)
    return lowest(
        None if generation is None else first_key_of(generation),
        None if end is None else queue.keys(np.array([end], np.int64))[0],
    )


WINDOW = 64  # messages of a class that are looked up together


def _one_by_one(
    queue: Queue, search: _Search, candidates: list[Candidate], budget: Budget, room: int,
    free_unacked: int,
) -> tuple[list[int], list[Candidate]]:  # fmt: skip
    """Message by message: the earliest that somebody can take, to the one whose turn it is."""
    model, served = queue.definition.fairness_model, queue.header.served
    classes: dict[str | None, list[Candidate]] = {}
    for one in candidates:
        classes.setdefault(one.subscription.filter, []).append(one)
    windows: dict[str | None, list[int]] = {}
    taken: dict[int, None] = {}
    given: list[Candidate] = []
    size = 0

    def may_take(one: Candidate) -> bool:
        return one.room > 0 and room > 0 and (one.free or free_unacked > 0)

    def head_of(text: str | None) -> int | None:
        window = windows.setdefault(text, [])
        while window and window[-1] in taken:
            window.pop()
        if not window and text not in exhausted:
            window = windows[text] = [
                k for k in search.first_of(text, 2 * len(taken) + WINDOW)[::-1] if k not in taken
            ]
        if not window:
            exhausted.add(text)
            return None
        return window[-1]

    exhausted: set[str | None] = set()
    most = 1 if queue.header.keyed and any(c.free for c in candidates) else budget.rows
    while len(taken) < min(budget.rows, most) and size < budget.bytes:
        able_classes = [text for text, group in classes.items() if any(map(may_take, group))]
        if taken and search.looks.rows < len(able_classes):  # what one message may need at most
            search.unfinished = True
            break
        heads = [head for text in able_classes if (head := head_of(text)) is not None]
        if not heads:
            break
        key = min(heads)
        able = [
            one for text in able_classes if search.lets_through(text, key)
            for one in classes[text] if may_take(one)
        ]  # fmt: skip
        able.sort(key=lambda c: c.subscription.number)
        one = choose(model, able, served)
        take(one)
        room -= not one.free
        free_unacked -= not one.free
        served = one.subscription.number
        taken[key] = None
        given.append(one)
        size += int(queue.gather(np.array([seq_of(key)], np.int64), "size")[0])
    budget.take(0, size)
    return list(taken), given
