"""A part of the Python API on top of the naive model.

With it the scenarios and most rule tests can be run without the engine, which tells a mistake in a
test from a mistake in the engine: `LAKEQUEUE_JUDGE=reference pytest tests/rules`. Tests that need
more than the model has (alerts, redrive, the journal) fail there.
"""

import copy
import datetime as dt
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakequeue.protocol.errors import ConfigError, LeaseLost, Problem, Rejected
from reference.expressions import BadExpressionError, evaluate
from reference.model import (
    REGEX_SIGNS,
    Delivery,
    Entry,
    Model,
    Refused,
    Subscription,
    milliseconds,
    size_bytes,
)

TARGET_DEPTH_MIN = 1000
STARTED = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
DURATIONS = (
    "lease_period",
    "expiration",
    "deferred_ack_expiration",
    "redelivery_delay",
    "redelivery_delay_max",
)
COUNTS = (
    "max_backlog",
    "max_per_subscription_backlog",
    "max_deliveries",
    "max_cancels",
    "max_spool_messages",
    "max_delivered_unacked_per_flow",
)
CHOICES = {
    "message_type": ("json", "binary", "text"),
    "semantics": ("at-least-once", "at-most-once"),
    "fairness_model": ("fast", "round-robin", "proportional"),
    "leasing": ("sublet", "strict"),
    "expiration_model": ("queue", "latest", "earliest", "default"),
    "type": ("Queue", "QueueDefinition", "LocalQueue", "GroupLocalQueue"),
    "reject_msg_to_sender_on_discard": (
        "when-queue-enabled",
        "including-when-shutdown",
        "never",
    ),
}
EXPRESSIONS = ("filter", "priority", "barrier_expression", "partition_key")
OTHERS = (
    "name",
    "topic",
    "underlying_topic",
    "default_publish_target",
    "dead_message_queue",
    "max_spool_usage",
    "max_message_size",
    "redelivery_delay_multiplier",
    "target_queue_depth",
    "initial_owner",
    "group_local_queue_domain",
    "file_backed_metadata",
)


def connect(url: str = "memory://", config: dict[str, Any] | None = None, **_: Any) -> "Connection":
    """A fresh broker; names of engines are not shared here."""
    settings = config or {}
    timeout = settings.get("system", {}).get("heartbeat_timeout", "15s")
    connection = Connection(Model(milliseconds(timeout)))
    for definition in settings.get("queues", []):
        connection.admin().define(definition)
    return connection


def refuse_unless_right(definition: dict[str, Any], known: dict[str, Any] | None) -> None:
    """Q1, Q3, Q7, Q9."""
    problems: list[Problem] = []

    def wrong(key: str, allowed: str) -> None:
        problems.append(Problem("queue", key, definition.get(key), allowed))

    for key, value in definition.items():
        if key not in (*DURATIONS, *COUNTS, *CHOICES, *EXPRESSIONS, *OTHERS):
            wrong(key, "not a key of a queue")
        elif key in CHOICES and value not in CHOICES[key]:
            wrong(key, f"one of {CHOICES[key]}")
        elif key in COUNTS and (not isinstance(value, int) or value < 0):
            wrong(key, "a number of messages")
        elif key in EXPRESSIONS and definition.get("message_type", "json") != "json":
            wrong(key, "expressions need json")
        else:
            check_value(key, value, wrong)
    if not (definition.get("name") or definition.get("topic")):
        wrong("name", "required")
    if "message_type" not in definition:
        wrong("message_type", "required")
    if "priority" in definition and "barrier_expression" in definition:
        wrong("priority", "not together with barrier_expression")
    if definition.get("semantics") == "at-most-once" and (
        definition.get("fairness_model") == "proportional"
    ):
        wrong("fairness_model", "fast or round-robin for at-most-once")
    check_target(definition, wrong)
    for key in ("message_type", "type") if known is not None else ():
        if definition.get(key) != (known or {}).get(key):
            wrong(key, "cannot be changed")
    if problems:
        raise ConfigError(problems)


