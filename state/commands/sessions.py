"""Subscriptions, and the sessions that keep them alive (L1, B2, B3, C3).

A session is one connection. While its heartbeats come, its consumers may take as long as they like.
When they stop for `heartbeat_timeout`, or the session says goodbye, all its leased messages return
to their queues.
"""

from __future__ import annotations

from typing import Any

from ...expressions import predicate
from ...protocol.bounds import BACKLOG_MAX
from ...protocol.commands import Bye, Heartbeat, SetBacklog, Subscribe, Unsubscribe
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.broker_facts import KnownSession, Name
from ..queue.consumers import backlog_of, leaves_on_send, own_backlog, terms_of
from ..queue.header import Subscription, Task
from ..queue.queue import Queue
from ..storage.row import NEVER
from .leases import return_held
from .multi_step_commands import begin

PRIORITY_MAX = 255


def subscribe(broker: Broker, queue: Queue, command: Subscribe) -> dict[str, Any]:
    """Bind a consumer. The same command again changes nothing. Raises ValueError for the same id
    with other settings, which would have no effect.

    Answers whether messages are removed when they are sent, the effective backlog (B2, C6), and the
    heartbeat timeout.
    """
    if command.framing not in ("single", "batch"):
        raise ValueError(f"framing: {command.framing!r} – allowed are 'single' and 'batch'")
    if command.acks not in ("explicit", "none"):
        raise ValueError(f"acks: {command.acks!r} – allowed are 'explicit' and 'none'")
    if command.filter is not None:
        kind = queue.definition.message_type
        if predicate("filter", command.filter).needs_payload and kind != "json":  # Q1
            raise ValueError(
                f"filter: {command.filter!r} – reads fields, which needs message_type 'json', not "
                f"{kind!r}; allowed are /@priority and /@key"
            )
    if command.max_backlog is not None:
        _check_backlog(command.max_backlog)
    _check_priority(queue, command.priority)
    header = queue.header
    subscription = Subscription(
        id=command.subscription,
        number=header.next_subscription,
        name=command.name or command.subscription,
        session=command.session,
        topic=command.inbox.topic,
        partition=command.inbox.partition,
        framing=command.framing,
        removes_on_send=command.acks == "none",
        filter=command.filter,
        max_backlog=command.max_backlog,
        transport_acks=command.transport_acks,
        priority=command.priority,
        client="" if broker.speaker is None else broker.speaker.client,
    )
    removes = leaves_on_send(queue.definition, subscription)
    bound = queue.subscription(command.subscription)
    if bound is not None:
        _check_same(bound, subscription)
        return _answer(broker, queue, bound)
    _check_room(broker, queue, command)
    queue.consumers.add(subscription)
    header.next_subscription += 1
    queue.wanted = True
    broker.touch(queue)
    if command.session:
        name = queue.definition.vpn, command.session
        session = broker.sessions.setdefault(name, KnownSession(NEVER))
        session.bound.append((queue.number, command.subscription))
        _keep_alive(broker, name, session)
    broker.queue_event(
        queue, "subscribed", subscription=subscription.id,
        backlog=None if removes else own_backlog(subscription), consumer=subscription.name,
    )  # fmt: skip
    return _answer(broker, queue, subscription)


def _answer(broker: Broker, queue: Queue, subscription: Subscription) -> dict[str, Any]:
    definition = queue.definition
    return {
        **terms_of(definition, subscription),
        "heartbeat_timeout_ms": broker.header.system.heartbeat_timeout_ms,
        "epoch": broker.header.epoch,
        "lease_ms": definition.lease_period_ms,
    }


def _check_same(bound: Subscription, asked: Subscription) -> None:
    """Raise ValueError if a subscription is ending or has other settings than the one asked for.
    The backlog is not compared, because it can be changed later (B3)."""
    if bound.ending:
        raise ValueError(
            f"subscription: {bound.id!r} – is ending, its messages are being returned; use "
            f"another id"
        )
    here = _settings(bound)
    for key, value in _settings(asked).items():
        if value != here[key]:
            raise ValueError(
                f"subscription: {bound.id!r} – is bound already with {key} {here[key]!r}, not "
                f"{value!r}; use another id, or unsubscribe first"
            )


def _settings(one: Subscription) -> dict[str, Any]:
    return {
        "inbox": (one.topic, one.partition),
        "session": one.session,
        "framing": one.framing,
        "acks": "none" if one.removes_on_send else "explicit",
        "filter": one.filter,
        "transport_acks": one.transport_acks,
        "priority": one.priority,
    }


