"""Walks: a queue's definition and a list of operations, done on the engine and on the model.

An operation is a tuple of a name and small numbers. The numbers are taken modulo what there is to
choose from, so every part of a walk is a walk too: a failing one can be made shorter.
"""

import contextlib
import json
import pickle
from dataclasses import dataclass, field
from typing import Any

import lakequeue
from hypothesis import strategies as st
from lakequeue.protocol.errors import LeaseLost, Rejected
from reference.model import Delivery, Model, Refused, Subscription

CONSUMERS_MAX = 5
FILTERS = (None, None, None, "/kind = 0", "/kind <> 0", "/n < 50 AND /kind IN (0, 1)")
MODES = ("individual", "individual", "individual", "no_ack")
TTLS = (None, None, None, None, None, None, "700ms", "3100ms", "9700ms")
DELAYS = (None, None, "300ms", "1300ms", "4700ms")
PERIODS = ("500ms", "2900ms", "11s")
PAUSES_MS = (1, 100, 499, 500, 1000, 1700, 5000, 20_000)
REDEFINITIONS = (
    {"max_backlog": 2},
    {"max_backlog": 9},
    {"max_per_subscription_backlog": 1},
    {"max_per_subscription_backlog": 6},
    {"max_deliveries": 2},
    {"max_deliveries": 0},
    {"max_cancels": 1},
    {"lease_period": "1900ms"},
    {"leasing": "strict"},
    {"filter": "/n > 3"},
    {"filter": None},
    {"priority": "/p"},
    {"priority": None},
    {"barrier_expression": "/kind >= 3"},
    {"barrier_expression": None},
    {"max_spool_messages": 3},
    {"max_delivered_unacked_per_flow": 1},
    {"target_queue_depth": 2},
    {"target_queue_depth": 7},
)
EXCLUSIVE = ("priority", "barrier_expression", "target_queue_depth")
TOPICS = ("a", "a/b", "a/b/c", "b/b", "orders")
PATTERNS = ("a", "*", "a/*", "*/b", "a/>", ">", "a/b*", "a/(b|c).*", "ord.*", "b/b")
SHAPES: list[dict[str, Any]] = [
    {},
    {"priority": "/p"},
    {"priority": "/p"},
    {"barrier_expression": "/kind >= 3"},
    {"barrier_expression": "/kind >= 3"},
    {"filter": "/n > 2"},
    {"target_queue_depth": 3},
    {"target_queue_depth": 3},
]
Operation = tuple[Any, ...]
Small = st.integers(0, 15)


