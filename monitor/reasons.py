"""Explains why a queue does not move (B1–B4, F5, H5, L12, O3, O4, R5, S3).

Pure functions of `describe` and of the queue's first messages as `browse` returns them. `describe`
names the obstacle that the engine met (`blocked`). The messages have the details: the busy keys,
the messages before a barrier, the filters that match, the times when messages are due. In deep
queues only the first messages are examined, and the sentence says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import Any

from ..client.message import BrowsedMessage
from ..expressions import compile_program, is_true
from ..protocol.descriptions import TOPIC_MISSING
from .formatting import counted, cut, one_line

LOOKED_AT = 200  # the number of first messages to examine
NAMES_MAX = 5
DEAD = "lq-dead-reason"  # a header of every dead message (X5)
NO_MATCH = "no consumer's filter matches"
_PER_FLOW = "max_delivered_unacked_per_flow"

Queue = Mapping[str, Any]
Messages = Sequence[BrowsedMessage]


@dataclass(frozen=True, slots=True)
class Waiting:
    """code: for programs. text: a sentence or two. stuck: True if someone should act. side: `out`,
    why nothing is delivered, or `in`, why nothing enters."""

    code: str
    text: str
    stuck: bool = True
    side: str = "out"


def reasons(queue: Queue, messages: Messages, now: datetime) -> list[Waiting]:
    """The reasons why messages of a queue wait, most important first; empty if there are none.

    queue: as `describe` returns it. messages: the first ones, as `browse` returns them.
    """
    found = [] if not queue["depth"] else _why_out(queue, messages, now)
    return [replace(r, text=one_line(r.text)) for r in found + _why_nothing_enters(queue)]


def refused_elsewhere(lane: Mapping[str, Any]) -> Waiting:
    """The reason for messages that wait at another broker because the queue refuses them (H2)."""
    messages = "message waits" if lane["waiting"] == 1 else "messages wait"
    text = (
        f"{lane['waiting']:,} {messages} at broker {lane['at']} for this queue, which has refused "
        f"them for {lane['for_s']:,.0f} s: {lane['why']}."
    )
    return Waiting("refused", one_line(text), side="in")


def _why_out(queue: Queue, messages: Messages, now: datetime) -> list[Waiting]:
    ready, blocked = queue["ready"], queue["blocked"]
    if not ready:
        return _nothing_ready(queue, messages, now)
    name, _, detail = (blocked or "").partition(":")
    if name == "no consumer" and messages and all(DEAD in m.headers for m in messages):
        return [Waiting("dead", _dead(queue), stuck=False)]
    if name == "barrier" and messages and messages[0].is_barrier:
        text = (
            f"Barrier {messages[0].id} is next, and no consumer's filter matches it: "
            f"{_filters(queue['consumers'])}."
        )
        return [Waiting("barrier_filter", text)]
    if name in _OBSTACLES:
        code, say = _OBSTACLES[name]
        return [Waiting(code, say(queue, messages, now))]
    if name == "faulted":
        text = f"The queue is faulted:{detail}. Define it again to put it back into service."
        return [Waiting("faulted", text)]
    if name == NO_MATCH:
        found = _not_blocked(queue, messages)
        text = f"No consumer's filter matches the ready messages: {_filters(queue['consumers'])}."
        return found or [Waiting("filter", text)]
    if blocked:
        return [Waiting("blocked", f"The engine reports: {blocked}.")]
    return _not_blocked(queue, messages)


def _nothing_ready(queue: Queue, messages: Messages, now: datetime) -> list[Waiting]:
    found = []
    if queue["leased"]:
        text = f"{_all_or(queue, 'leased')} with consumers: {_holders(queue)}."
        ends = [m.lease_expires_at for m in messages if m.lease_expires_at is not None]
        if ends:
            text += f" The next lease ends {_at(min(ends), now)}."
        elif messages and queue["definition"]["lease_period_ms"] is None:
            text += " Leases have no end while the consumer is connected."
        found.append(Waiting("held", text, stuck=False))
    if queue["delayed"]:
        found.append(Waiting("delayed", _delayed(queue, messages, now), stuck=False))
    return found


def _delayed(queue: Queue, messages: Messages, now: datetime) -> str:
    text = f"{_all_or(queue, 'delayed')} delayed"
    due = [m.ready_at for m in messages if m.ready_at is not None]
    if not due:
        return text + "."
    part = "" if len(messages) >= queue["depth"] else f" of the first {len(messages):,}"
    return f"{text} until they are due; the next one{part} is due {_at(min(due), now)}."


# ------------------------------------------------------------ obstacles that the engine met


def _egress(queue: Queue, messages: Messages, now: datetime) -> str:
    return (
        f"Egress is shut down: {_waiting(queue)} until it is opened "
        f"(lakequeue shutdown {quote(queue['name'])} --open-egress)."
    )


def _no_consumer(queue: Queue, messages: Messages, now: datetime) -> str:
    return f"No consumer is subscribed: {_waiting(queue)} for one."


def _dead(queue: Queue) -> str:
    name = quote(queue["name"])
    return (
        f"Dead messages: {_waiting(queue)} until someone browses (lakequeue browse {name}), "
        f"redrives (lakequeue redrive {name}) or consumes them."
    )


def _queue_backlog(queue: Queue, messages: Messages, now: datetime) -> str:
    limit = queue["definition"]["max_backlog"]
    return (
        f"The backlog of the queue is full: consumers hold {queue['leased']:,} of max_backlog "
        f"{limit:,} ({_holders(queue)}). An ack makes room."
    )


def _unacked(queue: Queue, messages: Messages, now: datetime) -> str:
    return (
        "The broker has delivered as many unacknowledged messages as it may "
        "(max_delivered_unacked, over all queues): acks of any queue make room."
    )


def _backlogs(queue: Queue, messages: Messages, now: datetime) -> str:
    consumers = queue["consumers"]
    held = _named(f"{c['name']} holds {c['held']:,} of {c['backlog']:,}" for c in consumers)
    text = f"The backlog of every consumer is full: {held}. An ack makes room."
    if any(c["why"] == _PER_FLOW for c in consumers):
        text += f" The limit is the queue's {_PER_FLOW}."
    return text


def _barrier(queue: Queue, messages: Messages, now: datetime) -> str:
    at = next((n for n, m in enumerate(messages) if m.is_barrier), None)
    if at is None:
        return (
            f"A barrier waits until all messages before it have left; it is not among the first "
            f"{len(messages):,} messages. {_holders(queue)}."
        )
    before = messages[:at]
    who = Counter(m.holder or "a consumer" for m in before if m.state == "leased")
    parts = [f"{name} holds {n:,}" for name, n in who.most_common()]
    delayed = [m for m in before if m.ready_at is not None]
    if delayed:
        due = _at(max(m.ready_at for m in delayed if m.ready_at is not None), now)
        parts.append(f"{_are(len(delayed))} delayed, the last due {due}")
    behind = queue["ready"] - sum(m.state == "ready" for m in messages[: at + 1])
    return (
        f"Barrier {messages[at].id} waits for {counted(len(before), 'message')} before it: "
        f"{_named(parts)}. Behind it {_are(behind)} ready."
    )


def _keys(queue: Queue, messages: Messages, now: datetime) -> str:
    expression = queue["definition"]["partition_key"]
    program = compile_program((expression,))
    lanes: dict[Any, list[BrowsedMessage]] = {}
    for m in messages:
        lanes.setdefault(program.run(m.payload, m.priority, m.key)[0], []).append(m)
    busy = []
    for value, lane in lanes.items():
        under_way = next((m for m in lane if m.state != "ready"), None)
        if value is None or under_way is None or all(m.state != "ready" for m in lane):
            continue
        busy.append(f"key {_value(value)}: message {under_way.id} {_where(under_way, now)}")
    return (
        f"The key ({expression}) of each ready message is busy, and one message of a key is in "
        f"progress at a time. {_named(busy) or 'Those in progress are deeper in the queue'}."
    )


def _inactive(queue: Queue, messages: Messages, now: datetime) -> str:
    depth = queue["definition"]["target_queue_depth"]
    return (
        f"Only the first {depth:,} messages are active (target_queue_depth), and no consumer with "
        "room can get any of them: they must leave before others become active."
    )


# By the obstacle's name in `describe`: its code, and a function that returns the sentence.
_OBSTACLES = {
    "egress shut down": ("egress", _egress),
    "no consumer": ("no_consumer", _no_consumer),
    "max_backlog": ("queue_backlog", _queue_backlog),
    "max_delivered_unacked": ("broker_unacked", _unacked),
    "every consumer's backlog is full": ("backlog", _backlogs),
    "barrier": ("barrier", _barrier),
    "partition_key": ("key_busy", _keys),
    "target_queue_depth": ("target_queue_depth", _inactive),
}


# ------------------------------------------------------------ obstacles that only messages show


def _not_blocked(queue: Queue, messages: Messages) -> list[Waiting]:
    """The reason why messages wait although a consumer has room: no such consumer's filter matches
    the ready messages. Empty if the engine is about to deliver one."""
    room = [c for c in queue["consumers"] if not c["blocked"]]
    filters = sorted({c["filter"] for c in room if c["filter"]})
    if not filters or any(not c["filter"] for c in room):
        return []
    first = [m for m in messages if m.state == "ready"]
    program = compile_program(tuple(filters))
    for m in first:
        if any(map(is_true, program.run(m.payload, m.priority, m.key))):
            return []
    if not first:
        return []
    texts = _filters(room)
    full = [c for c in queue["consumers"] if c["blocked"]]
    part = "" if len(first) >= queue["ready"] else f" of the first {len(first):,}"
    text = f"No filter of a consumer with room matches one{part} of the ready messages: {texts}"
    if full:
        text += f". Without room: {_named(c['name'] for c in full)}"
    return [Waiting("filter", f"{text}.")]


def _why_nothing_enters(queue: Queue) -> list[Waiting]:
    definition, found = queue["definition"], []
    if not queue["ingress"]:
        text = (
            "Ingress is shut down: messages published to it are refused or discarded until it is "
            f"opened (lakequeue shutdown {quote(queue['name'])} --open-ingress)."
        )
        found.append(Waiting("ingress", text, side="in"))
    if TOPIC_MISSING in queue["alerts"]:
        text = (
            f"Kafka has no topic {definition['underlying_topic']!r}, which this queue captures: "
            "it gets no records from there. Create the topic, or define the queue with another "
            "underlying_topic."
        )
        found.append(Waiting("topic_missing", text, side="in"))
    limit, most = definition["max_spool_usage"], definition["max_spool_messages"]
    depth = queue["depth"]
    usual = queue["spool_bytes"] / depth if depth else 0
    if limit and depth and queue["spool_bytes"] + usual > limit:
        text = f"The queue is full: {queue['spool_bytes']:,} of {limit:,} bytes. It refuses more."
        found.append(Waiting("full", text, side="in"))
    elif most is not None and depth >= most > 0:
        text = f"The queue is full: {depth:,} of {counted(most, 'message')}. It refuses more."
        found.append(Waiting("full", text, side="in"))
    return found


# ------------------------------------------------------------ words


def _holders(queue: Queue) -> str:
    held = [f"{c['name']} holds {c['held']:,}" for c in queue["consumers"] if c["held"]]
    return _named(held) or "consumers that left hold them"


def _filters(consumers: Iterable[Mapping[str, Any]]) -> str:
    return _named(f"{c['name']} has {c['filter']}" for c in consumers)


def _named(parts: Iterable[str]) -> str:
    """A list as text, with a bounded length."""
    found = list(parts)
    more = len(found) - NAMES_MAX
    shown = ", ".join(found[:NAMES_MAX])
    return f"{shown} and {more:,} more" if more > 0 else shown


def _are(n: int) -> str:
    return f"{n:,} is" if n == 1 else f"{n:,} are"


def _waiting(queue: Queue) -> str:
    n = queue["ready"]
    return f"{counted(n, 'message')} {'waits' if n == 1 else 'wait'}"


def _all_or(queue: Queue, state: str) -> str:
    n, depth = queue[state], queue["depth"]
    if n == depth:
        return "The only message is" if n == 1 else f"All {n:,} messages are"
    return f"{n:,} of {depth:,} messages {'is' if n == 1 else 'are'}"


def _where(message: BrowsedMessage, now: datetime) -> str:
    if message.state == "leased":
        return f"is with {message.holder or 'a consumer'}"
    return f"is delayed until {_at(message.ready_at, now)}"


def _value(value: Any) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return repr(cut(text, 40))


def _at(when: datetime | None, now: datetime) -> str:
    if when is None:
        return "later"
    seconds = (when - now).total_seconds()
    if seconds < 1:
        return "now"
    for unit, size in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"in {seconds / size:.0f} {unit}{'s' if unit == 'day' else ''}"
    return f"in {seconds:.0f} s"
