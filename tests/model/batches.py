"""Walks in batches: many commands and publishes joined in one step, as the job takes them.

A walk is a list of batches, a batch a list of operations, an operation a name and small numbers
that are taken modulo the number of choices; so every part of a walk is a walk too. Queues are
redefined in all ways while they hold messages (Q9). There is no client.
"""

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries, Receipts
from lakequeue.state import DictStore
from reference.model import Model, Queue, Refused, Subscription, milliseconds
from rules.steps import NOW, REPLY, Steps, replies, subscribe

Operation = tuple[Any, ...]
Batches = list[list[Operation]]
Part = TypeVar("Part")
TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))  # this many times as many walks

TTLS = (None, None, None, None, None, None, "700ms", "3100ms", "9700ms")
DELAYS = (None, None, "300ms", "1300ms", "4700ms")
PAUSES_MS = (1, 100, 499, 500, 1000, 1700, 5000, 20_000)
EXCLUSIVE = ("priority", "barrier_expression", "target_queue_depth")
TOPICS = ("a", "a/b", "a/b/c", "b/b", "orders")
PATTERNS = ("a", "*", "a/*", "*/b", "a/>", ">", "a/b*", "a/(b|c).*", "ord.*", "b/b")

FLOWS_MAX = 6
SHORTENING_S = 10.0
FILTERS = (None, None, None, "/k = 0", "/k <> 0", "/n < 50 AND /k IN (0, 1)", "/p > 1")
PERIODS = ("500ms", "2900ms", "11s", None)
REDEFINITIONS: tuple[dict[str, Any], ...] = (
    *({"priority": text} for text in ("/p", None, "/n", "/p", None)),
    *({"barrier_expression": text} for text in ("/k = 4", None, "/k = 3", "/k = 4")),
    *({"filter": text} for text in ("/n > 3", None, "/k <> 2")),
    *({"partition_key": text} for text in ("/key", "@key", None, "/k", "/key")),
    {"target_queue_depth": 4}, {"target_queue_depth": None},
    {"max_backlog": 2}, {"max_backlog": None},
    {"max_per_subscription_backlog": 1}, {"max_per_subscription_backlog": 7},
    {"max_deliveries": 2}, {"max_deliveries": None}, {"max_cancels": 1},
    {"lease_period": "1900ms"}, {"lease_period": None}, {"leasing": "strict"},
    {"expiration": "4s"}, {"expiration": None}, {"expiration_model": "latest"},
    {"max_spool_messages": 9}, {"max_spool_messages": None},
    {"fairness_model": "round-robin"}, {"fairness_model": "fast"},
    {"dead_message_queue": "dead"}, {"redelivery_delay": "700ms"},
)  # fmt: skip
NAMES = (
    *["publish"] * 7,
    *["send_to", "subscribe", "subscribe", "unsubscribe", "ack", "ack_held", "ack_held", "up_to"],
    *["ack_early", "ack_where", "cancel", "cancel", "reject", "renew", "hand_back", "backlog"],
    *["redefine"] * 3,
    *["topic", "untopic", "redrive", "anew"],
)
ALONE = ("advance", "restart")
PUBLISHES = ("publish", "send_to", "options", "no_json")
ARGUMENTS = {
    "publish": 4, "options": 4, "subscribe": 4, "ack": 3, "cancel": 3, "renew": 3, "anew": 0,
    "unsubscribe": 1, "redefine": 1, "redrive": 1,
}  # fmt: skip