def optional(key: str, values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from([{}, *({key: value} for value in values)])


def with_companions(orders: dict[str, Any]) -> list[dict[str, Any]]:
    """The queue of a walk with a dead message queue and one that captures the same topic."""
    # Each its own: what becomes of two matches of one message in one DMQ is not ruled yet.
    return [
        {"name": "dead copies", "message_type": "json"},
        {"name": "dead", "message_type": "json", "expiration": "30s", "max_spool_messages": 20},
        {
            "name": "copies",
            "message_type": "json",
            "underlying_topic": "ord.*",
            "default_publish_target": "orders",
            "filter": "/kind = 1",
            "max_per_subscription_backlog": 3,
            "dead_message_queue": "dead copies",
            "expiration": "6s",
        },
        orders,
    ]


def definitions() -> st.SearchStrategy[list[dict[str, Any]]]:
    """The queue of the walk, another on the same topics, and a dead message queue."""
    limits = st.tuples(
        optional("max_backlog", [1, 3, 8]),
        optional("max_per_subscription_backlog", [2, 5, 20]),
        optional("lease_period", ["900ms", "2300ms"]),
        optional("max_deliveries", [1, 2, 4]),
        optional("max_cancels", [1, 3]),
        optional("leasing", ["strict"]),
        st.sampled_from([{}, {}, {}, {"expiration": "2500ms"}, {"expiration": "8s"}]),
        optional("expiration_model", ["queue", "latest", "earliest", "default"]),
        optional("redelivery_delay", ["600ms"]),
        optional("deferred_ack_expiration", ["4s"]),
        optional("dead_message_queue", ["dead", "nowhere"]),
        optional("fairness_model", ["fast", "round-robin"]),
        st.sampled_from([{}, {}, {}, {"max_spool_usage": 0}, {"max_spool_usage": 200}]),
        st.sampled_from([{}, {}, {}, {"max_spool_messages": 4}]),
        st.sampled_from([{}, {}, {}, {"max_delivered_unacked_per_flow": 2}]),
        st.sampled_from(SHAPES),
        st.sampled_from([{}, {}, {}, {"semantics": "at-most-once"}]),
    )

    def put_together(parts: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
        orders = {"name": "orders", "message_type": "json"}
        for part in parts:
            orders |= part
        if "redelivery_delay" in orders:
            orders["redelivery_delay_multiplier"] = 1
        return with_companions(orders)

    return limits.map(put_together)


def operations() -> st.SearchStrategy[Operation]:
    send = st.tuples(st.just("send"), st.integers(0, 99), Small, Small, Small)
    sends = st.tuples(st.just("burst"), st.integers(2, 8), Small)
    return st.one_of(
        send,
        send,
        sends,
        st.tuples(st.just("subscribe"), Small, Small, Small, Small),
        st.tuples(st.just("close"), Small),
        st.tuples(st.just("ack"), Small, Small),
        st.tuples(st.just("ack"), Small, Small),
        st.tuples(st.just("done"), Small, Small),
        st.tuples(st.just("done"), Small, Small),
        st.tuples(st.just("settle"), Small),
        st.tuples(st.just("settle"), Small),
        st.tuples(st.just("ack_of_another"), Small, Small),
        st.tuples(st.just("ack_range"), Small, Small, Small),
        st.tuples(st.just("ack_early"), Small, Small),
        st.tuples(st.just("ack_where"), Small, Small),
        st.tuples(st.just("cancel"), Small, Small, Small),
        st.tuples(st.just("cancel"), Small, Small, Small),
        st.tuples(st.just("renew"), Small, Small, Small),
        st.tuples(st.just("backlog"), Small, st.integers(1, 9)),
        st.tuples(st.just("advance"), Small),
        st.tuples(st.just("advance"), Small),
        st.tuples(st.just("redefine"), Small),
        st.tuples(st.just("restart")),
        st.tuples(st.just("topic"), Small, Small),
        st.tuples(st.just("untopic"), Small, Small),
        st.tuples(st.just("send_to"), Small, Small),
        st.tuples(st.just("send_to"), Small, Small),
        st.tuples(st.just("redrive"), Small, Small),
    )


def steps(longest: int) -> st.SearchStrategy[list[Operation]]:
    """Lists of every length alike; Hypothesis' own are five long in the mean."""
    return st.integers(0, longest).flatmap(
        lambda size: st.lists(operations(), min_size=size, max_size=size)
    )


def open_engine() -> Any:
    """A fresh engine."""
    connection = lakequeue.connect("memory://", client_name="walk")
    connection.engine.checking = True
    return connection


@dataclass
class Pair:
    """A consumer of the engine and its subscription in the model."""

    name: str
    real: Any
    number: int
    queue: str
    messages: list[Any] = field(default_factory=list)


@dataclass
class Walk:
    """The engine and the model side by side."""

    definitions: list[dict[str, Any]]
    compare: bool = True

    def __post_init__(self) -> None:
        self.connection = open_engine()
        self.admin = self.connection.admin()
        self.producer = self.connection.producer(producer_id="walk")
        self.model = Model()
        self.pairs: list[Pair] = []
        self.named = 0
        self.observed: list[Any] = []
        self.orders = dict(self.definitions[-1])
        for definition in self.definitions:
            self.admin.define(definition, replace=True)
            self.model.define(definition)

    def go(self, operations: list[Operation]) -> list[Any]:
        """Does all of them; what was observed after each. Looking is a step of the engine too."""
        for number, (name, *arguments) in enumerate(operations):
            try:
                getattr(self, "do_" + name)(*arguments)
                if name != "restart" or self.compare:
                    self.look()
            except Exception as error:
                error.add_note(f"operation {number}: {name} {arguments} of {self.orders}")
                raise
        return self.observed

    # Operations

    def do_send(self, n: int, kind: int, ttl: int, priority: int) -> None:
        body = {"n": n, "kind": kind % 5, "p": priority % 4}
        self.publish(json.dumps(body).encode(), TTLS[ttl % len(TTLS)])

    def do_burst(self, count: int, kind: int) -> None:
        for n in range(count):
            body = {"n": n, "kind": (kind + n) % 3, "p": n % 2}
            self.publish(json.dumps(body).encode(), None)
            self.look()

    def do_send_to(self, topic: int, kind: int) -> None:
        body = {"n": topic + kind, "kind": kind % 3, "p": kind % 4}
        self.publish(json.dumps(body).encode(), None, TOPICS[topic % len(TOPICS)])

    def publish(self, payload: bytes, ttl: str | None, to: str = "orders") -> None:
        expected, refusal = None, None
        try:
            expected = self.model.publish(to, payload, ttl)
        except Refused as nack:
            refusal = nack.reason
        given = {} if ttl is None else {"ttl": ttl}
        receipt, found = None, None
        try:
            receipt = self.producer.send(to, payload, **given)
        except Rejected as nack:
            found = str(nack.reason)
        assert found == refusal, f"outcome {found}, the model says {refusal}"
        assert receipt is None or receipt.message_id == str(expected)

    def do_topic(self, queue: int, pattern: int) -> None:
        name, text = ("orders", "copies")[queue % 2], PATTERNS[pattern % len(PATTERNS)]
        self.admin.subscribe_topic(name, text)
        self.model.subscribe_topic(name, text)

    def do_untopic(self, queue: int, which: int) -> None:
        name = ("orders", "copies")[queue % 2]
        if topics := sorted(self.model.queues[name].topics):
            text = topics[which % len(topics)]
            self.admin.unsubscribe_topic(name, text)
            self.model.unsubscribe_topic(name, text)

    def do_redrive(self, queue: int, which: int) -> None:
        """All, or one of those that are there."""
        name = "dead copies" if queue % 4 == 0 else "dead"
        there = self.model.browse(name)
        ids = [there[which % len(there)]] if there and which % 2 else None
        done = self.admin.redrive(name, ids=None if ids is None else [str(i) for i in ids])
        before = self.model.queues[name].counters["redriven"]
        why = self.model.redrive(name, ids)
        assert (done.moved, done.why) == (
            self.model.queues[name].counters["redriven"] - before, why
        ), f"redrive {name}"  # fmt: skip

    def do_subscribe(self, queue: int, backlog: int, chosen: int, mode: int) -> None:
        if len(self.pairs) >= CONSUMERS_MAX:
            return
        self.named += 1
        name = f"c{self.named}"
        target = "copies" if queue == 0 else "dead" if queue == 1 else "orders"
        text, ack_mode = FILTERS[chosen % len(FILTERS)], MODES[mode % len(MODES)]
        size = 1 + backlog % 7
        real = self.connection.consumer(
            target, ack_mode=ack_mode, max_backlog=size, filter=text, name=name
        )
        flow = self.model.subscribe(target, name, size, text, ack_mode == "no_ack")
        self.pairs.append(Pair(name, real, flow.number, target))

    def do_close(self, which: int) -> None:
        if pair := self.pick(which):
            self.pairs.remove(pair)
            pair.real.close()
            self.model.unsubscribe(self.flow(pair))

    def do_ack(self, which: int, message: int) -> None:
        """By id, of anything that it ever received, held or not."""
        if (pair := self.pick(which)) and pair.messages:
            self.ack_by_id(pair, [int(pair.messages[message % len(pair.messages)].id)])

    def do_ack_of_another(self, which: int, message: int) -> None:
        if (pair := self.pick(which)) and (there := self.model.browse(pair.queue)):
            self.ack_by_id(pair, [there[message % len(there)]])

    def do_ack_range(self, which: int, first: int, span: int) -> None:
        """Of ids that were given already: some gone, some never in this queue."""
        pair = self.pick(which)
        if pair is None or self.model.ids == 0:
            return
        low = max(1, self.model.ids - first)
        high = min(self.model.ids, low + span % 5)
        with contextlib.suppress(LeaseLost):
            pair.real.ack(ids=f"{low}-{high}")
        self.model.acknowledge(self.flow(pair), list(range(low, high + 1)))

    def do_ack_early(self, which: int, ahead: int) -> None:
        if pair := self.pick(which):
            self.ack_by_id(pair, [self.model.ids + 1 + ahead % 3])

    def do_ack_where(self, which: int, kind: int) -> None:
        """Only where the consumer holds all that match: the rule is silent on the others."""
        pair = self.pick(which)
        if pair is None:
            return
        where, flow = f"/kind = {kind % 5}", self.flow(pair)
        matching = [e for e in self.model.queues[pair.queue].active() if e.matches(where)]
        if all(e.holder is flow for e in matching):
            pair.real.ack(where=where)
            self.model.acknowledge_where(flow, where)

    def ack_by_id(self, pair: Pair, ids: list[int]) -> None:
        with contextlib.suppress(LeaseLost):
            pair.real.ack(ids=[str(i) for i in ids])
        self.model.acknowledge(self.flow(pair), ids)

    def do_done(self, which: int, message: int) -> None:
        """message.ack() of one that it holds."""
        if found := self.pick_held(which, message):
            found[1].ack()
            self.model.acknowledge(self.flow(found[0]), [int(found[1].id)])

    def do_settle(self, which: int) -> None:
        """message.ack() of all that it holds, and of what comes in their place."""
        for _ in range(20):
            if self.pick_held(which, 0) is None:
                break
            self.do_done(which, 0)
            self.look()

    def do_cancel(self, which: int, message: int, delay: int) -> None:
        if found := self.pick_held(which, message):
            pause = DELAYS[delay % len(DELAYS)]
            if pause is None:
                found[1].cancel()
            else:
                found[1].cancel(delay=pause)
            self.model.cancel(self.flow(found[0]), int(found[1].id), pause)

    def do_renew(self, which: int, message: int, period: int) -> None:
        if found := self.pick_held(which, message):
            found[1].renew(PERIODS[period % len(PERIODS)])
            flow, number = self.flow(found[0]), int(found[1].id)
            self.model.renew(flow, number, PERIODS[period % len(PERIODS)])

    def do_backlog(self, which: int, backlog: int) -> None:
        if pair := self.pick(which):
            pair.real.set_max_backlog(backlog)
            self.model.set_backlog(self.flow(pair), backlog)

    def do_advance(self, pause: int) -> None:
        """In parts, from deadline to deadline, so that no delivery is overtaken unseen."""
        left = PAUSES_MS[pause % len(PAUSES_MS)]
        while left > 0:
            deadline = self.model.next_deadline()
            part = left if deadline is None else min(left, max(1, deadline - self.model.now))
            self.connection.advance(f"{part}ms")
            self.model.advance(f"{part}ms")
            left -= part
            if left > 0:
                self.look()

    def do_redefine(self, which: int) -> None:
        change = REDEFINITIONS[which % len(REDEFINITIONS)]
        given = [key for key in EXCLUSIVE if change.get(key) is not None]
        held = self.model.queues["orders"].entries
        if given == ["target_queue_depth"] and any(e.rank or e.is_barrier for e in held):
            return  # Silent: what is active where priorities or barriers entered before (R5)
        if given:
            change = dict.fromkeys(EXCLUSIVE) | change
        self.orders = {k: v for k, v in (self.orders | change).items() if v is not None}
        self.admin.define(dict(self.orders), replace=True)
        self.model.define(dict(self.orders))

    def do_restart(self) -> None:
        before = self.connection.engine.dump()
        self.connection.engine.restart()
        assert self.connection.engine.dump() == before, "a restart changed the state"
        self.model = pickle.loads(pickle.dumps(self.model))

    # Choosing

    def pick(self, which: int) -> Pair | None:
        return self.pairs[which % len(self.pairs)] if self.pairs else None

    def pick_held(self, which: int, message: int) -> tuple[Pair, Any] | None:
        """The newest delivery of a message that this consumer holds."""
        if (pair := self.pick(which)) is None:
            return None
        queue, flow = self.model.queues[pair.queue], self.flow(pair)
        newest = {int(m.id): m for m in pair.messages}
        held = [m for i, m in newest.items() if (e := queue.find(i)) and e.holder is flow]
        return (pair, held[message % len(held)]) if held else None

    def flow(self, pair: Pair) -> Subscription:
        return next(s for s in self.model.subscriptions if s.number == pair.number)

    # Looking

    def look(self) -> None:
        """Everything that can be seen from outside, and the engine's own check."""
        self.connection.engine.check()
        self.model.check()
        seen: dict[str, Any] = {}
        for pair in self.pairs:
            seen[pair.name] = self.received(pair)
        for name in self.model.queues:
            seen[name] = self.described(name)
            seen["browse " + name] = [int(m.id) for m in self.admin.browse(name, limit=10_000)]
            if self.compare:
                self.compare_browsed(name, seen["browse " + name])
        self.observed.append(seen)

    def compare_browsed(self, name: str, found: list[int]) -> None:
        held, expected = self.model.queues[name].entries, self.model.browse(name)
        if any(e.is_barrier for e in held) and any(e.rank for e in held):
            found, expected = sorted(found), sorted(expected)  # Silent: in which order one looks
        assert found == expected, f"browse {name}"

    def received(self, pair: Pair) -> list[tuple[Any, ...]]:
        found = []
        while (message := pair.real.receive(timeout=0)) is not None:
            pair.messages.append(message)
            count = 1 if message.is_barrier else message.delivery_count
            again = False if message.is_barrier else bool(message.redelivered)
            found.append((int(message.id), count, again, bool(message.is_barrier)))
        flow = self.flow(pair)
        deliveries, flow.inbox = flow.inbox, []
        expected = [as_seen(d) for d in deliveries]
        if self.compare:
            assert found == expected, f"{pair.name} received {found}, the model says {expected}"
        return found

    def described(self, name: str) -> dict[str, Any]:
        expected, queue = self.model.describe(name), self.model.queues[name]
        shown = self.admin.describe(name)
        found = {key: shown[key] for key in expected}
        held = {field_of(c, "name"): field_of(c, "held") for c in shown["consumers"]}
        if self.compare:
            assert held == {s.name: queue.held(s) for s in self.model.bound_to(queue)}, name
            assert_same_numbers(found, expected, queue)
        return found | held


def assert_same_numbers(found: dict[str, int], expected: dict[str, int], queue: Any) -> None:
    """All equal, but for two that the rules leave open: see the comments."""
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
    assert found == expected, queue.name


def as_seen(delivery: Delivery) -> tuple[Any, ...]:
    again = not delivery.is_barrier and delivery.count > 1
    return (delivery.id, delivery.count, again, delivery.is_barrier)


def field_of(thing: Any, name: str) -> Any:
    return thing[name] if isinstance(thing, dict) else getattr(thing, name)
