"""A broker of the earlier core, as the live core reads it: once, when a home changes over.

    pages of `state/` ─▶ its own loaders ─▶ objects of `core/` ─▶ a mark: the new pages

Pure, and one way. Every message keeps its id, its place, its state and its counts, so clients go on
with what they hold. Forgotten is what is only kept for speed: filters look at messages again. A
command that is on its way begins again, bounded as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .. import core
from ..core.queue import broker_facts as live
from ..core.queue import header as facts
from ..core.queue.broker import Broker as LiveBroker
from ..core.queue.producers import ProducerHistory, told_by
from ..core.queue.taken import TAKEN_MAX
from ..core.storage.row import IN_MEMORY, LEASED, MOVING, NEVER, READY, Row
from ..protocol.errors import LakequeueError
from ..protocol.ids import make_id
from ..protocol.signing import ENGINE_CLIENT
from ..replica.driver import Snapshot
from ..state import Home, Limits, Store
from ..state.broker import Broker, bucket
from ..state.durable import PER_PAGE
from ..state.message.pages import QueuePage
from ..state.message.table import MOVING as MOVING_QUEUE
from ..state.producers import ProducerHistory as PagedHistory
from ..state.queue import Queue
from .bridges_over import BridgesOver
from .driver import Snapshot as PagedSnapshot

RANGES_MAX = 2 * TAKEN_MAX  # that are looked at of each kind
LOST_BLOCK = (1 << 32) - 1  # there is none with this number: what lies in it is lost
_PUBLISHED = ("time", "ttl_ends", "priority", "dmq")  # columns of a message
_QUEUED = (  # in the order of `Row`
    "size", "entered", "expires", "priority", "generation", "lane", "barrier", "state", "until",
    "holder", "deliveries", "cancels", "delivery",
)  # fmt: skip


def snapshot_of(own: PagedSnapshot) -> Snapshot:
    """What the loop of the earlier core knew, for the live one's."""
    kept = {name: getattr(own, name) for name in Snapshot.__struct_fields__}
    return Snapshot(**kept)


class NotAlone(LakequeueError):
    """Homes of the earlier core are carried over when they have one broker."""


def _earlier(pages: Store, home: Home, read_with: Limits) -> Broker:
    """The broker of the earlier core. Raises NotAlone."""
    old = Broker.load(pages, home, 0, read_with, first=False)
    if old.header.peers:
        raise NotAlone(
            f"broker {home.name!r} has other brokers: its home stays on the earlier core"
        )
    return old


def require_alone(pages: Store, home: Home, read_with: Limits) -> None:
    """Raise NotAlone for a broker that cannot be carried over."""
    _earlier(pages, home, read_with)


def carry_over(
    pages: Store, keys: Iterable[str], home: Home, limits: core.Limits, read_with: Limits
) -> core.DictStore:
    """The pages of the live core for those of the earlier one. keys: of all pages; limits: with
    which the live core goes on; read_with: with which the pages were written. Raises NotAlone."""
    old = _earlier(pages, home, read_with)
    names = sorted(keys)
    store = core.DictStore()
    header = _broker_header(old, names)
    whose = core.Home(home.name, home.number, home.epoch, home.secret)
    new = LiveBroker(store, header, whose, limits)
    shared: dict[int, Row] = {}
    taken = _Taken(old, names)
    bridges = BridgesOver(old, new, names)
    for key in names:
        if key.startswith("q/"):
            queue = old.queue(int(key[2:]))
            assert queue is not None, f"{key} was there"
            _carry_queue(old, queue, new, shared, bridges)
            new.queues[queue.number].header.taken = taken.by(queue.number)
            old._queues.clear()  # one queue in memory at a time
    new.spool.next_counter = old.header.spool.next_counter
    _carry_names(old, new, names)
    new.recent.extend(old.newest_events())
    new._new_events = len(new.recent)
    new.mark()
    return store


# ---------------------------------------------------------------- the broker


def _same(old: Any, kind: type[Any]) -> dict[str, Any]:
    """The facts that both headers have."""
    return {n: getattr(old, n) for n in kind.__struct_fields__ if n in old.__struct_fields__}


def _broker_header(old: Broker, names: list[str]) -> live.BrokerHeader:
    known, read = old.header, old.values.read
    shared = _same(known, live.BrokerHeader)
    for special in ("format", "spool", "queues"):
        del shared[special]
    header = live.BrokerHeader(core.FORMAT, **shared)
    header.speaks_for = sorted(known.heirs)
    header.refused = {key[2:]: dict(read(key)) for key in names if key.startswith("x/")}
    header.in_tables = dict(read("H") or {})
    header.held = list(_held(old))
    for key in known.client_pages:
        vpn = key.split("/")[1]
        header.clients |= {f"{vpn}/{one}": tuple(found) for one, found in read(key).items()}
    vpns = {name.split("/")[0] for name in header.clients} | set(known.vpns)
    speakers = [*header.clients, *(f"{vpn}/{ENGINE_CLIENT}" for vpn in vpns)]
    for name in speakers:
        if heard := read(f"S/{name}"):
            header.heard[name] = {session: tuple(one) for session, one in heard.items()}
    return header


