"""Formats numbers, times and payloads for people, on the page and in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from shlex import quote
from typing import Any

import msgspec

from ..protocol.bounds import CANNOT_DECODE, datetime_of

PREVIEW_MAX = 300
DEAD = "lq-dead-"


def short(value: float) -> str:
    """A number for an axis or a tile: 1.2k, 3.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            number = value / (1e3 if unit == "k" else size)
            return f"{number:.1f}".rstrip("0").rstrip(".") + unit
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2g}"


def size(value: float | None) -> str:
    """Bytes, in powers of ten."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(value: float | None) -> str:
    """A number with thousands separators."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def counted(count: int, what: str) -> str:
    """A count with its noun: ``1 message``, ``2 messages``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rate(value: float | None) -> str:
    """A rate per second; 0 if there is none."""
    return f"{short(value)}/s" if value else "0"


def age(seconds: float | None) -> str:
    """A duration, in the unit that fits."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, of in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * of:
            return f"{seconds / of:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def clock(value: datetime | None, to: str = "seconds") -> str:
    """A time, everywhere in UTC: `2026-11-21 10:00:00Z`."""
    if value is None:
        return "–"
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", to) + "Z"


def one_line(text: str) -> str:
    """Foreign text without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def cut(text: str, most: int) -> str:
    """Text of at most this many characters; an ellipsis if more follows."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def preview(payload: bytes) -> str:
    """A payload's beginning on one line."""
    text = payload[: 4 * PREVIEW_MAX].decode("utf-8", "backslashreplace")
    return cut(" ".join(one_line(text).split()), PREVIEW_MAX)


class _Headers(msgspec.Struct):
    task: str = ""


class _Task(msgspec.Struct):
    """The fields in which Celery's and Dramatiq's messages name their task."""

    headers: _Headers | None = None
    actor_name: str = ""


def task(payload: bytes) -> str:
    """The task's name in a message of Celery or Dramatiq; empty for others."""
    try:
        found = msgspec.json.decode(payload, type=_Task)
    except CANNOT_DECODE:
        return ""
    return found.actor_name or (found.headers.task if found.headers else "")


def death(message: Any) -> dict[str, Any]:
    """The data of a dead message's death; empty for others."""
    found = {
        name.removeprefix(DEAD): text
        for name, text in message.headers.items()
        if name.startswith(DEAD)
    }
    if found.get("time", "").isdigit():
        found["time"] = datetime_of(int(found["time"]))
    return found


def alerts(seen: Any) -> list[dict[str, str]]:
    """Every alert that is set, as scope, name and queue."""
    found = []
    for look in seen.brokers.values():
        for scope in ("broker", "vpn") if look.usage else ():
            of = f"{scope} {look.usage[scope]['name']}"
            if scope == "vpn" and len(seen.brokers) > 1:
                of += f" on broker {look.name}"
            found += [{"of": of, "name": n, "queue": ""} for n in look.usage[scope]["alerts"]]
    for queue in seen.queues:
        for name in queue["alerts"]:
            found.append({"of": queue["name"], "name": name, "queue": queue["name"]})
    return found


def dead_queues(seen: Any) -> set[str]:
    """The dead message queues of other queues; normally they have no consumers."""
    return {queue["definition"]["dead_message_queue"] for queue in seen.queues}


# The sort keys of queues, on the page and in the terminal.
ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda q: q["name"], "depth": lambda q: -q["depth"], "ready": lambda q: -q["ready"],
    "leased": lambda q: -q["leased"], "delayed": lambda q: -q["delayed"],
    "oldest": lambda q: -(q["oldest_age_s"] or 0), "in": lambda q: -q["in_s"],
    "out": lambda q: -q["out_s"], "why": lambda q: (not waits(q), waits(q)),
}  # fmt: skip


def used(seen: Any, what: str) -> int:
    """The used part of a limit, over all brokers."""
    return sum(look.usage["broker"][what] for look in seen.brokers.values() if look.usage)


def limit(seen: Any, what: str, shown: str) -> str:
    """A limit as text; it applies per broker."""
    filters: dict[str, Callable[[float], str]] = {"size": size, "number": number}
    limits = {look.usage["broker"][what] for look in seen.brokers.values() if look.usage}
    if not limits:
        return ""
    each = " each" if len(seen.brokers) > 1 else ""
    return f"of {filters[shown](max(limits))}{each}"


def state(look: Any) -> str:
    """A broker's state, if known."""
    return look.state["state"] or "running"


def waits(queue: Mapping[str, Any]) -> str:
    """The reason why ready messages wait, in a word or two; the queue's page has more."""
    if queue["blocked"] or not queue["ready"] or queue.get("out_s"):
        return queue["blocked"] or ""
    room = [c for c in queue["consumers"] if not c["blocked"]]
    return "filters" if room and all(c["filter"] for c in room) else ""


def bridge_waits(bridge: Mapping[str, Any]) -> list[str]:
    """The reasons why a bridge waits: a line for each endpoint that blocks it (H2)."""
    lines = [bridge["why"]] if bridge["why"] else []
    for held in bridge["blocked"]:
        who = held["endpoint"] or ", ".join(held["destinations"])
        least = "at least " if held["lanes_counted"] < held["lanes"] else ""
        lines.append(
            f"{who}: {held['reason']} for {age(held['for_s'])}, "
            f"{least}{number(held['waiting'])} waiting"
        )
    silent_s = bridge.get("unanswered_s")
    if silent_s is not None and silent_s >= 1 and not lines:
        lines.append(f"no answer for {age(silent_s)}")
    return lines


def details(event: Mapping[str, Any]) -> str:
    """An event's fields besides its name, queue and time."""
    skip = ("event", "vpn", "queue", "time")
    return ", ".join(f"{k} {v}" for k, v in event.items() if k not in skip and v is not None)


def said(request: Any) -> str:
    """The result of a redrive, from the query of its redirect."""
    query = request.query_params
    moved, stayed = (re.fullmatch("[0-9]{1,12}", query.get(k, "")) for k in ("moved", "stayed"))
    if moved is None:
        return ""
    rest = f"; {int(stayed[0]):,} stayed" if stayed is not None and int(stayed[0]) else ""
    return f"{int(moved[0]):,} redriven{rest}."


_FILTERS: tuple[Callable[..., Any], ...] = (
    quote, size, number, rate, age, clock, preview, task, death, details, waits, used, limit, state,
    bridge_waits,
)  # fmt: skip
FILTERS = {function.__name__: function for function in _FILTERS}
