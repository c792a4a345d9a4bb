"""The life of one message in all its queues, from the journal (R1).

Each event is shown with the state after it, how long that lasted, and why a ready message waited
(`why_waited`). The published message is included while `messages` has it.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..protocol.errors import ConfigError, LakequeueError
from .opening import Lake
from .why_waited import Period, WaitReasons

ID_SHOWN = 40  # characters of a wrong id

_EVENTS = """
SELECT j.broker, j.vpn, j.queue, j.step, j.part, j.line, j.time, j.event,
  nullif(coalesce(n.consumer, j.subscription), '') AS consumer, j.reason, j.deliveries, j.until
FROM journal AS j LEFT JOIN (
  SELECT vpn, queue, subscription, max(consumer) AS consumer FROM consumers GROUP BY ALL
) AS n ON j.vpn = n.vpn AND j.queue = n.queue AND j.subscription = n.subscription
WHERE j.message_id = $id ORDER BY j.time, j.step, j.part, j.line
"""
_CHANGES = "SELECT * FROM changes WHERE message_id = $id"
# A recreated topic has two records at one offset: use the newest of that time.
_PUBLISHED = """
SELECT m.time, m.topic, m.partition, m.offset, m.item, octet_length(m.payload) AS bytes
FROM messages AS m JOIN (
  SELECT topic, partition, "offset", item, min(time) AS time
  FROM journal WHERE message_id = $id AND event = 'spooled' GROUP BY ALL
) AS j ON m.topic = j.topic AND m.partition = j.partition AND m.offset = j.offset
  AND m.item = j.item
ORDER BY m.time > j.time, CASE WHEN m.time <= j.time THEN m.time END DESC, m.time LIMIT 1
"""


def trace(lake: Lake, message_id: str) -> dict[str, Any]:
    """The life of a message: ``published`` (when, where, how large; None if not kept) and
    ``queues``, in the order in which it reached them, each with its ``life``.

    An event has ``time``, ``event``, ``consumer``, ``deliveries``, ``reason``, ``until`` (of a
    lease or a delay) and ``then``: the ``state`` after it, its ``since`` and ``until``, its length
    in ``ms`` (both None while it lasts), and ``why`` a ready message waited, in parts.

    Raises ConfigError for an id that is not a message id, LakequeueError if the tables do not have
    the message.
    """
    if not re.fullmatch("[0-9]{1,20}", message_id) or not 0 < int(message_id) < 1 << 64:
        raise ConfigError(
            f"{message_id[:ID_SHOWN]!r} is not a message id: ids are numbers such as 17, which "
            "`publish`, `browse` and the view `queued` show"
        )
    number = str(int(message_id))
    events = _rows(lake, _EVENTS, number)
    if not events:
        raise LakequeueError(
            f"The tables have no message {number}. They are a few seconds behind the engine; "
            "refused messages have no id"
        )
    changes = {_place(row): row for row in _rows(lake, _CHANGES, number)}
    waits = _waits(lake, list(changes.values()))
    queues: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in events:
        key = row["vpn"], row["queue"]
        fields = {name: row[name] for name in
                ("time", "event", "consumer", "deliveries", "reason", "until")}  # fmt: skip
        fields["then"] = _then(waits.get((row["broker"], *key)), changes.get(_place(row)))
        queues.setdefault(key, []).append(fields)
    published = _rows(lake, _PUBLISHED, number)
    return {
        "message_id": number,
        "published": published[0] if published else None,
        "queues": [
            {"vpn": vpn, "queue": queue, "life": life} for (vpn, queue), life in queues.items()
        ],
    }


def _waits(lake: Lake, changes: list[dict[str, Any]]) -> dict[tuple[str, str, str], WaitReasons]:
    """The queues in which the message waited, at each broker from the first time to the last."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in filter(_waited, changes):
        found.setdefault((row["broker"], row["vpn"], row["queue"]), []).append(row)
    spans = {
        key: (min(row["step"] for row in rows), [row["next_step"] for row in rows])
        for key, rows in found.items()
    }
    return {
        key: WaitReasons(lake, *key, start, None if None in ends else max(ends))
        for key, (start, ends) in spans.items()
    }


def _waited(change: dict[str, Any]) -> bool:
    return change["state"] == "ready" and change["next_step"] != change["step"]


def _then(waits: WaitReasons | None, change: dict[str, Any] | None) -> dict[str, Any] | None:
    """The state after an event and how long it lasted; None if the event did not change the
    state."""
    if change is None or change["state"] == "gone":
        return None if change is None else {"state": "gone"}
    since, until = change["time"], change["next_time"]
    out = {"state": change["state"], **_span(since, until)}
    if waits is not None and _waited(change):
        period = Period(
            change["message_id"], change["entered_step"], change["step"], since,
            change["next_step"], until,
        )  # fmt: skip
        out["why"] = [{**asdict(w), **_span(w.since, w.until)} for w in waits.of(period)]
    return out


def _span(since: datetime, until: datetime | None) -> dict[str, Any]:
    ms = None if until is None else round((until - since).total_seconds() * 1000)
    return {"since": since, "until": until, "ms": ms}


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("broker", "vpn", "queue", "step", "part", "line"))


def _rows(lake: Lake, sql: str, number: str) -> list[dict[str, Any]]:
    found = lake.execute(sql, {"id": number})
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
