"""The screen and the keys of `lakequeue top`: functions of a snapshot and a view, without a
terminal.

Like the page: all queues, or one of them with the reasons why it does not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..protocol import LakequeueError
from . import formatting
from .formatting import ORDERS, one_line, short
from .snapshot import Point, VpnMonitor, VpnSnapshot

BARS = "▁▂▃▄▅▆▇█"
SPARK = 40
FRAME = 8  # lines besides the queues
MESSAGES = 10
BROKERS = 6
SORTS = ("depth", "in", "out", "oldest", "why", "name")  # in the order of the key s
HELP = "↑ ↓ choose   Enter open   Esc back   s sort   q quit"


@dataclass(frozen=True, slots=True)
class Screen:
    """The view. at: the chosen queue. open: it is shown in depth. over: the user wants to quit."""

    at: str = ""
    sort: str = "depth"
    open: bool = False
    over: bool = False


def ordered(seen: VpnSnapshot, view: Screen) -> list[dict[str, Any]]:
    """The queues in the order of the view."""
    return sorted(seen.queues, key=lambda q: (ORDERS[view.sort](q), q["name"]))


def pressed(view: Screen, key: str, seen: VpnSnapshot) -> Screen:
    """The view after a key."""
    names = [queue["name"] for queue in ordered(seen, view)]
    at = names.index(view.at) if view.at in names else 0
    match key:
        case "q":
            return replace(view, over=True)
        case "escape" | "left" | "backspace":
            return replace(view, open=False)
        case "enter" | "right" if names:
            return replace(view, at=names[at], open=True)
        case "up" | "k" if names:
            return replace(view, at=names[max(0, at - 1)])
        case "down" | "j" if names:
            step = 1 if view.at in names else 0
            return replace(view, at=names[min(len(names) - 1, at + step)])
        case "s":
            return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)])
    return view


def screen(vpn_monitor: VpnMonitor, view: Screen, height: int) -> RenderableType:
    seen = vpn_monitor.look()
    parts: list[RenderableType] = []
    if seen.problem:
        parts.append(Text(one_line(seen.problem), "bold red"))
    if view.open:
        parts += _queue(vpn_monitor, view.at, height)
    else:
        parts += _overview(vpn_monitor, seen, view, height)
    return Group(*parts, Text(HELP, "dim"))


def spark(values: Sequence[float]) -> str:
    """A line of bars, the newest last."""
    shown = list(values)[-SPARK:]
    top = max(shown, default=0.0)
    steps = len(BARS) - 1
    return "".join(BARS[round(value / top * steps) if top else 0] for value in shown)


def known(values: Iterable[float | None]) -> list[float]:
    """The values without unknown ones."""
    return [value for value in values if value is not None]


def _overview(
    vpn_monitor: VpnMonitor, seen: VpnSnapshot, view: Screen, height: int
) -> list[RenderableType]:
    queues = ordered(seen, view)
    parts: list[RenderableType] = [_totals(vpn_monitor.past(), len(queues))]
    if seen.silent and not seen.problem:
        parts.append(Text(seen.silent, "bold yellow"))
    if len(seen.brokers) > 1:
        parts.append(_brokers(seen))
    for alert in formatting.alerts(seen):
        parts.append(Text(one_line(f"alert {alert['name']}: {alert['of']}"), "bold yellow"))
    if not queues:
        return [*parts, Text("No queue is defined here.")]
    at = next((n for n, q in enumerate(queues) if q["name"] == view.at), 0)
    room = max(3, height - FRAME - len(parts))
    start = max(0, min(at - room // 2, len(queues) - room))
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=2)
    for column in ("depth", "ready", "held", "delayed", "consumers", "oldest", "in", "out"):
        title = f"{column} ▾" if column == view.sort else column
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("waits: why", no_wrap=True, overflow="ellipsis", ratio=2)
    for queue in queues[start : start + room]:
        levels = (formatting.number(queue[k]) for k in ("depth", "ready", "leased", "delayed"))
        table.add_row(
            Text(one_line(queue["name"])), *levels, str(len(queue["consumers"])),
            formatting.age(queue["oldest_age_s"]), formatting.rate(queue["in_s"]),
            formatting.rate(queue["out_s"]), Text(one_line(formatting.waits(queue)), "red"),
            style="reverse" if queue["name"] == view.at else "",
        )  # fmt: skip
    more = len(queues) - room
    return [*parts, table, *([Text(f"{more:,} more", "dim")] if more > 0 else [])]


def _totals(past: Sequence[Point], queues: int) -> RenderableType:
    last = past[-1] if past else Point(0, 0, 0, 0)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_row(f"{queues:,} queues", f"{formatting.number(last.depth)} messages")
    for name, values in (("in", known(p.into for p in past)), ("out", known(p.out for p in past))):
        now = short(values[-1]) if values else "–"
        table.add_row(f"{name} {now}/s", Text(spark(values), "cyan"))
    return table


def _brokers(seen: VpnSnapshot) -> RenderableType:
    """Each broker in a word or two; those that do not run are first, in case not all fit."""
    shown = sorted(seen.brokers.values(), key=lambda look: not look.silent)
    text = Text("brokers ")
    for look in shown[:BROKERS]:
        load = look.state.get("load")
        share = "" if load is None else f" {100 * load:.0f} %"
        text.append(
            f" {look.name} {formatting.state(look)}{share} ", "red" if look.silent else "green"
        )
    more = len(shown) - BROKERS
    return text.append(f" and {more} more", "dim") if more > 0 else text


def _queue(vpn_monitor: VpnMonitor, name: str, height: int) -> list[RenderableType]:
    try:
        queue, messages = vpn_monitor.queue(name)
    except LakequeueError as error:
        return [Text(one_line(str(error)), "bold red")]
    parts: list[RenderableType] = [Text(one_line(name), "bold")]
    for reason in queue["why"]:
        parts.append(Text(reason["text"], "red" if reason["stuck"] else ""))
    levels = ", ".join(
        f"{shown} {queue[key]:,}"
        for shown, key in (("depth", "depth"), ("ready", "ready"), ("held", "leased"),
                           ("delayed", "delayed"))
    )  # fmt: skip
    parts.append(Text(f"{levels}, oldest {formatting.age(queue['oldest_age_s'])}"))
    for host, part in queue.get("brokers", {}).items():
        text = f"  on {host}: depth {part['depth']:,}, ready {part['ready']:,}, held "
        text += f"{part['leased']:,}, on its way {part['moving']:,}"
        parts.append(Text(f"{text}, consumers {len(part['consumers'])}", "dim"))
    past = vpn_monitor.past(name)
    rates = {"in  ": known(p.into for p in past), "out ": known(p.out for p in past)}
    for text, values in {**rates, "deep": [p.depth for p in past]}.items():
        parts.append(Text(f"{text} {spark(values)} {short(values[-1]) if values else '–'}", "cyan"))
    room = min(MESSAGES, max(3, height - 20))
    return [*parts, _consumers(queue), _messages(messages[:room])]


def _consumers(queue: dict[str, Any]) -> RenderableType:
    if not queue["consumers"]:
        return Text("No consumer is subscribed.", "dim")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("consumer", "held", "backlog", "filter", "state"):
        table.add_column(column, justify="right" if column in ("held", "backlog") else "left")
    for c in queue["consumers"]:
        state = Text(c["why"], "red") if c["blocked"] else Text("has room")
        table.add_row(
            Text(one_line(c["name"])), formatting.number(c["held"]),
            formatting.number(c["backlog"]), Text(one_line(c["filter"] or "")), state,
        )  # fmt: skip
    return table


def _messages(messages: Sequence[Any]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True)
    for column in ("message", "state", "with", "payload"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for m in messages:
        death = formatting.death(m).get("reason", "")
        state = "held" if m.state == "leased" else m.state
        table.add_row(
            m.id, Text(one_line(f"{state}, died of {death}" if death else state)),
            Text(one_line(m.holder or "")),
            Text(formatting.preview(m.payload)),
        )  # fmt: skip
    return table