def _check_room(broker: Broker, queue: Queue, command: Subscribe) -> None:
    """Raise ValueError for too many subscriptions. A mark writes all subscriptions of a queue that
    changed, and a session ends in one step, so both are bounded."""
    limits, bound = broker.limits, queue.header.subscriptions
    session = broker.sessions.get((queue.definition.vpn, command.session))
    own = [] if session is None else session.bound
    here = sum(number == queue.number for number, _ in own)
    for what, there, most in (
        ("the queue has", len(bound), limits.subscriptions),
        ("the session has", len(own), limits.subscriptions),
        ("for this queue the session has", here, limits.session_queue_subscriptions),
    ):
        if there >= most:
            raise ValueError(
                f"subscription: {command.subscription!r} – {what} {there} subscriptions, "
                f"at most {most} are allowed"
            )
    if not command.filter:  # summing up the filters each time would be slow for many subscriptions
        return
    characters = sum(len(s.filter or "") for s in bound) + len(command.filter)
    if characters > limits.filter_characters:
        raise ValueError(
            f"filter: {command.filter[:60]!r} – the queue's filters would have {characters} "
            f"characters, at most {limits.filter_characters} are allowed"
        )


def _check_priority(queue: Queue, priority: int) -> None:
    """Check a consumer's own priority, which only `fast` uses (F1)."""
    if not 0 <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority: {priority} – allowed are 0 to {PRIORITY_MAX}")
    model = queue.definition.fairness_model
    if priority and model != "fast":
        raise ValueError(
            f"priority: {priority} – allowed with fairness_model 'fast' only; queue "
            f"{queue.definition.name!r} has {model!r}"
        )


def _check_backlog(backlog: int) -> None:
    if not 0 <= backlog <= BACKLOG_MAX:
        raise ValueError(f"max_backlog: {backlog} – allowed are 0 to {BACKLOG_MAX}")


def set_backlog(broker: Broker, queue: Queue, command: SetBacklog) -> dict[str, int] | None:
    """Change a subscription's backlog. If it has more leases than that, delivery waits (B3).
    Answers with the backlog as it applies; None if there is no such subscription."""
    _check_backlog(command.max_backlog)
    subscription = queue.subscription(command.subscription)
    if subscription is None:
        broker.in_vain()
        return None
    subscription.max_backlog = command.max_backlog
    queue.consumers.changed(subscription)
    d, text = queue.definition, f"backlog={command.max_backlog}"
    broker.note("backlog_changed", d.vpn, d.name, subscription.id, text)
    queue.wanted = True
    broker.touch(queue)
    return {"backlog": backlog_of(d, subscription)}


def unsubscribe(
    broker: Broker, queue: Queue, task: Task, command: Unsubscribe, budget: Budget
) -> bool:
    """End a subscription: return its messages, then remove it (L1)."""
    found = queue.subscription(command.subscription)
    if found is None:
        broker.in_vain()
        return True
    if not return_held(broker, queue, found, budget):
        return False
    queue.consumers.remove(found)
    queue.forget_view(found.filter)
    queue.leases.pop(found.number, None)
    queue.wanted = True
    broker.touch(queue)
    broker.queue_event(queue, "unsubscribed", subscription=found.id, why=found.ending)
    unbind(broker, queue, found.id, found.session)
    return True


def _keep_alive(broker: Broker, name: Name, session: KnownSession) -> None:
    """Keep a session alive for another timeout. After the timeout was shortened, the session needs
    a new, earlier entry in the calendar."""
    until = broker.now + broker.header.system.heartbeat_timeout_ms
    if until < session.until:
        broker.watch("s", name, until)
    session.until = until
    broker.changed("s", name)


def unbind(broker: Broker, queue: Queue, subscription: str, session_name: str) -> None:
    """Remove a subscription from its session, if it has one. A session without any subscription is
    removed: it needs no heartbeats."""
    name, bound = (queue.definition.vpn, session_name), (queue.number, subscription)
    session = broker.sessions.get(name)
    if session is None:
        return
    session.bound = [one for one in session.bound if one != bound]
    if not session.bound:
        del broker.sessions[name]
    broker.changed("s", name)


def heartbeat(broker: Broker, vpn: str, command: Heartbeat) -> bool:
    """Keep a session alive. Answers False if there is none: its subscriptions have ended."""
    name = vpn, command.session
    session = broker.sessions.get(name)
    if session is None:
        broker.in_vain()
        return False
    _keep_alive(broker, name, session)
    return True


def bye(broker: Broker, vpn: str, command: Bye) -> None:
    """End a session at its client's request."""
    name = vpn, command.session
    if name in broker.sessions:
        _end_session(broker, name, "closed")
    else:
        broker.in_vain()


def end_lost(broker: Broker, name: Name, why: str = "heartbeats missed") -> None:
    """End a session whose client may think that it goes on. why: for the event."""
    if name not in broker.sessions:
        return
    broker.event("session_lost", name[0], session=name[1])
    _end_session(broker, name, why)


def _end_session(broker: Broker, name: Name, why: str) -> None:
    """End all subscriptions of a session, each in its queue's turn."""
    session = broker.sessions.pop(name)
    broker.changed("s", name)
    for number, subscription in session.bound:
        queue = broker.queue(number)
        if queue is not None and not queue.header.deleted:
            command = Unsubscribe(queue=queue.definition.name, subscription=subscription)
            begin(broker, queue, command, why, bounded=False)
