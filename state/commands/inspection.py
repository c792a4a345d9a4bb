"""Inspection: describe, queues, usage, events, browse (R6). These commands change nothing and see
the step's result. A long answer comes in parts: ``more`` says where the next part begins."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, nsmallest
from typing import Any

import msgspec

from ...definitions import is_regex
from ...expressions import predicate
from ...protocol.commands import Browse, Captures, Events, Queues, Usage
from ...protocol.descriptions import TOPIC_MISSING
from ..limits import Budget
from ..queue.broker import BUCKETS, Broker, bucket
from ..queue.consumers import backlog_of, leaves_on_send
from ..queue.header import Subscription
from ..queue.queue import Queue
from ..queue.table import COUNTERS, NAMES
from ..rules.active_set import first_inactive
from ..rules.command_targets import window
from ..rules.edits import dead_part, edited
from ..rules.filter_matching import Blocks, matching
from ..storage.blocks import Content
from ..storage.row import DELAYED, GONE, LEASED, LOWEST, NEVER, Row
from .answers import PartialAnswer
from .permissions import READ_ONLY, may

LEVEL_MAX = (1 << 64) - 1
BROWSED_TOGETHER = 256
TOPIC_FOUND_MS = 60_000
LATER = 1 << 191  # browse lists cold delayed messages behind all others


def queues(broker: Broker, vpn: str, command: Queues) -> PartialAnswer:
    """The queues of a VPN that the client may see by name, behind the name ``after``."""
    most = broker.limits.queues_listed
    names = nsmallest(most + 1, (
        n for (name, n), queue in broker.names.items()
        if name == vpn and n > command.after and not queue.header.stands_for
        and may(broker.speaker, queue.definition, READ_ONLY)
    ))  # fmt: skip
    more = names[most - 1] if len(names) > most else None
    return PartialAnswer([describe(broker, broker.names[vpn, n]) for n in names[:most]], more)


def captures(broker: Broker, vpn: str, command: Captures) -> PartialAnswer:
    """The topics that the queues of a VPN capture: first the regular expressions, then the topic
    names, bucket by bucket."""
    topics = {
        q.definition.underlying_topic for (name, _), q in broker.names.items()
        if name == vpn and not q.header.stands_for
    }  # fmt: skip
    buckets: dict[int, list[str]] = {}
    for topic in sorted(topics):
        number = -1 if is_regex(topic) else bucket((vpn, topic))
        buckets.setdefault(number, []).append(topic)
    texts = buckets.get(-1, []) if command.start == 0 else []
    for number in range(command.start, BUCKETS):
        texts = texts + buckets.get(number, [])
        if len(texts) >= broker.limits.captures_listed and number + 1 < BUCKETS:
            return PartialAnswer(texts, number + 1)
    return PartialAnswer(texts, None)


def events(broker: Broker, vpn: str, command: Events) -> list[dict[str, Any]]:
    """The newest notable events. Every VPN sees those of the whole broker."""
    told = [e for e in broker.recent if e[1] == vpn or e[4].get("scope") == "broker"]
    return [
        {"event": event, "vpn": name, "queue": queue, "time": time, **details}
        for event, name, queue, time, details in told[max(len(told) - command.limit, 0) :]
    ]


def usage(broker: Broker, vpn: str, command: Usage) -> dict[str, Any]:
    """The usage of a VPN and of the broker, their limits, and their alerts (S3, S8, S9, B4)."""
    header, system, spool = broker.header, broker.header.system, broker.spool
    number, limits = header.vpns.get(vpn, 0), header.vpn_limits.get(vpn)
    return {
        "vpn": {
            "name": vpn,
            "spool_bytes": spool.vpn_bytes.get(number, 0),
            "max_spool_usage": None if limits is None else limits.max_spool_usage,
            "alerts": ["spool_usage"] if f"vpn:{number}" in header.alerts else [],
            "refused": dict(header.refused.get(vpn, {})),
        },
        "broker": {
            "name": header.name,
            "spool_bytes": spool.bytes,
            "max_spool_usage": system.max_spool_usage,
            "spool_files": spool.files_in_use(),
            "max_spool_files": system.max_spool_files,
            "delivered_unacked": broker.unacked,
            "max_delivered_unacked": system.max_delivered_unacked,
            "alerts": sorted(name for name in header.alerts if ":" not in name),
        },
        "lanes": broker.mesh.lanes(vpn),
    }


# ---------------------------------------------------------------- describe


def describe(broker: Broker, queue: Queue) -> dict[str, Any]:
    """Everything about one queue, for people and programs."""
    header, definition = queue.header, queue.definition
    moving = sum(one.held for one in header.subscriptions if one.broker is not None)
    counters: dict[str, Any] = {name: header.counters.get(name, 0) for name in COUNTERS}
    counters["invalid"] = header.invalid
    counters["rejected"] = dict(header.rejected)
    counters["discarded_on_entry"] = dict(header.discarded)
    return {
        "name": definition.name,
        "vpn": definition.vpn,
        "broker": broker.header.name,
        "depth": header.depth,
        "ready": _ready(queue),
        "leased": header.leased - moving,
        "delayed": header.delayed,
        "moving": moving,
        "active": min(header.depth, definition.target_queue_depth or header.depth),
        "spool_bytes": header.bytes,
        "oldest_age_s": _oldest_age_s(broker, queue),
        "blocked": _blocked(broker, queue),
        "consumers": [
            _consumer(broker, queue, s) for s in header.subscriptions if s.broker is None
        ],
        "ingress": header.ingress,
        "egress": header.egress,
        "subscriptions": list(header.topics),
        "alerts": ["spool_usage"] * header.usage_high
        + ["delivered_unacked"] * bool(header.flows_high)
        + [TOPIC_MISSING] * _lacks_topic(broker, queue),
        "faulted": header.faulted or None,
        "counters": counters,
        **counters,
        "definition": msgspec.to_builtins(definition),
    }


def _lacks_topic(broker: Broker, queue: Queue) -> bool:
    """Whether a queue waits for a topic that Kafka does not have (Q2). If it got messages only from
    clients that publish to that name, it needs no topic in Kafka. The engine looks for the topic of
    a new queue within a minute."""
    header, topic, there = queue.header, queue.definition.underlying_topic, broker.header.captured
    if there is None or topic == queue.definition.name or is_regex(topic):
        return False
    if header.counters.get("spooled") and not header.reads_plain:
        return False
    at = bisect_left(there, topic)
    return there[at : at + 1] != [topic] and broker.now - header.created > TOPIC_FOUND_MS


def _ready(queue: Queue) -> int:
    return queue.header.depth - queue.header.leased - queue.header.delayed


def _oldest_age_s(broker: Broker, queue: Queue) -> float | None:
    """The age of the oldest message, in s. If it may be cold, this reads one segment, that with the
    lowest id, which nearly always has it."""
    if not queue.header.depth:
        return None
    row, first = _oldest_live(queue), queue.cold.first()
    rows = [] if row is None else [row]
    # Cold rows in order of arrival, as without priorities, begin with the oldest of them.
    are_younger = row is not None and first is not None and row.seq < first <= LEVEL_MAX
    for runs in (queue.later,) if are_younger else (queue.cold, queue.later):
        if runs.rows:
            rows += runs.read(min(runs.segments(), key=lambda segment: segment.id_first))
    return (broker.now - min(row.entered for row in rows)) / 1000


def _oldest_live(queue: Queue) -> Row | None:
    """The live message that arrived first. Only messages that arrived before `ages_end` are in the
    heap. It begins anew when all of these have left, so its cost is a part of theirs."""
    ages, live = queue.ages, queue.live
    while ages:
        row = live.get(ages[0][1])
        if row is not None and row.seq == ages[0][0]:
            return row
        heappop(ages)
    ages += sorted([(row.seq, row.id) for row in live.values()])
    queue.ages_end = queue.header.next_seq
    return live[ages[0][1]] if ages else None


def _blocked(broker: Broker, queue: Queue) -> str | None:
    """Why ready messages wait, or None."""
    header, definition = queue.header, queue.definition
    if not _ready(queue):
        return None
    if not header.egress:
        return "egress shut down"
    if header.stands_for:
        return broker.mesh.why_waiting(queue)
    if not header.subscriptions:
        return "no consumer"
    if definition.max_backlog is not None and header.leased >= definition.max_backlog:
        return "max_backlog"
    if _at_limit(broker) and not any(leaves_on_send(definition, s) for s in header.subscriptions):
        return "max_delivered_unacked"
    if header.faulted:
        return f"faulted: {header.faulted}"
    row, first = queue.ready.first(), queue.first_cold()
    if row is not None:
        first = row.key if first is None else min(row.key, first)
    if first is None and queue.ready.lanes:
        return "partition_key"  # each ready message waits for another one with its key (O4)
    behind = NEVER << 128
    if header.barriers:
        behind = (next(iter(header.barriers)) + 1 << 128) - (LEVEL_MAX << 64)
        if first is None or first >= behind:
            return "barrier"
    room = [s for s in header.subscriptions if not _consumer(broker, queue, s)["blocked"]]
    if not room:
        return "every consumer's backlog is full"
    if first_inactive(queue) is not None and not queue.wanted:
        return "target_queue_depth"  # no active message is for a consumer with room (R5)
    if all(s.filter and _matches_nothing(queue, s.filter, behind) for s in room):
        return "no consumer's filter matches"
    return None


def _matches_nothing(queue: Queue, text: str, below: int) -> bool:
    """Whether a filter has seen all ready messages below a key and matches none."""
    view = queue.ready.views.get(text)
    if view is None or view.behind:
        return False
    for heap in (view.unseen, view.matched):
        row = queue.ready.top(heap)
        if row is not None and row.key < below:
            return False
    segments = queue.cold.segments()
    return all(s.first >= below or s.was_seen_by(view.number) for s in segments)


def _at_limit(broker: Broker) -> bool:
    return broker.unacked >= broker.header.system.max_delivered_unacked


def _consumer(broker: Broker, queue: Queue, subscription: Subscription) -> dict[str, Any]:
    backlog = backlog_of(queue.definition, subscription)
    why = None
    if leaves_on_send(queue.definition, subscription):
        why = None if backlog else "backlog"  # without leases, only a backlog of 0 blocks it
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


# ---------------------------------------------------------------- browse


def browse(broker: Broker, queue: Queue, command: Browse) -> PartialAnswer:
    """Show active messages in the queue's order, from ``start`` on (R5, R6). Cold delayed messages
    come behind all others, by due time.

    One answer reads at most `Limits.browse_rows` rows, `Limits.browse_bytes` of payloads and
    `Limits.browse_pages` segments and blocks. Blocks are counted by what the rows name, not by what
    is in memory, so a replica gives the same answer.
    """
    states = {name: code for code, name in NAMES.items() if code != GONE}
    if command.state is not None and command.state not in states:
        raise ValueError(f"state: {command.state!r} – allowed are {', '.join(sorted(states))}")
    if command.where is not None:
        predicate("where", command.where)
    state = None if command.state is None else states[command.state]
    budget = Budget(broker.limits.browse_rows, broker.limits.browse_bytes)
    pages = broker.limits.browse_pages
    blocks = Blocks(broker)
    inactive = first_inactive(queue)
    out: list[dict[str, Any]] = []
    start: int | None = LOWEST if command.start is None else int(command.start)
    while start is not None and len(out) < command.limit:
        if budget.spent or pages <= 0:
            return PartialAnswer(out, str(start))
        most = min(budget.rows, max(command.limit, BROWSED_TOGETHER))
        rows, start, read = _next_in_order(queue, start, most)
        if len(rows) > budget.rows:
            start = _browse_key(queue, rows[budget.rows])
            del rows[budget.rows :]
        budget.take(len(rows))
        for at, row in enumerate(rows):
            if len(out) >= command.limit:
                break
            if at and pages <= 0:  # at least one row per answer
                return PartialAnswer(out, str(_browse_key(queue, row)))
            if (inactive is not None and row.key >= inactive) or state not in (None, row.state):
                continue
            pages -= blocks.opens(row)
            content = broker.spool.content(row) or (b"", None, None)
            size = sum(len(part or b"") for part in content) + len(command.where or "")
            if size > budget.bytes and budget.bytes < broker.limits.browse_bytes:
                return PartialAnswer(out, str(_browse_key(queue, row)))
            budget.take(0, size)
            if command.where is None or matching(broker, [row], command.where)[0]:
                out.append(_browsed(queue, row, content))
        pages -= read
    return PartialAnswer(out, None)


def _next_in_order(queue: Queue, start: int, most: int) -> tuple[list[Row], int | None, int]:
    """The next rows from a browse key on, the key to go on with, and the number of segments
    read."""
    if start < LATER:
        found = window(queue.live.values(), queue.cold, start, most)
        following = LATER if queue.later.rows else None
    else:
        found, following = window((), queue.later, start - LATER, most), None
    if found.end is not None:
        following = found.end + 1 + (LATER if start >= LATER else 0)
    return found.rows, following, len(found.cold)


def _browse_key(queue: Queue, row: Row) -> int:
    """A row's position in the order of browse."""
    is_later = row.state == DELAYED and row.id not in queue.live
    return LATER + queue.later.by(row) if is_later else row.key


