"""The engine agrees with the model while queues in use are purged, moved, shut down, deleted and
redefined in every way, and clients die (R6, H5, Q9, X5, P7, L12, S4, S11, C3).

All that `browse` shows of a message is compared; with small pages it shows cold delayed messages
behind all others.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.ids import format_ranges
from lakequeue.state import Limits
from reference.model import HEARTBEAT_TIMEOUT_MS, Entry, Queue
from rules.steps import NOW, REPLY

from . import batches
from .batches import TIMES, TTLS, Batches, random_batches, shortest
from .limits import SMALL_PAGES

DUE_MS = (300, 1300, 5000)
PAIRS = (
    ("orders", "copies"), ("copies", "orders"), ("dead", "orders"), ("dead copies", "copies"),
    ("orders", "park"), ("park", "orders"),
)  # fmt: skip
REDEFINITIONS: tuple[dict[str, Any], ...] = (
    *batches.REDEFINITIONS,
    *({"priority": text} for text in ("/@priority", "/n * 3 - 4")),
    *({"semantics": text} for text in ("at-most-once", None, None)),
    *({"max_spool_usage": most} for most in (0, None, 600)),
    *({"max_message_size": most} for most in (40, None)),
    *({"reject_low_priority_msg_limit": most} for most in (3, None)),
    *({"reject_msg_to_sender_on_discard": p} for p in ("never", "including-when-shutdown", None)),
    *({"dead_message_queue": name} for name in (None, "dead", "nowhere")),
    *({"max_deliveries": most} for most in (1, None)),
    *({"redelivery_delay": pause} for pause in ("300ms", None)),
    {"expiration": "700ms"}, {"deferred_ack_expiration": "1s"}, {"leasing": None},
    *({"expiration_model": model} for model in ("earliest", "queue", None)),
    *({"max_delivered_unacked_per_flow": most} for most in (2, None)),
    {"fairness_model": None}, {"max_cancels": None}, {"partition_key": "/@priority"},
    {"on_invalid": "nack"}, {"on_invalid": None},
    {"barrier_expression": "/n > 40"}, {"target_queue_depth": 2},
)  # fmt: skip
OF_COMPANIONS: tuple[dict[str, Any], ...] = (
    {"max_spool_messages": 2}, {"max_spool_messages": 40}, {"partition_key": "/key"},
    {"priority": "/p"}, {"expiration": "2s"}, {"max_per_subscription_backlog": 2},
    {"filter": "/n < 60"}, {"max_spool_usage": 0}, {"max_spool_usage": 1000},
    {"lease_period": "700ms"}, {"max_message_size": 45}, {"max_deliveries": 2},
)  # fmt: skip
NAMES = (
    *batches.NAMES, *["options"] * 3, "purge", *["move"] * 3, "shut", "open", "open", "dead_anew",
    "redefine", "companion", "lose", "no_json",
)  # fmt: skip


class Walk(batches.Walk):
    """Like the walk in batches, with more operations."""

    NAMES = NAMES
    REDEFINITIONS = REDEFINITIONS
    HAS_SESSIONS = True
    TO = ("orders",) * 5 + ("dead", "copies", "copies")

    def do_no_json(self, kind: int, n: int) -> None:
        self.publish_bytes("orders", b"{%d" % kind, n, None)

    def do_options(self, count: int, kind: int, spread: int, what: int) -> None:
        for i in range(1 + count % 4):
            given: dict[str, Any] = {"priority": (what + i) % 6} if what % 3 == 0 else {}
            if what % 4 == 1:
                given["due"] = self.model.now + DUE_MS[(what + i) % len(DUE_MS)]
            if (what + i) % 4 == 2:
                given["dmq"] = False
            to, ttl = "orders" if what % 5 else "a/b", (*TTLS, *TTLS[-3:])[kind % 10]
            self.publish(to, self.body(kind + i * (spread + 1), spread), ttl, **given)

    def ask(self, command: Any, expected: Any) -> None:
        self.commands.append(command)
        self.answers.append(expected)

    def choice(self, name: str, what: int) -> tuple[str | None, list[int] | None]:
        """An expression, some ids, or neither."""
        if what % 3 == 0:
            return ("/n < 30", "/k = 1", "/k <> 1")[what % 9 // 3], None
        entries = self.model.queues[name].entries
        if what % 3 == 1 and entries:
            some = {entries[(what * 3 + i) % len(entries)].id for i in range(1 + what % 4)}
            return None, sorted(some)
        return None, None

    def do_purge(self, queue: int, what: int) -> None:
        name = ("orders", "copies", "dead", "dead copies")[queue % 4]
        if self.has(name):
            where, ids = self.choice(name, what)
            expected = self.model.purge(name, where, ids)
            named = None if ids is None else format_ranges(ids)
            self.ask(c.Purge(queue=name, where=where, ids=named, reply=REPLY), expected)

    def do_move(self, pair: int, what: int) -> None:
        name, to = PAIRS[pair % len(PAIRS)]
        if self.has(name, to):
            where, ids = self.choice(name, what)
            count, why = self.model.move(name, to, where, ids)
            named = None if ids is None else format_ranges(ids)
            expected = {"count": count, "stayed": sum(why.values()), "why": why}
            self.ask(c.Move(queue=name, to=to, where=where, ids=named, reply=REPLY), expected)

    def do_shut(self, queue: int, what: int) -> None:
        name = ("orders", "copies", "dead", "orders")[queue % 4]
        if self.has(name):
            ingress, egress = what % 3 == 0, what % 4 == 1
            self.model.shutdown(name, ingress, egress)
            self.commands.append(c.Shutdown(queue=name, ingress=ingress, egress=egress))

    def do_open(self, *_: int) -> None:
        for name in filter(self.has, ("orders", "copies", "dead")):
            self.model.shutdown(name, False, False)
            self.commands.append(c.Shutdown(queue=name))

    def do_dead_anew(self, *_: int) -> None:
        """The dead message queue is deleted, or defined again."""
        if self.has("dead"):
            self.delete("dead")
        else:
            self.define(self.companions["dead"])

    def do_companion(self, which: int, what: int) -> None:
        name = ("copies", "dead", "dead copies")[which % 3]
        keys = OF_COMPANIONS[what % len(OF_COMPANIONS)]
        if self.has(name) and not self.keeps_many(name, keys):
            self.companions[name] = dict(self.companions[name]) | keys
            self.define(dict(self.companions[name]))

    def do_lose(self, which: int, _: int) -> None:
        """The consumer's client dies (C3)."""
        flow = self.pick(which)
        if flow is not None:
            self.lost.add(flow.name)
            heard = self.heard.get(flow.name, self.model.now)
            flow.dead_at = heard + HEARTBEAT_TIMEOUT_MS

    def compare_row(self, queue: Queue, row: dict[str, Any]) -> None:
        entry = queue.find(int(row["id"]))
        assert entry is not None
        dead = row["dead"] or {}
        found = row | {
            "reason": dead.get("reason"), "queue": dead.get("queue"),
            "first": (dead.get("first") or {}).get("queue"),
        }  # fmt: skip
        expected = shown(entry)
        assert {key: found[key] for key in expected} == expected, f"{queue.name}: {row['id']}"

    def order_is_silent(self, entries: list[Any]) -> bool:
        has_delayed = any(e.delayed_until is not None for e in entries)
        is_small = self.steps.limits == SMALL_PAGES
        return super().order_is_silent(entries) or (is_small and has_delayed)


