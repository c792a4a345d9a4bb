"""The dispatch table: command → the function that carries it out. Commands about brokers and
bridges are in `MeshInterface.commands`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol import commands as c
from ..rules.durable import tables_have
from . import administration, inspection, leases, moving, sessions, topic_subscriptions
from .multi_step_commands import IN_TURN

OF_BROKER: dict[type, Callable[..., Any]] = {  # (broker, vpn, command) → answer
    **dict.fromkeys((c.Begin, c.Clients, c.Tick), lambda *_: None),  # see `intake`
    c.Configure: administration.configure,
    c.Define: administration.define,
    c.Delete: administration.delete,  # `IN_TURN` then removes its messages
    c.Heartbeat: sessions.heartbeat,
    c.Bye: sessions.bye,
    c.RecordsLost: administration.records_lost,
    c.Stuck: lambda broker, vpn, one: broker.event("broker_stuck", vpn, why=one.why),
    c.RecordRefused: lambda broker, vpn, one: broker.event(
        "record_refused", vpn, topic=one.topic, why=one.why
    ),
    c.Tables: tables_have,
    c.ExistingTopics: administration.existing_topics,
    c.Queues: inspection.queues,
    c.Captures: inspection.captures,
    c.Usage: inspection.usage,
    c.Events: inspection.events,
}
OF_QUEUE: dict[type, Callable[..., Any]] = {  # (broker, queue, command) → answer
    c.Subscribe: sessions.subscribe,
    c.SetBacklog: sessions.set_backlog,
    c.TransportAck: leases.has_arrived,
    c.Shutdown: administration.shutdown,
    c.SubscribeTopic: topic_subscriptions.subscribe_topic,
    c.UnsubscribeTopic: topic_subscriptions.unsubscribe_topic,
    c.Describe: lambda broker, queue, command: inspection.describe(broker, queue),
    c.Browse: inspection.browse,
}
IN_TURN.update(  # (broker, queue, task, command, budget) → is it done
    {
        c.Ack: leases.acknowledge,
        c.Cancel: leases.cancel,
        c.Reject: leases.reject,
        c.Renew: leases.renew,
        c.Returned: leases.hand_back,
        c.Unsubscribe: sessions.unsubscribe,
        c.Purge: administration.purge,
        c.Move: moving.move,
        c.Edit: moving.edit,
        c.Redrive: moving.redrive,
        c.BeginAgain: leases.begin_again,
        c.Undeliverable: leases.undeliverable,
        c.Delete: administration.remove_messages,
        c.MoveQueue: lambda broker, queue, task, _, budget: broker.mesh.leave(queue, task, budget),
    }
)
INSPECTIONS = frozenset({c.Queues, c.Captures, c.Usage, c.Events, c.Describe, c.Browse})
# The commands that clients may give for a queue that only the engine fills and empties.
OF_STAND_IN = frozenset({c.Describe, c.Browse, c.Purge, c.Shutdown, c.BeginAgain})
# Without such a queue, these have nothing to do and are not refused.
TOLERANT = frozenset({c.Unsubscribe, c.TransportAck, c.BeginAgain, c.Undeliverable})