class Walk:
    """The engine and the model side by side; options go to `step`. heard: each consumer's last
    heartbeat; lost: those that have stopped; answers: of requests, as expected."""

    NAMES: tuple[str, ...] = NAMES
    REDEFINITIONS = REDEFINITIONS
    TO = ("orders",) * 7 + ("copies",)  # the queues of subscriptions
    HAS_SESSIONS = False  # beside heartbeats, much that is due at once continues in parts

    def __init__(
        self, definitions: list[dict[str, Any]], engine: Any = None, **options: Any
    ) -> None:
        self.steps = engine or Steps(DictStore(), **options)
        self.model = Model()
        self.flows: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.lost: set[str] = set()
        self.named = self.sequence = self.published = 0
        self.orders = dict(definitions[-1])
        self.companions = {d["name"]: d for d in definitions[:-1]}
        self.commands: list[Any] = []
        self.answers: list[Any] = []
        self.publishes: list[tuple[Any, ...]] = []
        self.receipts: dict[int, int | str] = {}
        for definition in definitions:
            self.define(definition)
        self.hand_over()

    def go(self, batches: Batches) -> "Walk":
        for number, batch in enumerate(batches):
            try:
                self.one_batch(batch)
            except Exception as error:
                error.add_note(f"batch {number}: {batch}, {self.orders}")
                raise
        return self

    def one_batch(self, batch: list[Operation]) -> None:
        """Commands first, then publishes, as in a step; then due work."""
        if batch and batch[0][0] in ALONE:
            getattr(self, "do_" + batch[0][0])(*batch[0][1:])
            return
        with self.model.joined():
            for name, *arguments in sorted(batch, key=lambda o: o[0] in PUBLISHES):
                getattr(self, "do_" + name)(*arguments)
        self.hand_over()

    # Operations

    def do_publish(self, count: int, kind: int, spread: int, ttl: int) -> None:
        for i in range(count):
            body = self.body(kind + i * (spread + 1), spread)
            self.publish("orders", body, TTLS[(ttl + i) % len(TTLS)])

    def body(self, n: int, spread: int) -> dict[str, Any]:
        key = {} if n % 11 == 0 else {"key": "abc"[n % 3]}
        return {"n": n % 97, "k": n % 5, "p": (n * 7 + spread) % 4, **key}

    def do_send_to(self, topic: int, kind: int) -> None:
        self.publish(TOPICS[topic % len(TOPICS)], {"n": kind, "k": kind % 3, "p": kind % 4}, None)

    def publish(self, to: str, body: dict[str, Any], ttl: str | None, **given: Any) -> None:
        self.publish_bytes(to, json.dumps(body).encode(), body["n"], ttl, **given)

    def publish_bytes(
        self, to: str, payload: bytes, n: int, ttl: str | None, **given: Any
    ) -> None:  # fmt: skip
        key = f"key{n % 3}"
        self.sequence += 1
        self.published += 1
        options = {"producer": "walk", "seq": self.sequence, "key": key.encode(), **given}
        if ttl is not None:
            options["ttl_ms"] = milliseconds(ttl)
        if due := options.pop("due", None):
            options["deliver_at"] = NOW + due
        self.publishes.append((to, payload, options))
        try:
            number = self.model.publish(to, payload, ttl, key=key, **given)
            self.receipts[self.sequence] = number or 0
        except Refused as nack:
            self.receipts[self.sequence] = nack.reason

    def do_subscribe(self, backlog: int, filter: int, mode: int, queue: int) -> None:
        to = self.TO[queue % 8]
        if len(self.flows) >= FLOWS_MAX or not self.has(to):
            return
        self.named += 1
        name, most = f"c{self.named}", 1 + backlog % 9
        text, no_ack = FILTERS[filter % len(FILTERS)], mode % 5 == 4
        self.flows[name] = self.model.subscribe(to, name, most, text, no_ack).number
        acks, session = "none" if no_ack else "explicit", name if self.HAS_SESSIONS else ""
        keys = {"filter": text, "acks": acks, "session": session}
        self.commands.append(subscribe(name, most, to, **keys))

    def do_unsubscribe(self, which: int) -> None:
        if flow := self.pick(which):
            self.model.unsubscribe(flow)
            del self.flows[flow.name]
            self.say(c.Unsubscribe, flow)

    def do_ack(self, which: int, first: int, span: int) -> None:
        flow = self.pick(which)
        if flow is not None and self.model.ids:
            low = max(1, self.model.ids - first * 3)
            high = min(self.model.ids, low + span)
            self.model.acknowledge(flow, list(range(low, high + 1)))
            self.say(c.Ack, flow, ids=f"{low}-{high}")

    def do_ack_held(self, which: int, count: int) -> None:
        flow = self.pick(which)
        held = [e.id for e in self.held(flow)][: 1 + count] if flow else []
        if flow is not None and held:
            self.model.acknowledge(flow, held)
            self.say(c.Ack, flow, ids=",".join(map(str, held)))

    def do_up_to(self, which: int, message: int) -> None:
        for flow, number in self.pick_held(which, message):
            self.model.acknowledge_up_to(flow, number)
            self.say(c.Ack, flow, up_to=str(number))

    def do_ack_early(self, which: int, ahead: int) -> None:
        if flow := self.pick(which):
            number = self.model.ids + 1 + ahead % 4
            self.model.acknowledge(flow, [number])
            self.say(c.Ack, flow, ids=str(number))

    def do_ack_where(self, which: int, kind: int) -> None:
        """Only where the consumer holds all matches: the rule is silent on the others."""
        if flow := self.pick(which):
            where = f"/k = {kind % 5}"
            matching = [e for e in self.model.queues[flow.queue].active() if e.matches(where)]
            if all(e.holder is flow for e in matching):
                self.model.acknowledge_where(flow, where)
                self.say(c.Ack, flow, where=where)

    def do_cancel(self, which: int, message: int, delay: int) -> None:
        for flow, number in self.pick_held(which, message):
            pause = DELAYS[delay % len(DELAYS)]
            self.model.cancel(flow, number, pause)
            ms = None if pause is None else milliseconds(pause)
            self.say(c.Cancel, flow, ids=str(number), delay_ms=ms)

    def do_reject(self, which: int, message: int) -> None:
        for flow, number in self.pick_held(which, message):
            self.model.reject(flow, number)
            self.say(c.Reject, flow, ids=str(number))

    def do_renew(self, which: int, message: int, period: int) -> None:
        for flow, number in self.pick_held(which, message):
            given = PERIODS[period % len(PERIODS)]
            longer = given or self.model.queues[flow.queue].get("lease_period")
            if longer is not None:
                self.model.renew(flow, number, longer)
                ms = None if given is None else milliseconds(given)
                self.say(c.Renew, flow, ids=str(number), period_ms=ms)

    def do_hand_back(self, which: int, message: int) -> None:
        for flow, number in self.pick_held(which, message):
            self.model.hand_back(flow, number)
            self.say(c.Returned, flow, ids=str(number))

    def do_backlog(self, which: int, backlog: int) -> None:
        if flow := self.pick(which):
            self.model.set_backlog(flow, 1 + backlog % 9)
            self.say(c.SetBacklog, flow, max_backlog=1 + backlog % 9)

    def do_redefine(self, which: int) -> None:
        change = dict(self.REDEFINITIONS[which % len(self.REDEFINITIONS)])
        given = next((k for k in EXCLUSIVE if change.get(k) is not None), None)
        if (given == "target_queue_depth" and self.has_order()) or self.keeps_many(
            "orders", change
        ):
            return
        if given is not None:
            change |= {key: None for key in EXCLUSIVE if key != given}
        if "redelivery_delay" in change:
            factor = 2 - which % 2 if change["redelivery_delay"] else None
            change["redelivery_delay_multiplier"] = factor
        new = {k: v for k, v in (self.orders | change).items() if v is not None}
        fairness = new.get("fairness_model", "proportional")
        if new.get("semantics") == "at-most-once" and fairness == "proportional":
            new["fairness_model"] = "round-robin"
        self.orders = new
        self.define(dict(new))

    def keeps_many(self, name: str, keys: dict[str, Any]) -> bool:
        """S10: quota 0 is refused then."""
        return keys.get("max_spool_usage") == 0 and len(self.model.queues[name].entries) > 1

    def has_order(self) -> bool:
        """Silent: the active messages where priorities or barriers entered before (R5)."""
        return any(e.rank or e.is_barrier for e in self.model.queues["orders"].entries)

    def do_anew(self) -> None:
        """Delete and define in one batch: the old messages and consumers are gone (S7)."""
        if self.has("copies"):
            self.delete("copies")
            self.define(self.companions["copies"])

    def do_topic(self, queue: int, pattern: int) -> None:
        name, text = ("orders", "copies")[queue % 2], PATTERNS[pattern % len(PATTERNS)]
        self.model.subscribe_topic(name, text)
        self.commands.append(c.SubscribeTopic(queue=name, topic=text))

    def do_untopic(self, queue: int, pattern: int) -> None:
        name = ("orders", "copies")[queue % 2]
        there = sorted(self.model.queues[name].topics)
        if there:
            text = there[pattern % len(there)]
            self.model.unsubscribe_topic(name, text)
            self.commands.append(c.UnsubscribeTopic(queue=name, topic=text))

    def do_redrive(self, name: int) -> None:
        queue = ("dead", "dead copies")[name % 2]
        if self.has(queue):
            self.model.redrive(queue)
            self.commands.append(c.Redrive(queue=queue))

    # Alone in their batch

    def do_advance(self, pause: int) -> None:
        """From deadline to deadline, so that the order of events is unambiguous."""
        target = self.model.now + PAUSES_MS[pause % len(PAUSES_MS)]
        while (deadline := self.model.next_deadline()) is not None and deadline <= target:
            self.model.now = max(self.model.now, deadline)
            self.model.tick()
            self.hand_over()
        self.model.now = target
        self.hand_over()

    def do_restart(self) -> None:
        self.steps.restart()

    # Commands and choices

    def say(self, kind: type, flow: Subscription, **fields: Any) -> None:
        self.commands.append(kind(queue=flow.queue, subscription=flow.name, **fields))

    def define(self, definition: dict[str, Any]) -> None:
        self.model.define(definition)
        self.commands.append(c.Define(definition=definition, reply=REPLY))

    def delete(self, name: str) -> None:
        self.model.delete(name)
        self.commands.append(c.Delete(queue=name))
        self.forget_flows()

    def has(self, *names: str) -> bool:
        return all(name in self.model.queues for name in names)

    def forget_flows(self) -> None:
        """Forget flows that are no subscription any more."""
        living = {s.number for s in self.model.subscriptions}
        self.flows = {name: number for name, number in self.flows.items() if number in living}

    def pick(self, which: int) -> Subscription | None:
        living = [name for name in self.flows if name not in self.lost]
        if not living:
            return None
        number = self.flows[living[which % len(living)]]
        return next(s for s in self.model.subscriptions if s.number == number)

    def held(self, flow: Subscription) -> list[Any]:
        return [e for e in self.model.queues[flow.queue].entries if e.holder is flow]

    def pick_held(self, which: int, message: int) -> list[tuple[Subscription, int]]:
        flow = self.pick(which)
        held = self.held(flow) if flow else []
        return [(flow, held[message % len(held)].id)] if flow is not None and held else []

    # Comparing

    def beat(self) -> None:
        self.forget_flows()
        for name in [n for n in self.flows if self.HAS_SESSIONS and n not in self.lost]:
            if name in self.heard:
                self.commands.append(c.Heartbeat(session=name))
            self.heard[name] = self.model.now

    def hand_over(self) -> None:
        """Pass one batch to the engine, then compare all that can be observed."""
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

    def compare_receipts(self, out: list[Any]) -> None:
        found: dict[int, int | str] = {}
        for receipt in (o for o in out if isinstance(o, Receipts)):
            for first, count, number in receipt.runs:
                found |= {first + i: number + i if number else 0 for i in range(count)}
            found |= {nack[0]: nack[1] for nack in receipt.nacks}
        assert found == self.receipts
        self.receipts = {}

    def compare_deliveries(self, out: list[Any]) -> None:
        for name, number in self.flows.items():
            flow = next(s for s in self.model.subscriptions if s.number == number)
            found = [
                (i, 1 if d.barrier else n, d.barrier)
                for d in out if isinstance(d, Deliveries) and d.subscription == name
                for i, n in zip(d.ids, d.counts, strict=True)
            ]  # fmt: skip
            expected = [(d.id, d.count, d.is_barrier) for d in flow.inbox]
            flow.inbox.clear()
            assert found == expected, f"{name} received {found}, the model says {expected}"

    def browsed(self, name: str) -> list[dict[str, Any]]:
        """All messages of a queue, in as many parts as the engine answers with."""
        found: list[dict[str, Any]] = []
        command = c.Browse(queue=name, limit=10_000, reply=REPLY)
        checked, self.steps.checked = getattr(self.steps, "checked", False), False
        while command is not None:  # nothing changes meanwhile
            (answer,) = replies(self.steps.run([command]))
            found += answer.result
            more = answer.more
            command = more and c.Browse(queue=name, limit=10_000, start=more, reply=REPLY)
        self.steps.checked = checked
        return found

    def look(self) -> None:
        """Compare all that can be inspected; `run` has checked the invariants."""
        names = list(self.model.queues)
        asked = [c.Describe(queue=name, reply=REPLY) for name in names]
        answers = [r.result for r in replies(self.steps.run(asked))]
        for name, shown in zip(names, answers, strict=True):
            queue, expected = self.model.queues[name], self.model.describe(name)
            held = {s["name"]: s["held"] for s in shown["consumers"]}
            assert held == {s.name: queue.held(s) for s in self.model.bound_to(queue)}, name
            assert_same_numbers({key: shown[key] for key in expected}, expected, queue)
            rows = self.browsed(name)
            ids, wanted = [int(row["id"]) for row in rows], self.model.browse(name)
            if self.order_is_silent(queue.entries):
                ids, wanted = sorted(ids), sorted(wanted)
            assert ids == wanted, f"browse {name}: {ids}, the model says {wanted}"
            for row in rows:
                self.compare_row(queue, row)

    def compare_row(self, queue: Queue, row: dict[str, Any]) -> None:
        """The row of `Browse` about a message."""

    def order_is_silent(self, entries: list[Any]) -> bool:
        """Silent: the order of browsing."""
        return any(e.is_barrier for e in entries) and any(e.rank for e in entries)