def _held(old: Broker) -> Iterator[live.HeldReceipt]:
    """Receipts that wait for the Delta tables, the first one first."""
    header = old.header
    for at in range(header.held_first, header.held_next):
        entry: list[Any] = old.values.read(f"H/{at // PER_PAGE}")[at % PER_PAGE]
        vpn, name, up_to, partition, runs, gone, *rest, needs = entry
        missing: list[Any] = [header.number, "", 0, []][len(rest) :]
        number, start, base, repeated = [*rest, *missing]
        yield live.HeldReceipt(
            vpn, name, up_to, partition, runs, [tuple(one) for one in gone], number, repeated,
            start, base, needs,
        )  # fmt: skip


def _carry_names(old: Broker, new: LiveBroker, names: list[str]) -> None:
    """Sessions and producers, with when they are lost or forgotten."""
    until: dict[str, int] = {}
    for key in names:
        if key.startswith("k/"):
            until |= old.values.read(key)
    for key in names:
        kind, _, name = key.partition("/")
        vpn, _, rest = name.partition("/")
        if kind == "s" and (bound := old.values.read(key)):
            at = until.get(f"s{name}", new.now)
            new.sessions[vpn, rest] = live.Session(at, [(number, one) for number, one in bound])
            new.watch("s", (vpn, rest), at)
            new.session_changed((vpn, rest))
        elif kind == "P":
            known = PagedHistory(old.values, vpn, rest)
            whose = told_by(vpn, new.home.number)
            found = new.producers[vpn, rest] = ProducerHistory(*whose, rest)
            for fact in ("high", "gaps", "runs", "refusals", "forgotten_at", "needs"):
                setattr(found, fact, getattr(known, fact))
            found.starts = [(start, base) for start, base in known.starts]
            new.watch("p", (vpn, rest), found.forgotten_at)
            new._change("p", (vpn, rest))


# ---------------------------------------------------------------- queues


def _carry_queue(
    old: Broker, queue: Queue, new: LiveBroker, shared: dict[int, Row], bridges: BridgesOver
) -> None:
    header = _queue_header(old, queue)
    link = bridges.begin(queue, header)
    found = new.add_queue(header)
    for page, at in queue.live_rows():
        rows = _rows(old, page, at)
        _store(old, new, page.id[at], rows, header.vpn_number, shared)
        if link is not None:
            bridges.rows(link, header, rows)
        new.enter(found, rows)
        for row in rows:
            if row.state in (LEASED, MOVING):
                found.leases.setdefault(row.holder, {})[row.id] = row
            if header.generation:
                count = header.generations.get(row.generation, 0) + 1
                header.generations[row.generation] = count
            if row.barrier:
                header.barriers[row.generation] = row.id
        found.spill_over()
    header.barriers = dict(sorted(header.barriers.items()))
    for number, leases in found.leases.items():
        in_order = sorted(leases.values(), key=lambda row: row.number)
        found.leases[number] = {row.id: row for row in in_order}
    for first, last, until in queue.early.overview() if queue.early else ():
        found.early.put(first, last, until, new.limits.early_acks)
    new.unacked += header.leased
    new.schedule(found)


def _store(
    old: Broker, new: LiveBroker, ids: np.ndarray, rows: list[Row], vpn: int,
    shared: dict[int, Row],
) -> None:  # fmt: skip
    """The contents of rows go into the spool, each once. shared: the first row of each message that
    other queues hold too."""
    spool = new.spool
    several = _held_by_several(old, ids)
    for row, content in zip(rows, old.spool.contents(ids), strict=True):
        first = shared.get(row.stored)
        if first is not None:
            row.block, row.index, row.length = first.block, first.index, first.length
            row.key_length, row.header_length = first.key_length, first.header_length
            spool.add_match(row)
            continue
        spool.adopt(row.stored, vpn, content, row.size)
        if row.stored in several:
            shared[row.stored] = row
    spool.settle(rows, live=True)
    for row in rows:
        if row.block == IN_MEMORY:  # its content was lost before
            row.block, row.length = LOST_BLOCK, 1


def _held_by_several(old: Broker, ids: np.ndarray) -> set[int]:
    """Which of these messages are in other queues too."""
    found: list[int] = []
    for page, rows, where in old.spool.rows(ids):
        if page is not None and page.extras:
            here = [int(one) in page.extras for one in rows.tolist()]
            found += ids[where][np.array(here, bool)].tolist()
    return set(found)