def check_value(key: str, value: Any, wrong: Callable[[str, str], None]) -> None:
    try:
        if key in DURATIONS:
            milliseconds(value)
        elif key in EXPRESSIONS:
            evaluate(value, lambda _: None)
        elif key in ("max_spool_usage", "max_message_size"):
            size_bytes(value)
    except (BadExpressionError, ValueError, KeyError) as error:
        wrong(key, str(error))


def check_target(definition: dict[str, Any], wrong: Callable[[str, str], None]) -> None:
    import re

    topics = definition.get("underlying_topic") or definition.get("name") or ""
    target = definition.get("default_publish_target")
    depth = definition.get("target_queue_depth")
    if REGEX_SIGNS & set(topics):
        if target is None or not re.fullmatch(topics, target):
            wrong("default_publish_target", "one of the captured topics")
    elif target is not None and target != topics:
        wrong("default_publish_target", "one of the captured topics")
    if depth is not None and (
        depth < TARGET_DEPTH_MIN or {"priority", "barrier_expression"} & set(definition)
    ):
        allowed = f"at least {TARGET_DEPTH_MIN}, without priority or barrier_expression"
        wrong("target_queue_depth", allowed)
    kind = definition.get("type", "Queue")
    if ("initial_owner" in definition) != (kind == "GroupLocalQueue"):
        wrong("initial_owner", "required for GroupLocalQueue, and only there")


