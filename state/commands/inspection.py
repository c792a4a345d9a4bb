"""Inspection: describe, queues, usage, events, browse (R6). They change nothing, and see what the
step has done. A long answer is given in parts: ``more`` says where the next one begins."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from ...expressions import predicate
from ...protocol.commands import Browse, Captures, Describe, Events, Queues, Usage
from ..bridges.endpoint import is_endpoint
from ..bridges.link import load
from ..broker import BUCKETS, Broker, BrokerHeader
from ..header import Subscription
from ..limits import Budget
from ..mesh.barriers import fence
from ..message import DELAYED, GONE, LEASED, MOVING, NAMES
from ..message.table import COUNTERS
from ..queue import Queue
from ..rules.active_set import first_inactive
from ..rules.edits import as_edited, dead_part, extras_of
from ..rules.fairness import backlog_of
from ..rules.filters import matching, takes_nothing
from ..rules.order import first_key_of, seq_of
from ..storage import Array, Content, Overlay
from .answers import PartialAnswer
from .permissions import READ_ONLY, may
from .topic_subscriptions import topics_of


def describe_one(broker: Broker, vpn: str, queue: Queue, command: Describe) -> dict[str, Any]:
    """Carry out the command."""
    return describe(broker, queue)


def queues(broker: Broker, vpn: str, command: Queues) -> PartialAnswer:
    """The queues of a VPN, by name, from ``after`` on."""
    names = [n for n in broker.queue_names(vpn) if n > command.after and not is_endpoint(n)]
    part = names[: broker.limits.queues_listed]
    found = [q for q in (broker.find(vpn, name) for name in part) if q is not None]
    more = part[-1] if len(part) < len(names) else None
    seen = [q for q in found if may(broker.speaker, q.definition, READ_ONLY)]
    return PartialAnswer([describe(broker, q) for q in seen], more)


def captures(broker: Broker, vpn: str, command: Captures) -> PartialAnswer:
    """What the queues of a VPN capture: its expressions, and bucket for bucket the topics. No queue
    is loaded for it."""
    texts = []
    if command.start == 0:
        texts = sorted({*(broker.values.read(f"R/{vpn}") or {}).values()})
    for number in range(command.start, BUCKETS):
        texts += sorted(broker.values.read(f"r/{vpn}/{number}") or ())
        if len(texts) >= broker.limits.captures_listed and number + 1 < BUCKETS:
            return PartialAnswer(texts, number + 1)
    return PartialAnswer(texts, None)


def events(broker: Broker, vpn: str, command: Events) -> list[dict[str, Any]]:
    """The newest notable events; what concerns the whole broker is told in every VPN."""
    told = [e for e in broker.newest_events() if e[1] == vpn or e[4].get("scope") == "broker"]
    return [
        {"event": event, "vpn": name, "queue": queue, "time": time, **details}
        for event, name, queue, time, details in told[-max(command.limit, 0) :]
    ]


def describe(broker: Broker, queue: Queue) -> dict[str, Any]:
    """Everything about one queue, for people and programs."""
    header, definition = queue.header, queue.definition
    oldest = None
    first = queue.first_live()
    if first is not None:
        page, row = queue.row(first)
        oldest = (broker.now - int(page.entered[row])) / 1000
    counters: dict[str, Any] = {name: header.counters.get(name, 0) for name in COUNTERS}
    counters["invalid"] = header.invalid
    counters["rejected"] = dict(header.rejected)
    counters["discarded_on_entry"] = dict(header.discarded)
    return {
        "name": definition.name,
        "vpn": definition.vpn,
        "broker": broker.header.name,
        "depth": header.depth,
        "ready": header.depth - header.leased - header.delayed - header.moving,
        "leased": header.leased,
        "delayed": header.delayed,
        "moving": header.moving,
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
        "faulted": header.faulted or None,
        "counters": counters,
        **counters,
        "definition": msgspec.to_builtins(definition),
    }


def _peers(header: BrokerHeader) -> dict[str, Any]:
    """What passed between this broker and others of its home, if there are any."""
    if not header.peers:
        return {}
    peers = [
        {"name": p.name, "number": n, "said": p.said, "heard": p.heard, "lost": p.lost,
         "repeated": p.repeated, "undecided": p.undecided}
        for n, p in sorted(header.peers.items())
    ]  # fmt: skip
    return {"peers": peers}


def usage(broker: Broker, vpn: str, command: Usage) -> dict[str, Any]:
    """What a VPN and the broker use, of how much, and which alerts are set (S3, S8, S9, B4)."""
    header, system = broker.header, broker.header.system
    number, limits = header.vpns.get(vpn, 0), header.vpn_limits.get(vpn)
    return {
        "vpn": {
            "name": vpn,
            "spool_bytes": header.spool.vpn_bytes.get(number, 0),
            "max_spool_usage": None if limits is None else limits.max_spool_usage,
            "alerts": ["spool_usage"] if f"vpn:{number}" in header.alerts else [],
            "refused": dict(broker.values.read(f"x/{vpn}") or {}),
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
            **_peers(header),
        },
    }


def _blocked(broker: Broker, queue: Queue) -> str | None:
    """Why ready messages wait, or None."""
    header = queue.header
    waiting = header.depth - header.leased - header.delayed - header.moving
    limit = queue.definition.max_backlog
    if not waiting:
        return None
    if not header.egress:
        return "egress shut down"
    if queue.number in broker.header.links:
        return _blocked_link(broker, queue)
    if not header.subscriptions:
        return "no consumer"
    if limit is not None and header.leased >= limit:
        return "max_backlog"
    if _at_limit(broker) and not any(_leaves_on_send(queue, s) for s in header.subscriptions):
        return "max_delivered_unacked"
    if header.faulted:
        return f"faulted: {header.faulted}"
    if header.keyed and not queue.ready:
        return "partition_key"  # the key of each ready message has one under way (O4)
    line = fence(queue)
    if line is not None:
        first = queue.ready.first()
        if first is None or first >= first_key_of(line):
            return "barrier"
    room = [s for s in header.subscriptions if not _consumer(broker, queue, s)["blocked"]]
    if not room:
        return "every consumer's backlog is full"
    if first_inactive(queue) is not None and not header.again:
        return "target_queue_depth"  # somebody has room, and nothing active is for them (R5)
    below = None if line is None else first_key_of(line)
    if all(s.filter and takes_nothing(queue, s.filter, below) for s in room):
        return "no consumer's filter matches"
    return None


def _blocked_link(broker: Broker, queue: Queue) -> str | None:
    """Why messages wait at the endpoint of a bridge."""
    link = load(broker, queue.number)
    held = sorted({h.endpoint or h.reason for h in link.held.values()}) if link else []
    return f"held by {', '.join(held[:10])}" if held else None


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


def browse(broker: Broker, vpn: str, queue: Queue, command: Browse) -> PartialAnswer:
    """Active messages in the queue's order, without taking them (R5, R6), from ``start`` on.

    One answer looks at `Limits.browse_rows`, and reads `Limits.browse_bytes` of payloads and
    `Limits.browse_pages`, at most; more: where to go on.
    """
    wanted = {name: code for code, name in NAMES.items() if code != GONE}
    if command.state is not None and command.state not in wanted:
        raise ValueError(f"state: {command.state!r} – allowed are {', '.join(sorted(wanted))}")
    if command.where is not None:
        predicate("where", command.where)
    budget = Budget(broker.limits.browse_rows, broker.limits.browse_bytes)
    limit, pages = command.limit, reads_of(broker) + broker.limits.browse_pages
    start = None if command.start is None else int(command.start)
    out: list[dict[str, Any]] = []
    end = first_inactive(queue)
    for keys, seqs in _in_order(queue, start):
        if len(out) >= limit:
            break
        budget.take(len(seqs))
        following = keys[-1] + 1
        here = seqs < (queue.header.next_seq if end is None else end)
        if command.state is not None:
            here &= queue.gather(seqs, "state") == wanted[command.state]
        if not here.all():
            keys = [key for key, yes in zip(keys, here.tolist(), strict=True) if yes]
            seqs = seqs[here]
        sizes = broker.spool.spans(queue.gather(seqs, "id")) + len(command.where or "")
        n = 0 if out and len(seqs) and sizes[0] > budget.bytes else budget.fits(sizes)
        cut = n < len(seqs)
        if cut:
            following, seqs = keys[n], seqs[:n]
        budget.take(0, int(sizes[:n].sum()))
        if command.where is not None:
            seqs = seqs[np.array(matching(broker, queue, seqs, command.where), bool)]
        out += _shown(broker, queue, seqs[: limit - len(out)])
        spent = cut or budget.spent or reads_of(broker) >= pages
        if spent and len(out) < limit:
            return PartialAnswer(out, str(following))
    return PartialAnswer(out, None)


def reads_of(broker: Broker) -> int:
    """Pages that the step has read so far."""
    store = broker.store
    return store.reads if isinstance(store, Overlay) else 0


TOGETHER = 16  # messages that are looked at before the budget is asked again


def _in_order(queue: Queue, start: int | None) -> Iterator[tuple[list[int], Array]]:
    """Keys and places in the order of delivery (O1, O2), in parts, until nothing more is active
    where that ends at a place (R5). Nothing is sorted: it costs what is read of it."""
    end = None if queue.header.ordered else first_inactive(queue)
    keys = _keys_in_order(queue, start)
    while part := list(islice(keys, TOGETHER)):
        yield part, np.array([seq_of(key) for key in part], np.int64)
        if end is not None and seq_of(part[-1]) >= end:
            return


def _keys_in_order(queue: Queue, start: int | None) -> Iterator[int]:
    """The keys of what is stored. Up to `ordered_from` order is by place; what is ordered otherwise
    comes before or after these, in the ready index or aside."""
    header = queue.header
    begin = first_key_of(0) if start is None else start
    plain_until = header.ordered_from if header.ordered else header.next_seq
    if header.ordered:
        yield from _indexed(queue, begin, 0)
    if begin < plain_until:
        for page, rows in queue.live_rows(max(begin, 0)):
            if page.base >= plain_until:
                break
            places = (rows.astype(np.int64) + page.base).tolist()
            yield from (place for place in places if place < plain_until)
    if header.ordered:
        yield from _indexed(queue, max(begin, plain_until), None)


def _indexed(queue: Queue, begin: int, end: int | None) -> Iterator[int]:
    return merge(queue.ready.scan(begin, end), queue.aside.scan(begin, end))


def _shown(broker: Broker, queue: Queue, seqs: Array) -> list[dict[str, Any]]:
    ids = queue.gather(seqs, "id")
    names = {s.number: s.name for s in queue.header.subscriptions}
    peers = {n + 1: f"broker:{peer.name}" for n, peer in broker.header.peers.items()}
    known = dict(zip(seqs.tolist(), broker.spool.origins(ids).tolist(), strict=True))
    out = []
    for seq, content, priority in zip(
        seqs.tolist(), as_edited(extras_of(queue.rows(seqs)), broker.spool.contents(ids)),
        broker.spool.gather(ids, "priority").tolist(), strict=True,
    ):  # fmt: skip
        page, row = queue.row(seq)
        state = int(page.state[row])
        until, expires = int(page.until[row]), int(page.expires[row])
        out.append(
            {
                "id": str(known[seq]),
                "state": NAMES[state],
                **_fitting(content or (b"", None, None)),
                "priority": priority,
                "delivery_count": int(page.deliveries[row]),
                "entered": int(page.entered[row]),
                "expires": expires if expires < 1 << 62 else None,
                "lease_until": until if state == LEASED and until < 1 << 62 else None,
                "ready_at": until if state == DELAYED else None,
                "holder": (peers if state == MOVING else names).get(int(page.holder[row])),
                "is_barrier": bool(page.barrier[row]),
                "dead": dead_part(page.extras.get(row)),
            }
        )
    return out


SHOWN_BYTES_MAX = 4_000_000  # of one message; an answer is a record, and has them as base64


def _fitting(content: Content) -> dict[str, Any]:
    """Payload, key and headers as far as they fit into an answer; cut: what of them does not."""
    payload, key, headers = content
    left = SHOWN_BYTES_MAX
    shown: dict[str, bytes | None] = {"key": key, "headers": headers, "payload": payload}
    cut = []
    for name, whole in shown.items():
        if whole is not None and len(whole) > left:
            # Headers are JSON: a part of them says nothing.
            shown[name] = None if name == "headers" else whole[:left]
            cut.append(name)
        left -= len(shown[name] or b"")
    return {**shown, "cut": cut}
