"""Definitions and the administrator's looks (Q1–Q9, S7, R6): define, delete, describe, browse,
purge, and the queues of a VPN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from ..definitions import (
    QueueDefinition,
    dead_message_ring,
    parse_configuration,
    parse_definition,
    redefine,
)
from ..expressions import compile_program
from ..protocol.commands import Browse, Configure, Define, Purge, Shutdown
from ..protocol.errors import ConfigError, Problem
from ..protocol.ids import parse_ranges
from .active_set import active_rows, first_inactive
from .broker import Broker, bucket
from .delivery import matching
from .fairness import backlog_of
from .lifecycle import DELAYED, GONE, LEASED, NAMES, READY
from .limits import PAGE_BITS
from .queue import COUNTERS, Queue, QueueHeader, QueuePage, Subscription
from .routing import add_route, drop_route
from .storage import NEVER, Array
from .topic_subscriptions import follow_definition, remove, topics_of

BROWSE_MAX = 10_000


def configure(broker: Broker, command: Configure) -> None:
    """Set limits of the system and of VPNs."""
    configuration = parse_configuration({"system": command.system, "vpns": command.vpns})
    broker.header.system = configuration.system
    broker.reconfigured = True
    for vpn, limits in configuration.vpns.items():
        broker.vpn_number(vpn)
        broker.header.vpn_limits[vpn] = limits


def define(broker: Broker, vpn: str, command: Define) -> None:
    """Define a queue, or define it again (Q9); the same definition again changes nothing."""
    definition = parse_definition({"vpn": vpn, **command.definition})
    if definition.vpn != vpn:
        raise ValueError(f"vpn: {definition.vpn!r} – this is the commands topic of {vpn!r}")
    _check_owner(broker, definition)
    _check_dead_messages(broker, definition)
    existing = broker.find(vpn, definition.name)
    if existing is None:
        _create(broker, vpn, definition)
        return
    old = existing.definition
    if old == definition:
        return
    problems = redefine(old, definition) + _check_last_value(existing, definition)
    if problems:
        raise ConfigError(problems)
    if (old.priority is None) != (definition.priority is None) and existing.header.depth:
        _reorder(existing, by_priority=definition.priority is not None)
    drop_route(broker, old, existing.number)
    add_route(broker, definition, existing.number)
    follow_definition(broker, vpn, existing, old, definition)
    existing.header.definition = existing.definition = definition
    existing.by_priority = definition.priority is not None
    existing.dispatch_wanted = True
    broker.note("defined", vpn, definition.name, again=True)


def _check_owner(broker: Broker, definition: QueueDefinition) -> None:
    """Q5: the owner is a broker that runs; in this version there is one."""
    owner, name = definition.initial_owner, broker.header.name
    if owner is not None and owner != name:
        where = f"queue {definition.name!r}"
        raise ConfigError([Problem(where, "initial_owner", owner, f"must be the broker, {name!r}")])


def _check_dead_messages(broker: Broker, definition: QueueDefinition) -> None:
    """X5: with the queues that are there, dead messages never come back to the queue."""

    def target_of(name: str) -> str | None:
        queue = broker.find(definition.vpn, name)
        return None if queue is None else queue.definition.dead_message_queue

    ring = dead_message_ring(definition, target_of)
    if ring:
        where, target = f"queue {definition.name!r}", definition.dead_message_queue
        raise ConfigError([Problem(where, "dead_message_queue", target, ring)])


def _check_last_value(queue: Queue, new: QueueDefinition) -> list[Problem]:
    """S10: quota 0 keeps one message; a definition does not throw the others away."""
    depth = queue.header.depth
    if new.max_spool_usage or depth < 2:
        return []
    allowed = f"keeps the last message only, and {depth} are stored: consume or purge them before"
    return [Problem(f"queue {new.name!r}", "max_spool_usage", 0, allowed)]


def _create(broker: Broker, vpn: str, definition: Any) -> None:
    number = broker.header.next_queue
    broker.header.next_queue += 1
    queue = broker.add_queue(
        QueueHeader(number, broker.vpn_number(vpn), definition, created=broker.now)
    )
    key = f"n/{vpn}/{bucket(definition.name)}"
    broker.notes.write(key, {**(broker.notes.read(key) or {}), definition.name: number})
    add_route(broker, definition, queue.number)
    follow_definition(broker, vpn, queue, None, definition)
    broker.note("defined", vpn, definition.name)


def _reorder(queue: Queue, by_priority: bool) -> None:
    """Priority order begins or ends: the ready index is made anew. Those in stay in their order."""
    queue.ready.drop()
    queue.by_priority = by_priority
    queue.header.cursors.clear()
    queue.header.rechecks.clear()
    keys: list[int] = []
    for page, rows in _pages(queue):
        ready = rows[(page.state[rows] == READY) & (page.barrier[rows] == 0)]
        keys += queue.keys(ready.astype(np.int64) + (page.number << PAGE_BITS))
    queue.ready.add(sorted(keys))


def delete(broker: Broker, vpn: str, queue: Queue) -> None:
    """Delete a queue; its messages are gone, not delivered (S7)."""
    ids = [page.id[rows] for page, rows in _pages(queue)]
    for group in ids:
        broker.record("deleted", queue, group.tolist())
        broker.spool.release(queue.number, group)
    drop_route(broker, queue.definition, queue.number)
    remove(broker, vpn, queue, topics_of(broker, queue))
    name = queue.definition.name
    key = f"n/{vpn}/{bucket(name)}"
    note = dict(broker.notes.read(key) or {})
    note.pop(name, None)
    broker.notes.write(key, note)
    broker.calendar.set(f"q{queue.number}", NEVER)
    broker.header.waiting.pop(queue.number, None)
    queue.drop()
    broker.note("deleted", vpn, name)


def shutdown(broker: Broker, vpn: str, queue: Queue, command: Shutdown) -> None:
    """Shut down or open ingress and egress, each on its own (H5)."""
    queue.header.ingress = not command.ingress
    queue.header.egress = not command.egress
    queue.dispatch_wanted = True
    broker.note(
        "shutdown", vpn, queue.definition.name, ingress=command.ingress, egress=command.egress
    )


def _pages(queue: Queue) -> Iterator[tuple[QueuePage, Array]]:
    """Pages with their live rows, in order."""
    queue.settle()
    for number in list(queue.directory.live()):
        page = queue.page(number)
        assert page is not None
        yield page, np.flatnonzero(page.state[: page.used] != GONE)


# ---------------------------------------------------------------- looking


def describe(broker: Broker, queue: Queue) -> dict[str, Any]:
    """Everything about one queue, for people and programs."""
    header, definition = queue.header, queue.definition
    oldest = None
    first = queue.first_live()
    if first is not None:
        page, row = queue.row(first)
        oldest = (broker.now - int(page.entered[row])) / 1000
    counters: dict[str, Any] = {name: header.counters.get(name, 0) for name in COUNTERS}
    counters["rejected"] = dict(header.rejected)
    counters["discarded_on_entry"] = dict(header.discarded)
    return {
        "name": definition.name,
        "vpn": definition.vpn,
        "depth": header.depth,
        "ready": header.depth - header.leased - header.delayed,
        "leased": header.leased,
        "delayed": header.delayed,
        "active": min(header.depth, definition.target_queue_depth or header.depth),
        "spool_bytes": header.bytes,
        "oldest_age_s": oldest,
        "blocked": _blocked(broker, queue),
        "consumers": [_consumer(broker, queue, s) for s in header.subscriptions],
        "ingress": header.ingress,
        "egress": header.egress,
        "subscriptions": topics_of(broker, queue),
        "alerts": ["spool_usage"] * header.usage_high
        + ["delivered_unacked"] * bool(header.flows_high),
        "counters": counters,
        **counters,
        "definition": msgspec.to_builtins(definition),
    }


def usage(broker: Broker, vpn: str) -> dict[str, Any]:
    """What a VPN and the broker use, of how much, and which alerts are set (S3, S8, S9, B4)."""
    header, system = broker.header, broker.header.system
    number, limits = header.vpns.get(vpn, 0), header.vpn_limits.get(vpn)
    return {
        "vpn": {
            "name": vpn,
            "spool_bytes": header.spool.vpn_bytes.get(number, 0),
            "max_spool_usage": None if limits is None else limits.max_spool_usage,
            "alerts": ["spool_usage"] if f"vpn:{number}" in header.alerts else [],
            "refused": dict(broker.notes.read(f"x/{vpn}") or {}),
        },
        "broker": {
            "name": header.name,
            "spool_bytes": header.spool.bytes,
            "max_spool_usage": system.max_spool_usage,
            "spool_files": broker.spool.files_in_use(),
            "max_spool_files": system.max_spool_files,
            "delivered_unacked": broker.unacked_total,
            "max_delivered_unacked": system.max_delivered_unacked,
            "alerts": sorted(name for name in header.alerts if ":" not in name),
        },
    }


def _blocked(broker: Broker, queue: Queue) -> str | None:
    """Why ready messages wait, or None."""
    header = queue.header
    waiting = header.depth - header.leased - header.delayed
    limit = queue.definition.max_backlog
    if not waiting:
        return None
    if not header.egress:
        return "egress shut down"
    if not header.subscriptions:
        return "no consumer"
    if limit is not None and header.leased >= limit:
        return "max_backlog"
    if _at_limit(broker) and not any(_leaves_on_send(queue, s) for s in header.subscriptions):
        return "max_delivered_unacked"
    if header.barriers and (queue.ready.first() or header.barriers[0]) >= header.barriers[0]:
        return "barrier"
    if all(_consumer(broker, queue, s)["blocked"] for s in header.subscriptions):
        return "every consumer's backlog is full"
    if first_inactive(queue) is not None and not header.scan_again:
        return "target_queue_depth"  # somebody has room, and nothing active is for them (R5)
    return None


def _at_limit(broker: Broker) -> bool:
    return broker.unacked_total >= broker.header.system.max_delivered_unacked


def _leaves_on_send(queue: Queue, subscription: Subscription) -> bool:
    return queue.definition.semantics == "at-most-once" or subscription.removes_on_send


def _consumer(broker: Broker, queue: Queue, subscription: Subscription) -> dict[str, Any]:
    backlog = backlog_of(queue.definition, subscription)
    why = None
    if _leaves_on_send(queue, subscription):
        pass  # takes no lease, so no limit of leases blocks it
    elif _at_limit(broker):
        why = "max_delivered_unacked"
    elif subscription.held >= backlog:
        flow = queue.definition.max_delivered_unacked_per_flow
        why = "max_delivered_unacked_per_flow" if backlog == flow else "backlog"
    return {
        "name": subscription.name,
        "subscription": subscription.id,
        "held": subscription.held,
        "backlog": backlog,
        "filter": subscription.filter,
        "blocked": why is not None,
        "why": why,
    }


def browse(broker: Broker, queue: Queue, command: Browse) -> list[dict[str, Any]]:
    """Active messages in the queue's order, without taking them (R5, R6)."""
    wanted = {name: code for code, name in NAMES.items() if code != GONE}
    if command.state is not None and command.state not in wanted:
        raise ValueError(f"state: {command.state!r} – allowed are {', '.join(sorted(wanted))}")
    limit = min(max(command.limit, 0), BROWSE_MAX)
    out: list[dict[str, Any]] = []
    for seqs in _in_order(queue):
        if command.state is not None:
            seqs = seqs[queue.gather(seqs, "state") == wanted[command.state]]
        for start in range(0, len(seqs), 256):
            if len(out) >= limit:
                return out
            part = seqs[start : start + 256]
            if command.where is not None:
                part = part[np.array(matching(broker, queue, part, command.where), bool)]
            out += _look(broker, queue, part[: limit - len(out)])
    return out