def assert_same_numbers(found: dict[str, int], expected: dict[str, int], queue: Any) -> None:
    """All counters are equal, except two that the rules leave open: see the comments."""
    found, expected = dict(found), dict(expected)
    # Whether a barrier counts as delivered, and once or for each receiver; and whether a
    # redelivery counts as `delivered` too.
    firsts = expected["delivered"] - expected["redelivered"]
    extra = {0, queue.counters["barriers"], queue.counters["barrier_deliveries"]}
    allowed = {base + more for base in (firsts, expected["delivered"]) for more in extra}
    delivered = found.pop("delivered")
    assert delivered in allowed, f"{queue.name}: delivered {delivered}, not of {allowed}"
    del expected["delivered"]
    # Whether a queue that names no dead message queue counts its expired as discarded.
    if queue.get("dead_message_queue") is None and found["discarded"] == 0:
        found["discarded"] = expected["discarded"]
    differ = {key: (n, expected[key]) for key, n in found.items() if n != expected[key]}
    assert not differ, f"{queue.name}: (found, expected) {differ}"


# ---------------------------------------------------------------- making and shortening


def random_queues(r: random.Random) -> list[dict[str, Any]]:
    keys: dict[str, tuple[Any, ...]] = {
        "max_backlog": (None, None, 3, 8),
        "max_per_subscription_backlog": (2, 5, 20),
        "lease_period": (None, "900ms", "2300ms"),
        "max_deliveries": (None, None, 2, 4),
        "max_cancels": (None, None, 2),
        "leasing": (None, "strict"),
        "expiration": (None, None, "2500ms", "8s"),
        "expiration_model": (None, "queue", "latest", "earliest", "default"),
        "deferred_ack_expiration": (None, "4s"),
        "dead_message_queue": (None, "dead", "nowhere"),
        "fairness_model": (None, None, "fast", "round-robin"),
        "priority": (None, "/p"),
        "barrier_expression": (None, None, "/k = 4"),
        "partition_key": (None, "/key", "@key"),
        "max_spool_usage": (None, None, None, None, None, 0),
        "max_spool_messages": (None, None, None, 20),
        "target_queue_depth": (None, None, 3),
        "semantics": (None, None, None, None, "at-most-once"),
    }
    orders: dict[str, Any] = {"name": "orders", "message_type": "json"}
    for key, values in keys.items():
        value = r.choice(values)
        if value is not None and not (key in EXCLUSIVE and set(EXCLUSIVE) & set(orders)):
            orders[key] = value
    if orders.get("semantics") == "at-most-once":
        orders.setdefault("fairness_model", "round-robin")
    # Each has its own dead message queue: no rule says what becomes of two matches of one message
    # there.
    dead = {"name": "dead", "message_type": "json", "expiration": "30s", "max_spool_messages": 20}
    copies = {
        "name": "copies", "message_type": "json", "underlying_topic": "ord.*", "filter": "/k = 1",
        "default_publish_target": "orders", "dead_message_queue": "dead copies",
        "max_per_subscription_backlog": 3, "expiration": "6s",
    }  # fmt: skip
    return [{"name": "dead copies", "message_type": "json"}, dead, copies, orders]