def _browsed(queue: Queue, row: Row, content: Content) -> dict[str, Any]:
    holder = queue.consumers.by_number.get(row.holder)
    return {
        "id": str(row.id),
        "state": NAMES[row.state],
        **_fitting(edited(row, content)),
        "priority": row.priority,
        "delivery_count": row.deliveries,
        "entered": row.entered,
        "expires": row.expires if row.expires < NEVER else None,
        "lease_until": row.until if row.state == LEASED and row.until < NEVER else None,
        "ready_at": row.until if row.state == DELAYED else None,
        "holder": None if holder is None else holder.name,
        "is_barrier": row.barrier,
        "dead": dead_part(row.extras),
    }


SHOWN_BYTES_MAX = 4_000_000  # of one message; an answer is one record, with these bytes as base64


def _fitting(content: Content) -> dict[str, Any]:
    """Payload, key and headers, as far as they fit into an answer. cut: the other parts."""
    payload, key, headers = content
    left = SHOWN_BYTES_MAX
    shown: dict[str, bytes | None] = {"key": key, "headers": headers, "payload": payload}
    cut = []
    for name, whole in shown.items():
        if whole is not None and len(whole) > left:
            # Headers are JSON, so a part of them is useless.
            shown[name] = None if name == "headers" else whole[:left]
            cut.append(name)
        left -= len(shown[name] or b"")
    return {**shown, "cut": cut}