def _queue_header(old: Broker, queue: Queue) -> facts.QueueHeader:
    known, read = queue.header, old.values.read
    shared = _same(known, facts.QueueHeader)
    for special in ("subscriptions", "barriers", "generation", "next_filter"):
        del shared[special]
    header = facts.QueueHeader(**shared)
    header.subscriptions = [
        facts.Subscription(**_same(one, facts.Subscription)) for one in known.subscriptions
    ]
    vpn, name = old.vpn_of(queue), known.definition.name
    if not (known.deleted or known.faulted):
        from_page = read(f"v/{vpn}/{bucket(name)}") or {}
        header.given = from_page.get(name, b"")
    header.topics = sorted(read(f"u/{queue.number}") or [])
    header.tasks = [_task(*packed) for packed in read(f"w/{queue.number}") or []]
    if known.depth and known.generation:
        header.generation = known.generation
    return header


class _Taken:
    """Which ids have been in which queue (L9): those of messages that live, as the spool knows it;
    those that are gone count as ones that were. Of old ones, where there are many ranges, nothing
    is known any more, and they count so too."""

    def __init__(self, old: Broker, names: list[str]) -> None:
        self._first = make_id(old.header.number, 1)
        self._end = old.spool.next_id()
        gone: deque[list[int]] = deque(maxlen=RANGES_MAX)
        self._by_queue: dict[int, deque[list[int]]] = {}
        at = self._first
        for page in sorted(int(key[2:]) for key in names if key.startswith("m/")):
            found = old.spool.page(page)
            assert found is not None, f"m/{page} was there"
            base = make_id(old.header.number, found.base)
            queues, pasts = found.queue.tolist(), found.past.tolist()
            for row in [n for n, queue in enumerate(queues) if queue]:
                number = base + row
                if number > at:
                    _extend(gone, at, number - 1)
                at = number + 1
                others = [match[0] for match in found.extras.get(row, ())]
                for queue in {queues[row], pasts[row], *others} - {0}:
                    mine = self._by_queue.get(queue)
                    if mine is None:
                        mine = self._by_queue[queue] = deque(maxlen=RANGES_MAX)
                    _extend(mine, number, number)
        if at < self._end:
            _extend(gone, at, self._end - 1)
        self._gone = gone

    def by(self, queue: int) -> list[list[int]]:
        """The ranges of a queue, ascending."""
        taken: deque[list[int]] = deque(maxlen=TAKEN_MAX - 1)
        parts = [self._gone, self._by_queue.get(queue, deque())]
        # Below this, one of them is not complete.
        full = [part[0][0] for part in parts if len(part) == RANGES_MAX]
        known_from = max(full, default=self._first)
        for first, last in sorted([*parts[0], *parts[1]]):
            if last >= known_from:
                _extend(taken, max(first, known_from), last)
        older = taken[0][0] - 1 if len(taken) == TAKEN_MAX - 1 else known_from - 1
        before = [[self._first, older]] if older >= self._first else []
        return [*before, *taken]


def _extend(ranges: deque[list[int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1][1] = last
    else:
        ranges.append([first, last])


def _task(
    vpn: str, command: bytes, cursor: int, done: dict[str, Any], result: Any, why: str
) -> facts.Task:
    """A command that begins again: what it means is bounded already."""
    done = dict(done)
    by = done.pop("by", None)
    if by is not None:
        done["wide"] = by == "place"
    if "end" in done or by == "place":
        done.setdefault("inactive", None)
    done.pop("over", None)
    return facts.Task(vpn, command, "", done, result, why)


def _time(at: int) -> int:
    """A time that does not come has another number here."""
    return min(at, NEVER)


def _rows(old: Broker, page: QueuePage, at: np.ndarray) -> list[Row]:
    """The messages of a page, in the order of their places."""
    ids = page.id[at]
    known = old.spool.origins(ids).tolist()
    published = zip(*(c.tolist() for c in old.spool.columns(ids, *_PUBLISHED)), strict=True)
    queued = zip(*(getattr(page, name)[at].tolist() for name in _QUEUED), strict=True)
    rows = []
    for place, stored, number, of_message, of_queue in zip(
        at.tolist(), ids.tolist(), known, published, queued, strict=True
    ):
        time, ttl_ends, priority, dmq = of_message
        size, entered, expires, level, generation, lane, barrier, state, until = of_queue[:9]
        holder, deliveries, cancels, delivery = of_queue[9:]
        rows.append(Row(
            seq=page.base + place, id=number, size=size, entered=entered, time=time,
            ttl_ends=_time(ttl_ends), expires=_time(expires), priority=priority, dmq=bool(dmq),
            level=level,
            generation=generation, lane=lane, barrier=bool(barrier),
            state=READY if state == MOVING_QUEUE else state, until=_time(until), holder=holder,
            deliveries=deliveries, cancels=cancels, number=delivery, stored=stored,
            extras=page.extras.get(place),
        ))  # fmt: skip
    return rows
