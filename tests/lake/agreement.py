"""The expected contents of the views: from the engine's own answers, and from a plain loop over the
journal's rows."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from lakequeue.protocol import Reason

MANY = 10_000
DEAD = {"expired", "max_deliveries", "max_cancels", "rejected"}
assert {str(r) for r in Reason} >= DEAD


def rows(lake: Any, sql: str, *values: Any) -> list[dict[str, Any]]:
    """The rows of a query, as dictionaries by column name."""
    found = lake.execute(sql, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def queued_agrees(lake: Any, admin: Any, only: str = "") -> int:
    """Check that `queued` and `queues` agree with `browse` and `describe`, of all queues or of one.
    Returns the number of messages."""
    described = [admin.describe(only)] if only else admin.queues()
    seen = {queue["name"]: queue for queue in described}
    said = {row["queue"]: row for row in rows(lake, "SELECT * FROM queues")}
    assert set(said) >= set(seen) if only else set(said) == set(seen)
    queued: dict[str, dict[str, Any]] = {name: {} for name in seen}
    for row in rows(lake, "FROM queued WHERE ? IN ('', queue)", only):
        queued[row["queue"]][row["message_id"]] = row
    for name, queue in seen.items():
        _queue_agrees(said[name], queue)
        there = queued[name]
        assert len(there) == queue["depth"]
        shown = {m.id: m for m in admin.browse(name, limit=MANY)}
        active = shown.keys() if queue["definition"]["target_queue_depth"] else there.keys()
        assert shown.keys() == active
        for number, message in shown.items():
            _message_agrees(there[number], message)
    return sum(queue["depth"] for queue in seen.values())


def _queue_agrees(row: dict[str, Any], seen: dict[str, Any]) -> None:
    for name in ("depth", "ready", "leased", "delayed", "ingress", "egress"):
        assert row[name] == seen[name], f"{seen['name']}: {name}"
    assert row["consumers"] == len(seen["consumers"])
    assert json.loads(row["definition"]) == msgspec.to_builtins(seen["definition"])


def _message_agrees(row: dict[str, Any], message: Any) -> None:
    found = {
        "state": row["state"], "delivery_count": row["deliveries"], "holder": row["consumer"],
        "entered": row["entered_at"], "lease": row["leased_until"], "ready": row["delayed_until"],
        "dead": row["dead_reason"],
    }  # fmt: skip
    assert found == {
        "state": message.state, "delivery_count": message.delivery_count,
        "holder": message.holder, "entered": message.entered,
        "lease": message.lease_expires_at, "ready": message.ready_at,
        "dead": message.headers.get("lq-dead-reason"),
    }, f"{message.queue}: {message.id}"  # fmt: skip


class Life:
    """One message in one queue, followed step by step."""

    def __init__(self) -> None:
        self.state = "gone"
        self.since = 0
        self.ms = {"ready": 0, "leased": 0, "delayed": 0}
        self.count = 0
        self.stays = 0
        self.ended: str | None = None
        self.times: dict[str, list[int]] = {}
        self.consumers: set[str] = set()
        self.deliveries = 0

    def goes(self, to: str, row: dict[str, Any]) -> None:
        if self.state != "gone":
            self.ms[self.state] += row["time"] - self.since
        self.state, self.since = to, row["time"]

    def happens(self, row: dict[str, Any], name: Any) -> None:
        event = row["event"]
        self.times.setdefault(event, []).append(row["time"])
        match event:
            case "spooled":
                self.deliveries += self.count
                self.count, self.ended = 0, None
                self.stays += 1
                self.goes("delayed" if row["until"] else "ready", row)
            case "delivered" | "redelivered":
                self.consumers.add(name(row["subscription"]))
                self.goes("leased", row)
            case "barrier_delivered":
                self.consumers.add(name(row["subscription"]))
                self.deliveries += 1
            case "renewed":
                self.goes("leased", row)
            case "canceled" | "returned":
                self.goes("delayed" if row["until"] else "ready", row)
            case "lease_ended" | "ready":
                self.goes("ready", row)
            case "dead_lettered" | "discarded" | "ack_ignored" | "deferred_ack" | "edited":
                return
            case _:
                self.goes("gone", row)
                self.ended = event
        if event not in ("spooled", "barrier_delivered"):
            self.count = row["deliveries"]


def lives(journal: list[dict[str, Any]]) -> dict[tuple[str, str], Life]:
    """Every message in every queue, from the rows of the journal in their order."""
    names = {
        row["subscription"]: row["reason"].partition(", consumer=")[2]
        for row in journal
        if row["event"] == "subscribed"
    }
    found: dict[tuple[str, str], Life] = {}
    for row in journal:
        if row["message_id"] is not None:
            key = row["queue"], row["message_id"]
            found.setdefault(key, Life()).happens(row, lambda s: names.get(s, s))
    return {key: life for key, life in found.items() if life.stays}


def lifecycle_adds_up(lake: Any, journal: list[dict[str, Any]]) -> int:
    """Check the outcomes and durations in `lifecycle`. Returns the number of messages."""
    found = {(row["queue"], row["message_id"]): row for row in rows(lake, "FROM lifecycle")}
    wanted = lives(journal)
    assert found.keys() == wanted.keys()
    for key, life in wanted.items():
        row = found[key]

        def last(event: str, life: Life = life) -> datetime | None:
            return _time(max(life.times[event])) if event in life.times else None

        given = [t for e in ("delivered", "redelivered", "barrier_delivered", "renewed")
                 for t in life.times.get(e, ())]  # fmt: skip
        assert row | {"vpn": "default", "published_at": None} == {
            "vpn": "default", "queue": key[0], "message_id": key[1], "published_at": None,
            "entered_at": _time(life.times["spooled"][0]),
            "first_delivered_at": _time(min(given)) if given else None,
            "acknowledged_at": last("acknowledged"), "expired_at": last("expired"),
            "dead_lettered_at": last("dead_lettered"),
            "deliveries": life.deliveries + life.count,
            "consumers": sorted(life.consumers) or None,
            "waiting_ms": life.ms["ready"], "processing_ms": life.ms["leased"],
            "delayed_ms": life.ms["delayed"],
            "state": life.state, "ended": life.ended, "stays": life.stays,
        }, key  # fmt: skip
    return len(wanted)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
