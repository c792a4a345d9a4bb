"""How a message gets its row in a queue (S1, L12, O1–O3).

Messages that enter in a step are gathered in columns (`Arrivals`) and get their rows together. The
table's rows for `ENTER` and `ENTER_LATER` say what they become; a barrier begins a new generation,
and everything behind it belongs to that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..rules.lanes import LaneChange
from ..rules.order import barrier_key
from ..storage import NEVER, Array, holds_any, uniform, write_rows
from .index import follow_lanes, make_ready, set_aside
from .table import EFFECTS, READY, Event

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue


@dataclass(slots=True)
class Arrivals:
    """Messages that enter a queue in this step, in columns of one length."""

    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    expires: list[int] = field(default_factory=list)
    until: list[int] = field(default_factory=list)  # NEVER: ready now; else delayed till then
    barriers: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    dead: dict[int, dict[str, Any]] = field(default_factory=dict)  # extras, by position (X5, R6)
    before: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    # What another broker had done with them: by position, (entered, deliveries, cancels).
    generations: list[int] = field(default_factory=list)  # of what has one already (O3); else empty
    bytes: int = 0
    leaving: int = 0  # of these, those that were acknowledged before they came (L9)
    leaving_bytes: int = 0

    def add(
        self, first: int, sizes: list[int], priority: int, expires: int, until: int,
        barrier: bool, lane: int = 0,
    ) -> None:  # fmt: skip
        """Messages with ids from ``first`` on that differ in their sizes only."""
        n = len(sizes)
        self.ids += range(first, first + n)
        self.sizes += sizes
        self.priorities += [priority] * n
        self.expires += [expires] * n
        self.until += [until] * n
        self.barriers += [int(barrier)] * n
        self.lanes += [lane] * n
        self.bytes += sum(sizes)

    def add_moved(self, ids: list[int], sizes: list[int], expires: int) -> None:
        """Messages that come from another queue and have neither priority, lane nor delay."""
        self.ids += ids
        self.sizes += sizes
        n = len(ids)
        self.priorities += [0] * n
        self.expires += [expires] * n
        self.until += [NEVER] * n
        self.barriers += [0] * n
        self.lanes += [0] * n
        self.bytes += sum(sizes)

    @property
    def staying(self) -> int:
        """How many take room in the queue."""
        return len(self.ids) - self.leaving

    @property
    def staying_bytes(self) -> int:
        """Their bytes."""
        return self.bytes - self.leaving_bytes


def enter(broker: Broker, queue: Queue) -> None:
    """Give the queue's arrivals their rows."""
    arrivals = queue.arrivals
    total = len(arrivals.ids)
    if not total:
        return
    header = queue.header
    first = header.next_seq
    barriers = uniform(arrivals.barriers, np.uint8)
    lanes = uniform(arrivals.lanes, np.uint64)
    if holds_any(barriers):  # a barrier has no lane
        lanes = np.where(np.array(arrivals.barriers, bool), 0, np.array(arrivals.lanes, np.uint64))
    until = uniform(arrivals.until, np.int64)
    states = _states(until)
    columns: dict[str, int | Array] = {
        "id": np.fromiter(arrivals.ids, np.uint64, total),
        "state": states,
        "barrier": barriers,
        "priority": uniform(arrivals.priorities, np.uint64),
        "generation": _generations(queue, first),
        "lane": lanes,
        "size": uniform(arrivals.sizes, np.uint32),
        "entered": broker.now,
        "expires": uniform(arrivals.expires, np.int64),
        "until": until,
    }
    _write(queue, first, total, columns, min(min(arrivals.expires), min(arrivals.until)))
    for at, dead in arrivals.dead.items():
        page, row = queue.row(first + at)
        page.extras[row] = dead
    for at, (entered, deliveries, cancels) in arrivals.before.items():
        page, row = queue.row(first + at)
        page.entered[row], page.deliveries[row], page.cancels[row] = entered, deliveries, cancels
    header.next_seq += total
    header.depth += total
    header.delayed += total - arrivals.until.count(NEVER)
    header.bytes += arrivals.bytes
    for name in EFFECTS[Event.ENTER].counts:
        queue.count(name, total)
    if not header.ordered and (holds_any(columns["priority"]) or header.generation):
        header.ordered, header.ordered_from = True, first
    queue.arrivals = Arrivals()
    places = np.arange(first, first + total)
    ready = (states == READY) & (barriers == 0) & (lanes == 0) & np.ones(total, bool)
    make_ready(broker, queue, places[ready])
    changed = places[~ready]
    if holds_any(lanes):
        header.keyed = True
        turns = follow_lanes(broker, queue, LaneChange(queue, places, new=True))
        changed = np.concatenate((changed, turns))
    set_aside(queue, changed)
    queue.wanted = True


def _states(until: int | Array) -> int | Array:
    """What arrivals become: ready now, or delayed."""
    now, later = EFFECTS[Event.ENTER].to, EFFECTS[Event.ENTER_LATER].to
    if isinstance(until, int):
        return now if until == NEVER else later
    return np.where(until != NEVER, later, now)


def _generations(queue: Queue, first: int) -> int | Array:
    """The generation of each arrival; barriers that enter are noted (O3)."""
    header, barriers = queue.header, queue.arrivals.barriers
    if queue.arrivals.generations:
        return _known_generations(queue, first)
    if not any(barriers):
        return header.generation
    generations = np.full(len(barriers), header.generation, np.uint32)
    keys = []
    for at in np.flatnonzero(barriers).tolist():  # each is the last of its generation
        keys.append(barrier_key(first + at, header.generation))
        header.generation += 1
        generations[at + 1 :] = header.generation
    queue.barriers.add(keys)
    return generations


def _known_generations(queue: Queue, first: int) -> Array:
    """What another broker gave keeps its generation; the queue is in none before that."""
    generations = np.array(queue.arrivals.generations, np.uint32)
    barriers = np.array(queue.arrivals.barriers, np.uint32)
    waiting = np.flatnonzero(barriers).tolist()
    queue.barriers.add(sorted(barrier_key(first + at, int(generations[at])) for at in waiting))
    latest = int((generations + barriers).max())
    queue.header.generation = max(queue.header.generation, latest)
    return generations


def _write(queue: Queue, first: int, total: int, columns: dict[str, int | Array], due: int) -> None:
    """Rows of arrivals, page by page; none is due before ``due``."""
    done = 0
    while done < total:
        seq = first + done
        row = seq & queue.mask
        n = min(queue.mask + 1 - row, total - done)
        page = queue.page(seq >> queue.bits, create=True)
        assert page is not None
        write_rows(page, row, columns, slice(done, done + n))
        queue.changed(page, due)
        done += n
