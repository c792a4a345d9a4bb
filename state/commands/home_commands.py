"""What commands about other brokers and bridges are answered: this home has one broker."""

from __future__ import annotations

from typing import Any

from ...protocol import commands as c
from ...protocol.errors import ConfigError, Problem
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.header import Task
from ..queue.queue import Queue

LOCAL = "LocalQueue"


def peers(broker: Broker, vpn: str, command: c.Peers) -> None:
    """The home's brokers are these. Raises ConfigError unless that is this one alone."""
    name, number = broker.header.name, broker.header.number
    own = command.brokers.get(name)
    if own != number:
        raise ConfigError(f"brokers: {name!r} has number {own} there – it is broker {number}")
    others = ", ".join(repr(other) for other in command.brokers if other != name)
    if others:
        raise ConfigError(f"brokers: {others} – this home has one broker, {name!r}")


def move_queue(broker: Broker, vpn: str, command: c.MoveQueue) -> None:
    """Move a queue to another broker: there is none, and here it is already."""
    queue = broker.find(vpn, command.queue)
    if queue is None:
        raise ConfigError(f"queue: {command.queue!r} – there is no such queue in VPN {vpn!r}")
    if command.broker != broker.header.name:
        allowed = f"allowed are the home's brokers: {broker.header.name}"
        where = f"queue {command.queue!r}"
        raise ConfigError([Problem(where, "broker", command.broker, allowed)])
    kind = queue.definition.type
    if kind != LOCAL:
        raise ConfigError(f"queue: {command.queue!r} – is a {kind}; a LocalQueue moves, no other")


def leave(broker: Broker, queue: Queue, task: Task, command: c.MoveQueue, budget: Budget) -> bool:
    """The queue goes to another broker (M5); whether it has left."""
    assert broker.mesh is not None
    return broker.mesh.leave(queue, task, budget)


def bridge(broker: Broker, vpn: str, command: c.Bridge) -> None:
    """Refused: there are no bridges."""
    raise ConfigError("bridge: – this engine has no bridges")


def concerning_bridge(broker: Broker, vpn: str, command: c.DeleteBridge | c.DescribeBridge) -> Any:
    """Refused: there is none."""
    raise ConfigError(
        f"bridge: {command.name!r} – there is no such bridge in VPN {vpn!r}, which has none"
    )