def random_batches(
    r: random.Random, batches: int, longest: int, most: int, walk: type[Walk] = Walk
) -> Batches:
    """Batches of up to `longest` operations; `most`: the messages of one publish."""
    start: list[Operation] = [("subscribe", 5, 0, 0, 0), ("subscribe", 2, 3, 0, 0)]
    made: Batches = [[*start, ("publish", 6, 0, 0, 0)]]
    for _ in range(batches):
        draw = r.random()
        if draw < 0.26:
            made.append([("advance", r.randrange(16)) if draw < 0.2 else ("restart",)])
        else:
            made.append([random_operation(r, most, walk) for _ in range(r.randint(1, longest))])
    return made


def random_operation(r: random.Random, most: int, walk: type[Walk]) -> Operation:
    name = r.choice(walk.NAMES)
    small = [r.randrange(16) for _ in range(4)]
    if name == "redefine":
        return (name, r.randrange(len(walk.REDEFINITIONS)))
    if name == "publish":
        small[0] = r.randint(1, most)
    return (name, *small[: ARGUMENTS.get(name, 2)])


def shortest(parts: list[Part], fails: Callable[[list[Part]], bool]) -> list[Part]:
    """The smallest part of a walk that still fails, as far as `SHORTENING_S` reaches."""
    until = time.monotonic() + SHORTENING_S
    size = max(len(parts) // 2, 1)
    while size:
        at = 0
        while at < len(parts) and time.monotonic() < until:
            rest = parts[:at] + parts[at + size :]
            if rest and fails(rest):
                parts = rest
            else:
                at += size
        size //= 2
    return parts