def shown(entry: Entry) -> dict[str, Any]:
    """The fields of `Browse` that are compared."""

    def time(own: int | None) -> int | None:
        return None if own is None else NOW + own

    return {
        "state": entry.state, "delivery_count": entry.deliveries, "is_barrier": entry.is_barrier,
        "expires": time(entry.expires), "lease_until": time(entry.lease_until),
        "ready_at": time(entry.delayed_until), "entered": time(entry.entered),
        "holder": entry.holder and entry.holder.name,
        "reason": entry.headers.get("lq-dead-reason"), "queue": entry.headers.get("lq-dead-queue"),
        "first": entry.headers.get("lq-first-dead-queue"),
    }  # fmt: skip


PARK = {"name": "park", "message_type": "json", "max_spool_messages": 6, "expiration": "9s"}


@pytest.mark.parametrize("limits", [Limits(), SMALL_PAGES], ids=["live", "small pages"])
def test_L_B_F_O_R6_H5_Q9_X5_P7_administered_walks(limits: Limits) -> None:
    for seed in range(20 * TIMES):
        r = random.Random(seed)
        queues = [PARK, *batches.random_queues(r)]

        def failure(some: Batches, queues: list[dict[str, Any]] = queues) -> Exception | None:
            try:
                Walk(queues, limits=limits).go(some)
            except Exception as error:
                return error
            return None

        some = random_batches(r, 16, 6, 15, Walk)
        if failure(some):
            short = shortest(some, lambda less: failure(less) is not None)
            pytest.fail(f"seed {seed}: {failure(short)!r}\nqueues {queues[-1]}\nwalk {short}")
