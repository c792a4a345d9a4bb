"""Converts a broker of state format 7 to this core's format, once.

Pure. Every message keeps its id, position, state and counts, so clients keep their leases. Facts
that only save time are dropped: filters evaluate messages again. An unfinished command starts
again, with the same bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import msgspec

from .. import state
from ..protocol.ids import make_id
from ..protocol.signing import ENGINE_CLIENT
from ..replica.driver import Refused
from ..state.queue import broker_facts as live
from ..state.queue import header as facts
from ..state.queue.broker import Broker
from ..state.queue.producers import ProducerHistory, answering_broker
from ..state.storage.row import IN_MEMORY, LEASED, MOVING, NEVER, READY, Row
from .earlier_bridges import CarriedBridges
from .pages import PAGE_BITS, EarlierPages, KnownEntry, StoredMessage, bucket

LOST_BLOCK = (1 << 32) - 1  # no block has this number: its contents count as lost
RECEIPTS_PER_PAGE = 50
_MOVING = 4  # the state of a message in transit to another broker
# Facts of a header whose name has another meaning in this core.
_OTHERWISE: dict[Any, tuple[str, ...]] = {
    live.BrokerHeader: ("spool", "queues"),
    facts.QueueHeader: ("barriers", "generation", "next_filter"),
}


def carry_over(
    store: state.Store,
    keys: Iterable[str],
    home: state.Home,
    limits: state.Limits,
    bits: int = PAGE_BITS,
) -> state.DictStore:
    """Convert pages of format 7 to this core's. keys: of all pages; limits: for this core; bits: a
    page has 2 to that power rows. Raises Refused for a broker that has peers."""
    old = EarlierPages(store, keys, bits)
    _require_alone(home.name, old.facts)
    found = state.DictStore()
    new = Broker(found, _broker_header(old), home, limits)
    shared: dict[int, Row] = {}
    bridges = CarriedBridges(old, new)
    for number in old.under("q/"):
        known = old.read(f"q/{number}")
        _carry_queue(old, known, new, shared, bridges)
    new.spool.next_counter = old.next_counter
    _carry_sessions(old, new)
    _carry_producers(old, new)
    new.recent.extend(old.events())
    new._new_events = len(new.recent)
    new.mark()
    return found


def _require_alone(name: str, known: dict[str, Any]) -> None:
    if known.get("peers"):
        raise Refused(
            f"broker {name!r} has other brokers, but this version carries over homes with one: "
            "start the version that wrote the home, remove brokers until one is left (`lakequeue "
            "brokers --remove NAME`), and stop it. Then start this version and add brokers under "
            "other names"
        )
    if known.get("trails"):
        raise Refused(
            f"broker {name!r} has messages in transit to queues that moved: start the version that "
            "wrote the home, wait until these queues have them, and stop it. Then start this "
            "version"
        )


# ---------------------------------------------------------------- the broker


def _same(known: dict[str, Any], kind: type[Any]) -> Any:
    """Build a header of this core from the facts with the same names."""
    left_out = _OTHERWISE[kind]
    same = {name: value for name, value in known.items() if name not in left_out}
    return msgspec.convert(same, kind)


def _broker_header(old: EarlierPages) -> live.BrokerHeader:
    known = old.facts
    header: live.BrokerHeader = _same({**known, "format": state.FORMAT}, live.BrokerHeader)
    header.refused = {vpn: old.read(f"x/{vpn}") for vpn in old.under("x/")}
    header.speaks_for = sorted(known.get("heirs", ()))
    header.in_tables = old.read("H") or {}
    header.held = list(_held(old))
    for key in known.get("client_pages", ()):
        vpn = key.split("/")[1]
        header.clients |= {f"{vpn}/{one}": tuple(found) for one, found in old.read(key).items()}
    vpns = {name.split("/")[0] for name in header.clients} | set(header.vpns)
    speakers = [*header.clients, *(f"{vpn}/{ENGINE_CLIENT}" for vpn in vpns)]
    for name in speakers:
        if heard := old.read(f"S/{name}"):
            header.heard[name] = {session: tuple(one) for session, one in heard.items()}
    return header


def _held(old: EarlierPages) -> Iterator[live.HeldReceipt]:
    """Receipts that wait for the Delta tables, the oldest first."""
    for at in range(old.facts.get("held_first", 0), old.facts.get("held_next", 0)):
        page = old.read(f"H/{at // RECEIPTS_PER_PAGE}")
        entry: list[Any] = page[at % RECEIPTS_PER_PAGE]
        vpn, name, up_to, partition, runs, gone, *rest, needs = entry
        missing: list[Any] = [old.number, "", 0, []][len(rest) :]
        number, start, base, repeated = [*rest, *missing]
        yield live.HeldReceipt(
            vpn, name, up_to, partition, runs, [tuple(one) for one in gone], number, repeated,
            start, base, needs,
        )  # fmt: skip


def _carry_sessions(old: EarlierPages, new: Broker) -> None:
    """Convert the sessions; a calendar has the time when each is lost."""
    until: dict[str, int] = {}
    for page in old.under("k/"):
        until |= old.read(f"k/{page}")
    for name in old.under("s/"):
        vpn, _, session = name.partition("/")
        if bound := old.read(f"s/{name}"):
            at = until.get(f"s{name}", new.now)
            new.sessions[vpn, session] = live.KnownSession(
                at, [(number, one) for number, one in bound]
            )
            new.watch("s", (vpn, session), at)
            new.changed("s", (vpn, session))


def _carry_producers(old: EarlierPages, new: Broker) -> None:
    for name in old.under("P/"):
        vpn, _, producer = name.partition("/")
        known = old.read(f"P/{name}")
        # Up to four more values: open sequences, the records that the tables must have,
        # destinations with a moving queue, starts. Empty values at the end were omitted.
        needs = known[6] if known[6:] else {}
        starts = known[8] if known[8:] else []
        found = new.producers[vpn, producer] = ProducerHistory(
            *answering_broker(vpn, new.home.number), producer
        )
        found.high, found.gaps, found.runs, found.refusals, found.forgotten_at = known[:5]
        found.needs = needs
        found.starts = [(start, base) for start, base in starts]
        new.watch("p", (vpn, producer), found.forgotten_at)
        new.changed("p", (vpn, producer))


# ---------------------------------------------------------------- queues


def _carry_queue(
    old: EarlierPages,
    known: dict[str, Any],
    new: Broker,
    shared: dict[int, Row],
    bridges: CarriedBridges,
) -> None:
    header = _queue_header(old, known)
    link = bridges.begin(header)
    found = new.add_queue(header)
    for rows in _parts(old, header.number):
        _store(old, new, rows, header.vpn_number, shared)
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
    for first, last, until in old.early_acks(header.number, known):
        found.early.put(first, last, until, new.limits.early_acks)
    new.unacked += header.leased
    new.schedule(found)


def _parts(old: EarlierPages, queue: int) -> Iterator[list[Row]]:
    """The messages of a queue, page by page, in order of position."""
    for _, entries in groupby(old.entries(queue), lambda entry: entry[0] >> old.bits):
        yield [
            _row(place, entry, old.message(entry.id)[0], extras) for place, entry, extras in entries
        ]


def _row(place: int, entry: KnownEntry, message: StoredMessage, extras: Any) -> Row:
    return Row(
        seq=place, id=message.origin or entry.id, size=entry.size, entered=entry.entered,
        time=message.time, ttl_ends=_time(message.ttl_ends), expires=_time(entry.expires),
        priority=message.priority, dmq=bool(message.dmq), level=entry.priority,
        generation=entry.generation, lane=entry.lane, barrier=bool(entry.barrier),
        state=READY if entry.state == _MOVING else entry.state, until=_time(entry.until),
        holder=entry.holder, deliveries=entry.deliveries, cancels=entry.cancels,
        number=entry.delivery, stored=entry.id, extras=extras,
    )  # fmt: skip


def _time(at: int) -> int:
    """Convert a time: this core has another number for "never"."""
    return min(at, NEVER)


def _store(
    old: EarlierPages, new: Broker, rows: list[Row], vpn: int, shared: dict[int, Row]
) -> None:
    """Store the contents of rows in the spool, each once. shared: the first row of each message
    that other queues also have."""
    spool = new.spool
    for row in rows:
        first = shared.get(row.stored)
        if first is not None:
            row.block, row.index, row.length = first.block, first.index, first.length
            row.key_length, row.header_length = first.key_length, first.header_length
            spool.add_match(row)
            continue
        message, has_more = old.message(row.stored)
        spool.adopt(row.stored, vpn, old.content(message), row.size)
        if has_more:
            shared[row.stored] = row
    spool.write_to_blocks(rows, live=True)
    for row in rows:
        if row.block == IN_MEMORY:  # its content was lost before
            row.block, row.length = LOST_BLOCK, 1


def _queue_header(old: EarlierPages, known: dict[str, Any]) -> facts.QueueHeader:
    header: facts.QueueHeader = _same(known, facts.QueueHeader)
    # Every id so far counts as known: an ack for one that is not in the queue is late (L9).
    if old.next_counter > 1:
        header.taken = [[make_id(old.number, 1), make_id(old.number, old.next_counter - 1)]]
    name, vpn = header.definition.name, old.vpn_names[header.vpn_number]
    if not (header.deleted or header.faulted):
        header.given = (old.read(f"v/{vpn}/{bucket(name)}") or {}).get(name, b"")
    header.topics = sorted(old.read(f"u/{header.number}") or [])
    header.tasks = [_task(*packed) for packed in old.read(f"w/{header.number}") or []]
    if header.depth:
        header.generation = known.get("generation", 0)
    return header


def _task(
    vpn: str, command: bytes, cursor: int, done: dict[str, Any], result: Any, why: str
) -> facts.Task:
    """Build a command that starts again, for the same messages as before."""
    done = dict(done)
    by = done.pop("by", None)
    if by is not None:
        done["wide"] = by == "place"
    if "end" in done or by == "place":
        done.setdefault("inactive", None)
    done.pop("over", None)
    return facts.Task(vpn, command, "", done, result, why)
