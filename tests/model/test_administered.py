"""The engine does what the model does while queues in use are purged, moved, shut down, deleted and
defined again in every way, and clients die (R6, H5, Q9, X5, P7, L12, S4, S11, C3).

As `Walk` in `batches.py`, with more to do. All that `browse` shows of a message is compared; with
small pages it shows cold delayed messages behind all others. A walk that fails is made shorter.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.ids import format_ranges
from lakequeue.state import DictStore, Limits
from reference.administered import Administered, shown
from reference.model import HEARTBEAT_TIMEOUT_MS, Refused, milliseconds
from rules.steps import NOW, REPLY, Steps, replies, subscribe

from . import batches
from .batches import EXCLUSIVE, TTLS, Batches, Operation, shortest
from .limits import SMALL_PAGES

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
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
ARGUMENTS = {"publish": 4, "subscribe": 4, "options": 4, "ack": 3, "cancel": 3, "renew": 3,
             "anew": 0, "unsubscribe": 1, "redefine": 1, "redrive": 1}  # fmt: skip
PUBLISHES = ("publish", "send_to", "options", "no_json")


class Walk(batches.Walk):
    """lost: consumers whose heartbeats have stopped; heard: when each was last heard."""

    model: Administered

    def __init__(self, queues: list[dict[str, Any]], limits: Limits) -> None:
        self.steps, self.model = Steps(DictStore(), limits=limits), Administered()
        self.is_small = limits == SMALL_PAGES
        self.flows, self.heard = {}, {}
        self.lost: set[str] = set()
        self.named = self.sequence = self.published = 0
        self.orders = dict(queues[-1])
        self.companions = {d["name"]: d for d in queues[:-1]}
        self.commands, self.publishes, self.receipts = [], [], {}
        self.answers: list[Any] = []
        for definition in queues:
            self.define(definition)
        self.hand_over()

    def one_batch(self, batch: list[Operation]) -> None:
        if batch and batch[0][0] in batches.ALONE:
            getattr(self, "do_" + batch[0][0])(*batch[0][1:])
            return
        with self.model.joined():
            for name, *arguments in sorted(batch, key=lambda o: o[0] in PUBLISHES):
                getattr(self, "do_" + name)(*arguments)
        self.hand_over()

    # Publishing

    def publish(self, to: str, body: dict[str, Any], ttl: str | None) -> None:
        self.publish_with(to, json.dumps(body).encode(), body["n"], ttl)

    def do_no_json(self, kind: int, n: int) -> None:
        self.publish_with("orders", b"{%d" % kind, n, None)

    def do_options(self, count: int, kind: int, spread: int, what: int) -> None:
        for i in range(1 + count % 4):
            n = kind + i * (spread + 1)
            body = {"n": n % 97, "k": n % 5, "p": (n * 7 + spread) % 4, "key": "abc"[n % 3 :][:1]}
            given: dict[str, Any] = {"priority": (what + i) % 6} if what % 3 == 0 else {}
            if what % 4 == 1:
                given["due"] = self.model.now + DUE_MS[(what + i) % len(DUE_MS)]
            if (what + i) % 4 == 2:
                given["dmq"] = False
            to, ttl = "orders" if what % 5 else "a/b", (*TTLS, *TTLS[-3:])[kind % 10]
            self.publish_with(to, json.dumps(body).encode(), body["n"], ttl, **given)

    def publish_with(
        self, to: str, payload: bytes, n: int, ttl: str | None, **given: Any
    ) -> None:  # fmt: skip
        key = f"key{n % 3}"
        self.sequence += 1
        options = {"producer": "walk", "seq": self.sequence, "key": key.encode(), **given}
        if ttl is not None:
            options["ttl_ms"] = milliseconds(ttl)
        if due := options.pop("due", None):
            options["deliver_at"] = NOW + due
        self.publishes.append((to, payload, options))
        self.published += 1
        try:
            number = self.model.publish_with(to, payload, ttl, key, **given)
            self.receipts[self.sequence] = number or 0
        except Refused as nack:
            self.receipts[self.sequence] = nack.reason

    # What an administrator does

    def has(self, *names: str) -> bool:
        return all(name in self.model.queues for name in names)

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

    def do_anew(self) -> None:
        if self.has("copies"):
            super().do_anew()

    def do_dead_anew(self, *_: int) -> None:
        """The dead message queue is deleted, or made again."""
        if not self.has("dead"):
            self.define(self.companions["dead"])
            return
        self.model.delete("dead")
        self.commands.append(c.Delete(queue="dead"))
        self.forget_flows()

    def do_redrive(self, name: int) -> None:
        queue = ("dead", "dead copies")[name % 2]
        if self.has(queue):
            super().do_redrive(name)

    def do_companion(self, which: int, what: int) -> None:
        name = ("copies", "dead", "dead copies")[which % 3]
        keys = OF_COMPANIONS[what % len(OF_COMPANIONS)]
        if self.has(name) and not self.keeps_many(name, keys):
            self.companions[name] = dict(self.companions[name]) | keys
            self.define(dict(self.companions[name]))

    def keeps_many(self, name: str, keys: dict[str, Any]) -> bool:
        """S10: quota 0 is refused then."""
        return keys.get("max_spool_usage") == 0 and len(self.model.queues[name].entries) > 1

    def do_redefine(self, which: int) -> None:
        change = dict(REDEFINITIONS[which % len(REDEFINITIONS)])
        given = next((k for k in EXCLUSIVE if change.get(k) is not None), None)
        if (given == "target_queue_depth" and self.has_order()) or self.keeps_many(
            "orders", change
        ):
            return
        if given is not None:
            change |= {key: None for key in EXCLUSIVE if key != given}
        if "redelivery_delay" in change:
            factor = 1 + which % 2 if change["redelivery_delay"] else None
            change["redelivery_delay_multiplier"] = factor
        new = {k: v for k, v in (self.orders | change).items() if v is not None}
        fairness = new.get("fairness_model", "proportional")
        if new.get("semantics") == "at-most-once" and fairness == "proportional":
            new["fairness_model"] = "round-robin"
        self.orders = new
        self.define(dict(new))

    # Consumers

    def do_subscribe(self, backlog: int, filter: int, mode: int, queue: int) -> None:
        to = {5: "dead", 6: "copies", 7: "copies"}.get(queue % 8, "orders")
        if len(self.flows) >= batches.FLOWS_MAX or not self.has(to):
            return
        self.named += 1
        name, most = f"c{self.named}", 1 + backlog % 9
        text, no_ack = batches.FILTERS[filter % len(batches.FILTERS)], mode % 5 == 4
        self.flows[name] = self.model.subscribe(to, name, most, text, no_ack).number
        keys = {"filter": text, "acks": "none" if no_ack else "explicit", "session": name}
        self.commands.append(subscribe(name, most, to, **keys))

    def do_lose(self, which: int, _: int) -> None:
        """Its client dies (C3)."""
        flow = self.pick(which)
        if flow is not None:
            self.lost.add(flow.name)
            heard = self.heard.get(flow.name, self.model.now)
            flow.dead_at = heard + HEARTBEAT_TIMEOUT_MS

    def pick(self, which: int) -> Any:
        living = [name for name in self.flows if name not in self.lost]
        if not living:
            return None
        number = self.flows[living[which % len(living)]]
        return next(s for s in self.model.subscriptions if s.number == number)

    def forget_flows(self) -> None:
        self.flows = {n: number for n, number in self.flows.items() if self.number_lives(number)}

    def beat(self) -> None:
        self.forget_flows()
        for name in self.flows:
            if name not in self.lost:
                if name in self.heard:
                    self.commands.append(c.Heartbeat(session=name))
                self.heard[name] = self.model.now

    # Comparing

    def hand_over(self) -> None:
        self.beat()
        self.steps.now = NOW + self.model.now
        out = self.steps.run(self.commands, self.publishes)
        found = replies(out)
        assert not [r.error for r in found if r.error is not None]
        for expected in self.answers:
            assert expected in [r.result for r in found], f"no answer is {expected}: {found}"
        self.answers, self.commands, self.publishes = [], [], []
        self.model.check()
        self.compare_receipts(out)
        self.compare_deliveries(out)
        self.look()

    def look(self) -> None:
        super().look()
        for name, queue in self.model.queues.items():
            command = c.Browse(queue=name, limit=10_000, reply=REPLY)
            (answer,) = replies(self.steps.run([command]))
            for one in answer.result:
                entry = queue.find(int(one["id"]))
                assert entry is not None
                dead = one["dead"] or {}
                of_dead = {key: dead.get(key) for key in ("reason", "queue")}
                first = (dead.get("first") or {}).get("queue")
                found = one | of_dead | {"first": first}
                expected = shown(entry, NOW)
                assert {key: found[key] for key in expected} == expected, f"{name}: {one['id']}"

    def order_is_silent(self, entries: list[Any]) -> bool:
        has_delayed = any(e.delayed_until is not None for e in entries)
        return super().order_is_silent(entries) or (self.is_small and has_delayed)


def random_queues(r: random.Random) -> list[dict[str, Any]]:
    park = {"name": "park", "message_type": "json", "max_spool_messages": 6, "expiration": "9s"}
    return [park, *batches.random_queues(r)]


def random_batches(r: random.Random) -> Batches:
    start: list[Operation] = [("subscribe", 5, 0, 0, 0), ("subscribe", 2, 3, 0, 0)]
    made: Batches = [[*start, ("publish", 6, 0, 0, 0)]]
    for _ in range(16):
        draw = r.random()
        if draw < 0.26:
            made.append([("advance", r.randrange(16)) if draw < 0.2 else ("restart",)])
        else:
            made.append([random_operation(r) for _ in range(r.randint(1, 6))])
    return made


def random_operation(r: random.Random) -> Operation:
    name = r.choice(NAMES)
    if name == "redefine":
        return (name, r.randrange(len(REDEFINITIONS)))
    return (name, *[r.randrange(16) for _ in range(ARGUMENTS.get(name, 2))])


def failure(queues: list[dict[str, Any]], some: Batches, limits: Limits) -> Exception | None:
    try:
        Walk(queues, limits).go(some)
    except Exception as error:
        return error
    return None


def check_walk(seed: int, limits: Limits) -> None:
    r = random.Random(seed)
    queues, some = random_queues(r), random_batches(r)
    if failure(queues, some, limits) is not None:
        short = shortest(some, lambda less: failure(queues, less, limits) is not None)
        error = failure(queues, short, limits)
        pytest.fail(f"seed {seed}: {error!r}\nqueues {queues[-1]}\nshortest walk {short}")


@pytest.mark.parametrize("limits", [Limits(), SMALL_PAGES], ids=["live", "small pages"])
def test_L_B_F_O_R6_H5_Q9_X5_P7_administered_walks(limits: Limits) -> None:
    for seed in range(60 * TIMES):
        check_walk(seed, limits)