def _in_order(queue: Queue) -> Iterator[Array]:
    """Places of active messages in the order of delivery, in parts (O1, O2, R5)."""
    places = (
        rows.astype(np.int64) + (page.number << PAGE_BITS) for page, rows in active_rows(queue)
    )
    if not queue.by_priority:
        yield from places
        return
    seqs = np.concatenate([np.zeros(0, np.int64), *places])
    priorities = queue.gather(seqs, "priority")
    yield seqs[np.lexsort((seqs, np.iinfo(np.uint64).max - priorities))]


def _look(broker: Broker, queue: Queue, seqs: Array) -> list[dict[str, Any]]:
    ids = queue.gather(seqs, "id")
    names = {s.number: s.name for s in queue.header.subscriptions}
    out = []
    for seq, content, priority in zip(
        seqs.tolist(), broker.contents(ids),
        broker.spool.gather(ids, "priority").tolist(), strict=True,
    ):  # fmt: skip
        page, row = queue.row(seq)
        state = int(page.state[row])
        until, expires = int(page.until[row]), int(page.expires[row])
        out.append(
            {
                "id": str(page.id[row]),
                "state": NAMES[state],
                "payload": content[0],
                "key": content[1],
                "headers": content[2],
                "priority": priority,
                "delivery_count": int(page.deliveries[row]),
                "entered": int(page.entered[row]),
                "expires": expires if expires < 1 << 62 else None,
                "lease_until": until if state == LEASED and until < 1 << 62 else None,
                "ready_at": until if state == DELAYED else None,
                "holder": names.get(int(page.holder[row])),
                "is_barrier": bool(page.barrier[row]),
                "dead": page.extras.get(row),
            }
        )
    return out


