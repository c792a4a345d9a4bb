"""Every command, how it is carried out, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol import commands as c
from . import administration, looks, sessions, settling, topic_subscriptions
from .redrive import redrive
from .turns import IN_TURN

OF_BROKER: dict[type, Callable[..., Any]] = {  # (broker, vpn, command) → answer
    c.Begin: lambda broker, vpn, command: None,  # see `inbox`
    c.Configure: administration.configure,
    c.Define: administration.define,
    c.Heartbeat: sessions.heartbeat,
    c.Bye: sessions.bye,
    c.Tick: lambda broker, vpn, command: None,
    c.Queues: looks.queues,
    c.Usage: looks.usage,
    c.Events: looks.events,
}
OF_QUEUE: dict[type, Callable[..., Any]] = {  # (broker, vpn, queue, command) → answer
    c.Subscribe: sessions.subscribe,
    c.SetBacklog: sessions.set_backlog,
    c.TransportAck: settling.has_arrived,
    c.Shutdown: administration.shutdown,
    c.Delete: administration.delete,  # its messages go in turn
    c.SubscribeTopic: topic_subscriptions.subscribe_topic,
    c.UnsubscribeTopic: topic_subscriptions.unsubscribe_topic,
    c.Describe: looks.describe_one,
    c.Browse: looks.browse,
}
IN_TURN.update(  # (broker, queue, task, command, budget) → done?
    {
        c.Ack: settling.acknowledge,
        c.Cancel: settling.cancel,
        c.Reject: settling.reject,
        c.Renew: settling.renew,
        c.Returned: settling.hand_back,
        c.Unsubscribe: sessions.unsubscribe,
        c.Purge: administration.purge,
        c.Redrive: redrive,
        c.Delete: administration.remove_messages,
    }
)
LOOKS = frozenset({c.Queues, c.Usage, c.Events, c.Describe, c.Browse})
TOLERANT = frozenset({c.Unsubscribe, c.TransportAck})  # no such queue: nothing to do
