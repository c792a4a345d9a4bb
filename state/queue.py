"""One queue during one step: its header, its rows, its ready index, its page directory.

A queue's messages stand in rows in the order in which they were taken in (O1): row *seq* is the
place in the queue. Rows stand in *queue pages*, so a place finds its page by a shift. This file
finds and keeps them; their states change in `message` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from ..definitions import QueueDefinition
from .few import ends_of, least_of
from .header import QueueHeader, Subscription
from .limits import Limits
from .message.entry import Arrivals
from .message.pages import QueuePage
from .message.table import GONE, LEASED
from .rules.filters import Filters
from .rules.lanes import Lanes
from .rules.order import key_of
from .storage import NEVER, NO_ID, Array, Directory, IdRanges, ReadyIndex, Store, by_page

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(QueueHeader)
_DTYPES = {name: dtype for name, dtype, _ in QueuePage.FIELDS}

PageRows = list[tuple[QueuePage, Array, Array | slice]]  # page, rows in it, where in what was asked


class Queue:
    """A queue during a step. Rows are addressed by place (*seq*)."""

    def __init__(self, store: Store, header: QueueHeader, limits: Limits) -> None:
        self._store = store
        self.header = header
        self.bits = limits.page_bits
        self.mask = (1 << self.bits) - 1
        self.number = header.number
        self.directory = Directory(store, f"d/{self.number}/", header.directory, limits)
        self.ready = ReadyIndex(store, f"o/{self.number}/", header.ready, header.next_ready, limits)
        self.aside = ReadyIndex(store, f"a/{self.number}/", header.aside, header.next_aside, limits)
        self.barriers = ReadyIndex(  # by `order.barrier_key`
            store, f"i/{self.number}/", header.barriers, header.next_barrier_page, limits
        )
        self.lanes = Lanes(store, f"l/{self.number}/", header, limits)
        self.filters = Filters(store, header, limits)
        self.early = IdRanges(store, f"early/{self.number}/", header.early, limits)  # acks (L9)
        if header.deferred:
            for first, last, until in header.deferred:
                self.early.put(first, last, until, len(header.deferred))
            header.deferred = []
        self._pages: dict[int, QueuePage] = {}
        self._unsummed: set[int] = set()  # pages whose line in the directory is out of date
        self._soonest = self.directory.deadline()  # or earlier: of rows that have changed since
        self._listed: list[Subscription] = []  # what the next line is of
        self._by_id: dict[str, Subscription] = {}
        self.arrivals = Arrivals()
        self.leased_before = header.leased
        self.wanted = False  # something changed that may let a message go out
        self.dropped = False

    @property
    def definition(self) -> QueueDefinition:
        """The queue's definition as it stands now."""
        return self.header.definition

    def subscription(self, name: str) -> Subscription | None:
        """The subscription with this id, or None: at once, though there may be thousands. They are
        appended to the header's list, or it is another list without the one that ends."""
        listed, known = self.header.subscriptions, self._by_id
        if listed is not self._listed:
            self._listed, self._by_id = listed, {one.id: one for one in listed}
        elif len(known) < len(listed):
            known.update((one.id, one) for one in listed[len(known) :])
        return self._by_id.get(name)

    # ------------------------------------------------------------ load and save

    @classmethod
    def load(cls, store: Store, number: int, limits: Limits) -> Queue | None:
        """The queue with this number, or None."""
        data = store.get(f"q/{number}")
        return cls(store, _decoder.decode(data), limits) if data else None

    def flush(self) -> None:
        """Write what changed; the header always."""
        header = self.header
        self.settle()
        for number, page in sorted(self._pages.items()):
            tail = number >= header.next_seq >> self.bits
            if not page.dirty or tail or page.state[: page.used].any():
                page.settle(self._store, f"p/{self.number}/{number}")
            else:
                self._store.delete(f"p/{self.number}/{number}")
        self._pages.clear()
        self.directory.flush()
        self.ready.flush()
        self.aside.flush()
        self.filters.flush()
        if header.keyed or header.lanes:
            self.lanes.flush()
        self.early.flush()
        self.barriers.flush()
        header.barriers = self.barriers.directory()
        header.next_barrier_page = self.barriers.pages
        header.ready = self.ready.directory()
        header.next_ready = self.ready.pages
        header.aside = self.aside.directory()
        header.next_aside = self.aside.pages
        self._store.put(f"q/{self.number}", _encode(header))

    def drop(self) -> None:
        """Delete what is left of an empty queue."""
        assert not self.header.depth, f"{self.definition.name} still holds messages"
        self._store.delete(f"p/{self.number}/{self.header.next_seq >> self.bits}")
        for number in self._pages:
            self._store.delete(f"p/{self.number}/{number}")
        self.directory.drop()
        self.early.drop()
        self.early.flush()
        indexes = (self.ready, self.aside, self.barriers, self.lanes)
        for index in (*indexes, *self.filters.indexes()):
            index.drop()
            index.flush()
        self._store.delete(f"q/{self.number}")
        self.dropped = True

    # ------------------------------------------------------------ rows

    def page(self, number: int, create: bool = False) -> QueuePage | None:
        """A queue page, or None if all its messages are gone."""
        page = self._pages.get(number)
        if page is None:
            data = self._store.get(f"p/{self.number}/{number}")
            if data:
                page = self._pages[number] = QueuePage.read(number, data, self.bits)
            elif create:
                page = self._pages[number] = QueuePage(number, self.bits)
        return page

    def rows(self, seqs: Array) -> PageRows:
        """The rows of places, grouped by page. The page of each is there."""
        out = []
        for number, rows, where in by_page(np.asarray(seqs, np.int64), self.bits):
            page = self.page(number)
            assert page is not None, f"{self.definition.name}: page {number} is gone"
            out.append((page, rows, where))
        return out

    def row(self, seq: int) -> tuple[QueuePage, int]:
        """The page and row of one place that is known to be there."""
        page = self.page(seq >> self.bits)
        assert page is not None, f"page of place {seq} is gone"
        return page, seq & self.mask

    def gather(self, seqs: Array, name: str) -> Array:
        """One column for many places."""
        return self.columns(seqs, name)[0]

    def columns(self, seqs: Array, *names: str) -> list[Array]:
        """Columns for many places."""
        return self.columns_of(self.rows(seqs), len(seqs), names)

    @staticmethod
    def columns_of(found: PageRows, n: int, names: Iterable[str]) -> list[Array]:
        """Columns for ``n`` places whose rows were found."""
        if len(found) == 1:
            page, rows, _ = found[0]
            return [getattr(page, name)[rows] for name in names]
        out = [np.zeros(n, dtype=_DTYPES[name]) for name in names]
        for page, rows, where in found:
            for column, name in zip(out, names, strict=True):
                column[where] = getattr(page, name)[rows]
        return out

    def keys(self, seqs: Array) -> list[int]:
        """The keys of places, ascending (`order`)."""
        if not self.header.ordered:
            return sorted(seqs.tolist())
        ranks = [self.gather(seqs, name).tolist() for name in ("priority", "generation")]
        # Few ranks, many messages: what is the same in their keys is made once.
        first = {rank: key_of(0, *rank) for rank in set(zip(*ranks, strict=True))}
        places = zip(seqs.tolist(), zip(*ranks, strict=True), strict=True)
        return sorted([first[rank] + seq for seq, rank in places])

    def live_rows(self, start: int = 0) -> Iterator[tuple[QueuePage, Array]]:
        """Pages with their rows that hold a message, from the page of a place on, in order."""
        self.settle()
        for number in self.directory.live(start >> self.bits):
            page = self.page(number)
            assert page is not None
            rows = np.flatnonzero(page.state[: page.used] != GONE)
            if number == start >> self.bits:
                rows = rows[rows >= start & self.mask]
            if len(rows):
                yield page, rows

    def first_barrier(self) -> int | None:
        """The barrier that goes next, as `order.barrier_key` (O3)."""
        return self.barriers.first()

    def first_live(self) -> int | None:
        """The earliest place that still holds a message."""
        for page, rows in self.live_rows():
            return page.base + int(rows[0])
        return None

    # ------------------------------------------------------------ the directory

    def _summarise(self, page: QueuePage) -> None:
        states = page.state[: page.used]
        alive = states.nonzero()[0]  # not GONE
        deadline, id_min, id_max = NEVER, NO_ID, 0
        if len(alive):
            id_min, id_max = ends_of(page.id[alive])
            # Of what is ready, `until` is NEVER.
            deadline = min(least_of(page.expires[alive]), least_of(page.until[alive]))
        leased = states.tobytes().count(LEASED)
        self.directory.update(page.number, len(alive), leased, deadline, id_min, id_max)

    def changed(self, page: QueuePage, due: int = NEVER) -> None:
        """Rows of this page were written; what they are due for now is not before ``due``."""
        page.dirty = True
        self._unsummed.add(page.number)
        if due < self._soonest:
            self._soonest = due

    def is_due(self, now: int) -> bool:
        """Whether the time of some row has come."""
        if self._soonest > now:
            return False
        self.settle()
        self._soonest = self.directory.deadline()  # or earlier: of rows that have changed since
        return self._soonest <= now

    def settle(self) -> None:
        """Bring the directory up to date with the rows."""
        for number in self._unsummed:
            self._summarise(self._pages[number])
        self._unsummed.clear()

    def next_place(self) -> int:
        """The place that the next arrival gets."""
        return self.header.next_seq + len(self.arrivals.ids)

    def deadline(self) -> int:
        """When the queue next needs a step, epoch ms."""
        header = self.header
        self.settle()
        if header.faulted:
            return NEVER
        again = 0 if header.again else NEVER
        unheard = min((s.again_at() for s in header.subscriptions), default=NEVER)
        return min(self.directory.deadline(), self.early.next_end(), again, unheard)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        counters = self.header.counters
        counters[name] = counters.get(name, 0) + n