def purge(broker: Broker, queue: Queue, command: Purge) -> int:
    """Remove messages by predicate (active ones, R5), by ids, or all; returns how many."""
    total = 0
    for page, rows in list(chosen(broker, queue, command.where, command.ids)):
        ids = queue.remove(page, rows)
        broker.record("purged", queue, ids.tolist(), reason=command.where or "")
        broker.spool.release(queue.number, ids)
        total += len(rows)
    queue.count("purged", total)
    return total


def chosen(
    broker: Broker, queue: Queue, where: str | None, ids: str | None
) -> Iterator[tuple[QueuePage, Array]]:
    """Pages with their live rows of which an expression is true and which are of these ids.

    An expression finds active messages only (R5).
    """
    ranges = parse_ranges(ids) if ids is not None else None
    if where is not None:
        compile_program((where,))  # also where nothing is stored, a bad one is refused
    for page, live in list(_pages(queue) if where is None else active_rows(queue)):
        rows = live
        if ranges is not None:
            numbers = page.id[rows]
            hit = np.zeros(len(rows), bool)
            for low, high in ranges:
                hit |= (numbers >= np.uint64(low)) & (numbers <= np.uint64(high))
            rows = rows[hit]
        if where is not None:
            seqs = rows.astype(np.int64) + (page.number << PAGE_BITS)
            rows = rows[np.array(matching(broker, queue, seqs, where), bool)]
        if len(rows):
            yield page, rows