class Context:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do."""


class Connection(Context):
    def __init__(self, model: Model) -> None:
        self.engine = Engine(model)
        self.consumers: list[Consumer] = []
        self.producers = 0

    @property
    def model(self) -> Model:
        return self.engine.model

    def producer(self, producer_id: str | None = None, first_sequence: int = 1, **defaults: Any):
        self.producers += 1
        return Producer(self, producer_id or f"p{self.producers}", first_sequence, defaults)

    def consumer(self, queue: str, **options: Any) -> "Consumer":
        consumer = Consumer(self, queue, **options)
        self.consumers.append(consumer)
        self.pump()
        return consumer

    def admin(self) -> "Admin":
        return Admin(self)

    def advance(self, duration: str | float) -> None:
        self.model.advance(duration)
        self.pump()

    def publish_raw(self, topic: str, value: bytes, key: Any = None, headers: Any = None, **_: Any):
        with suppress(Refused):
            self.model.publish(topic, value, headers=headers, key=key)
        self.pump()

    def now(self) -> dt.datetime:
        return STARTED + dt.timedelta(milliseconds=self.model.now)

    def pump(self) -> None:
        self.model.check()
        for consumer in self.consumers:
            consumer.pump()


class Producer(Context):
    def __init__(self, connection: Connection, name: str, first: int, defaults: dict[str, Any]):
        self.connection, self.name, self.sequence = connection, name, first
        self.defaults = {k: v for k, v in defaults.items() if k in ("ttl", "priority")}

    def send(self, destination: str, payload: bytes, **options: Any) -> "Receipt":
        known = ("ttl", "priority", "headers", "key")
        chosen = self.defaults | {k: v for k, v in options.items() if k in known and v is not None}
        sequence = (self.name, self.sequence)
        self.sequence += 1
        try:
            message_id = self.connection.model.publish(
                destination, payload, sequence=sequence, **chosen
            )
        except Refused as nack:
            raise Rejected(nack.reason, nack.queue) from None
        self.connection.pump()
        return Receipt(None if message_id is None else str(message_id))

    def flush(self, timeout: float = 5.0) -> None:
        """Everything is acknowledged already."""

    def unacknowledged(self) -> list[Any]:
        return []


class Receipt:
    def __init__(self, message_id: str | None) -> None:
        self.message_id = message_id


class Message:
    """A delivery, or an entry that was browsed."""

    def __init__(self, entry: Entry, queue: str, consumer: "Consumer | None", d: Delivery | None):
        self.payload, self.headers, self.key = entry.payload, entry.headers, entry.key
        self.id, self.queue, self.priority = str(entry.id), queue, entry.publisher_priority
        self.delivery_count = entry.deliveries if d is None else d.count
        self.redelivered = self.delivery_count > 1
        self.is_barrier = entry.is_barrier
        self.state = entry.state
        self.consumer = consumer
        self.settled = False
        until = entry.lease_until if d is None else d.lease_until
        self.lease_expires_at = (
            None if until is None else STARTED + dt.timedelta(milliseconds=until)
        )

    def ack(self) -> None:
        assert self.consumer is not None
        self.consumer.ack_message(self)

    def cancel(self, delay: str | float | None = None) -> None:
        assert self.consumer is not None
        self.settled = True
        self.consumer.connection.model.cancel(self.consumer.flow, int(self.id), delay)
        self.consumer.connection.pump()

    def reject(self, reason: str = "") -> None:
        assert self.consumer is not None
        self.settled = True
        self.consumer.connection.model.reject(self.consumer.flow, int(self.id), reason)
        self.consumer.connection.pump()

    def renew(self, period: str | float | None = None) -> None:
        assert self.consumer is not None
        model = self.consumer.connection.model
        if period is None:
            period = model.queues[self.queue].get("lease_period", 0)
        if not model.renew(self.consumer.flow, int(self.id), period):
            raise LeaseLost(self.id)
        entry = model.queues[self.queue].find(int(self.id))
        assert entry is not None
        if entry.lease_until is not None:
            self.lease_expires_at = STARTED + dt.timedelta(milliseconds=entry.lease_until)


class Consumer(Context):
    def __init__(
        self,
        connection: Connection,
        queue: str,
        ack_mode: str = "client",
        max_backlog: int | None = None,
        filter: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self.connection, self.queue, self.ack_mode = connection, queue, ack_mode
        if filter is not None:
            try:
                evaluate(filter, lambda _: None)
            except BadExpressionError as error:
                raise ConfigError(str(error)) from None
        self.subscription = name or f"c{len(connection.consumers)}"
        self.number = connection.model.subscribe(
            queue, self.subscription, max_backlog or 1, filter, ack_mode == "no_ack"
        ).number
        self.inbox: list[Message] = []
        self.received: list[Message] = []
        self.callback: Callable[[Message], None] | None = None

    @property
    def flow(self) -> Subscription:
        """By its number, as a restart replaces every object."""
        known = (s for s in self.connection.model.subscriptions if s.number == self.number)
        return next(known, Subscription(self.number, self.subscription, self.queue, 1))

    def pump(self) -> None:
        flow = self.flow
        taken, flow.inbox = list(flow.inbox), []
        self.inbox += [Message(d.entry, self.queue, self, d) for d in taken]
        while self.callback is not None and self.inbox:
            self.call_back(self.callback)

    def call_back(self, callback: Callable[[Message], None]) -> None:
        message = self.inbox.pop(0)
        self.received.append(message)
        if self.ack_mode == "pre_ack":
            self.ack_one(message)
        try:
            callback(message)
        except Exception:
            if self.ack_mode == "auto":
                message.cancel()
        else:
            if self.ack_mode == "auto":
                self.ack_one(message)

    def receive(self, timeout: float = 0) -> Message | None:
        if not self.inbox:
            return None
        message = self.inbox.pop(0)
        self.received.append(message)
        if self.ack_mode in ("auto", "pre_ack"):
            self.ack_one(message)
        return message

    def on_message(self, callback: Callable[[Message], None]) -> None:
        self.callback = callback
        self.pump()

    def ack_one(self, message: Message) -> None:
        if self.ack_mode != "no_ack" and not message.is_barrier:
            self.ack(ids=[message.id])

    def ack_message(self, message: Message) -> None:
        if self.ack_mode != "client":
            held = self.connection.model.queues[self.queue].find(int(message.id))
            if not message.is_barrier and (held is None or held.holder is not self.flow):
                raise LeaseLost(message.id)
            self.ack_one(message)
            return
        until = self.received.index(message) + 1
        model = self.connection.model
        counted = [m for m in self.received[:until] if not m.settled]
        entries = [model.queues[self.queue].find(int(m.id)) for m in counted]
        held_ids = [e.id for e in entries if e is not None and e.holder is self.flow]
        self.ack(ids=[str(i) for i in held_ids])

    def ack(
        self,
        ids: Iterable[str] | str | None = None,
        up_to: str | None = None,
        where: str | None = None,
    ) -> None:
        model = self.connection.model
        if ids is not None:
            model.acknowledge(self.flow, list(numbers(ids)))
        if up_to is not None:
            model.acknowledge_up_to(self.flow, int(up_to))
        if where is not None:
            model.acknowledge_where(self.flow, where)
        self.connection.pump()

    def set_max_backlog(self, backlog: int) -> None:
        self.connection.model.set_backlog(self.flow, backlog)
        self.hand_back(backlog)
        self.connection.pump()

    def hand_back(self, backlog: int) -> None:
        """L5: what nobody has seen, and a smaller backlog has no room for, returns untouched."""
        self.pump()
        model = self.connection.model
        held = [e for e in model.queues[self.queue].entries if e.holder is self.flow]
        unseen = {m.id for m in self.inbox if not m.is_barrier}
        waiting = [e for e in held if str(e.id) in unseen]
        waiting.sort(key=lambda e: [m.id for m in self.inbox].index(str(e.id)))
        for entry in waiting[max(backlog - (len(held) - len(waiting)), 0) :]:
            self.inbox = [m for m in self.inbox if m.id != str(entry.id)]
            entry.deliveries -= 1
            model.give_back(model.queues[self.queue], entry, "returned")
        model.dispatch()

    def kill(self) -> None:
        self.connection.model.kill(self.flow)

    def close(self) -> None:
        if self.flow in self.connection.model.subscriptions:
            self.connection.model.set_backlog(self.flow, 0)
            self.hand_back(0)
        self.connection.model.unsubscribe(self.flow)
        self.connection.pump()


def numbers(ids: Iterable[str] | str) -> Iterable[int]:
    """`"1-3,7"` or a list of ids."""
    for part in ids.split(",") if isinstance(ids, str) else ids:
        first, _, last = str(part).partition("-")
        yield from range(int(first), int(last or first) + 1)


@dataclass
class Redriven:
    moved: int
    why: dict[str, int]


class Engine:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.checking = True

    def check(self) -> None:
        self.model.check()

    def dump(self) -> bytes:
        return pickle.dumps(self.model)

    def restart(self) -> None:
        self.model = copy.deepcopy(self.model)

    def journal(self) -> list[dict[str, Any]]:
        return list(self.model.journal)


class Admin(Context):
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def model(self) -> Model:
        return self.connection.model

    def define(self, definition: dict[str, Any], replace: bool = False) -> None:
        name = definition.get("name") or definition.get("topic")
        known = self.model.queues.get(name or "")
        if known is not None and not replace:
            definition = {**known.definition, **definition}
        definition = {key: value for key, value in definition.items() if value is not None}
        refuse_unless_right(definition, None if known is None else known.definition)
        self.model.define(definition)
        self.connection.pump()

    def subscribe_topic(self, queue: str, topic: str) -> None:
        self.model.subscribe_topic(queue, topic)

    def unsubscribe_topic(self, queue: str, topic: str) -> None:
        self.model.unsubscribe_topic(queue, topic)

    def redrive(self, queue: str, ids: list[str] | None = None) -> Redriven:
        before = self.model.queues[queue].counters["redriven"]
        why = self.model.redrive(queue, None if ids is None else [int(i) for i in ids])
        self.connection.pump()
        return Redriven(self.model.queues[queue].counters["redriven"] - before, why)

    def delete(self, queue: str) -> None:
        self.model.delete(queue)

    def queues(self) -> list[str]:
        return list(self.model.queues)

    def describe(self, queue: str) -> dict[str, Any]:
        model, seen = self.model, self.model.describe(queue)
        inner = model.queues[queue]
        consumers = [
            {"name": s.name, "held": inner.held(s), "backlog": inner.allowance(s)}
            for s in model.bound_to(inner)
        ]
        return seen | {"consumers": consumers, "counters": dict(seen)}

    def browse(
        self, queue: str, where: str | None = None, state: str | None = None, limit: int = 1000
    ) -> list[Message]:
        found = [
            Message(e, queue, None, None)
            for e in self.model.queues[queue].active()
            if e.matches(where) and state in (None, e.state)
        ]
        return found[:limit]
