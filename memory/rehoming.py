"""Requests to add, remove or move brokers of an engine in this process. It is at rest between two
calls, so they take effect at once (M4)."""

from __future__ import annotations

import json

from ..client.session.queue_directory import CHANGE_REQUEST
from ..definitions.broker_changes import check_added, check_removed
from ..mesh.home_change import HomeChange
from ..mesh.rehome import Rehomed
from ..protocol import LakequeueError
from .in_process import MemoryEngine


def answer_change(engine: MemoryEngine, topic: str, key: bytes, value: bytes) -> None:
    """Carry out a request in a VPN's directory and write the answer there."""
    asked = json.loads(value)
    name, answer = key.removeprefix(CHANGE_REQUEST).decode(), {"id": asked["id"]}
    try:
        match asked["wish"]:
            case "add":
                moved = change_brokers(engine, add=name, group=asked["group"]).moved
            case "move":
                moves = {(topic.rpartition(".")[0], name): asked["to"]}
                moved = change_brokers(engine, moves=moves).moved
            case _:
                moved = change_brokers(engine, remove=name, to=asked["to"]).moved
        answer |= {"done": True, "moved": moved}
    except LakequeueError as error:
        answer["refused"] = str(error)
    engine.tell_directory(topic, key, json.dumps(answer).encode())


def change_brokers(
    engine: MemoryEngine, add: str = "", remove: str = "", to: str = "", group: str = "",
    moves: dict[tuple[str, str], str] | None = None,
) -> Rehomed:  # fmt: skip
    """Add a broker, remove one, or both; or move queues. Raises LakequeueError, and then the home
    is unchanged."""
    brokers = {broker.home.name: broker.home.number for broker in engine.brokers}
    was = set(engine.removed.values())
    if add:
        there = {name: engine.groups.get(name, "") for name in brokers}
        vpns = {vpn for broker in engine.brokers for vpn in broker.vpns}
        check_added(add, group, there, was, vpns)
    if remove:
        check_removed(remove, to, {**brokers, add: 0} if add else brokers, was)
    if add:
        brokers[add] = engine.numbers
    brokers.pop(remove, None)
    groups = engine.groups | ({add: group} if group else {})
    groups = {name: one for name, one in groups.items() if name in brokers}
    return engine.rehome(HomeChange(brokers, groups, to, moves or {}))
