"""Definitions and what an administrator does: define, delete, shut down, purge (Q1–Q9, S7, H5, R6).

A definition is checked as a whole before anything is changed, so one that is refused leaves
everything as it was.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...definitions import (
    QueueDefinition,
    parse_configuration,
    parse_definition,
    redefine,
)
from ...definitions.definition import NEEDS_AUTH, is_protected, name_of
from ...protocol import topics
from ...protocol.carrying import Entry
from ...protocol.commands import (
    Configure,
    Define,
    Delete,
    Purge,
    RecordRefused,
    RecordsLost,
    Shutdown,
    Stuck,
)
from ...protocol.errors import ConfigError, Problem
from ...protocol.ids import parse_ranges
from ...protocol.outputs import Reply
from ..bridges.bases import read_here
from ..broker import Broker, bucket
from ..header import QueueHeader
from ..limits import Budget
from ..mesh import partitions
from ..mesh.hosting import all_hosts
from ..mesh.known_places import find
from ..mesh.ownership import join, leave
from ..mesh.placement import check_dead_messages, check_names
from ..message import Event, apply
from ..queue import Queue
from ..routing import Routes, add_route, drop_route
from ..storage import NEVER
from . import given_definitions
from .moving import because
from .places import wanted_rows
from .sessions import unbind
from .task import Task
from .topic_subscriptions import check_definition, follow_definition, remove, topics_of
from .turns import begin, cancel_all, resume

OF_TOPICS = ("records_lost", "topic_made_anew", "kafka_went_back")  # what is told of a topic


def configure(broker: Broker, vpn: str, command: Configure) -> None:
    """Set limits of the system and of VPNs."""
    configuration = parse_configuration({"system": command.system, "vpns": command.vpns})
    broker.header.system = configuration.system
    broker.reconfigured = True
    for vpn, limits in configuration.vpns.items():
        broker.vpn_number(vpn)
        broker.header.vpn_limits[vpn] = limits


def define(broker: Broker, vpn: str, command: Define) -> QueueDefinition | None:
    """Define a queue, or define it again (Q9); the same definition again changes nothing, and then
    None is given."""
    if given_definitions.is_as_given(broker, vpn, command.definition):
        return None
    definition = _define(broker, vpn, command)
    given_definitions.remember(broker, vpn, definition.name, command.definition)
    return definition


def _define(broker: Broker, vpn: str, command: Define) -> QueueDefinition:
    existing = _existing(broker, vpn, command.definition)
    before = None if existing is None else existing.definition
    definition = parse_definition({"vpn": vpn, **owned(broker, before, command.definition)})
    if is_protected(definition) and not broker.header.auth:
        raise ValueError(f"owner: {definition.owner!r} – {NEEDS_AUTH}")
    if definition.vpn != vpn:
        raise ValueError(
            f"vpn: {definition.vpn!r} – allowed is {vpn!r}, the VPN of this connection; "
            "connect to the other one for that"
        )
    if not broker.header.peers:  # else the keeper has looked
        check_names(broker, definition)
    check_dead_messages(broker, definition)
    check_definition(broker, existing, definition)
    if existing is None:
        create(broker, vpn, definition)
        return definition
    old = existing.definition
    if old == definition and not existing.header.faulted:
        return definition
    problems = redefine(old, definition) + _check_last_value(existing, definition)
    if problems:
        raise ConfigError(problems)
    drop_route(broker, old, existing.number)
    add_route(broker, definition, existing.number, bool(read_here(broker, [existing])))
    follow_definition(broker, vpn, existing, old, definition)
    existing.header.definition = definition
    _tell_base(broker, vpn, existing)
    if old.recovery_point != definition.recovery_point:
        existing.header.pointed = broker.now
    if existing.header.faulted:
        existing.header.faulted = ""
        resume(broker, existing)
    existing.wanted = True
    broker.event("defined", vpn, definition.name, again=True)
    _write_down(broker, vpn, definition)
    return definition


def _tell_base(broker: Broker, vpn: str, queue: Queue) -> None:
    from ..bridges.trails import tell_base

    tell_base(broker, vpn, queue)


def _existing(broker: Broker, vpn: str, mapping: dict[str, Any]) -> Queue | None:
    identity = name_of(mapping)
    return None if identity is None else broker.find(vpn, identity[1])


def owned(
    broker: Broker, before: QueueDefinition | Entry | None, mapping: dict[str, Any]
) -> dict[str, Any]:
    """A definition by a client who has proven who it is: the queue is its own, and one that is
    there keeps its owner and its permissions where they are not named."""
    speaker = broker.speaker
    if speaker is None:
        return mapping
    if before is None:
        return mapping if speaker.admin else {"owner": speaker.client, **mapping}
    if not is_protected(before):
        return mapping
    permissions = dict(before.permissions)
    kept = {"owner": before.owner, "permission": before.permission, "permissions": permissions}
    return {**kept, **mapping}


def _check_last_value(queue: Queue, new: QueueDefinition) -> list[Problem]:
    """S10: quota 0 keeps one message; a definition does not throw the others away."""
    depth = queue.header.depth
    if new.max_spool_usage or depth < 2:
        return []
    allowed = f"keeps the last message only, and {depth} are stored: consume or purge them before"
    return [Problem(f"queue {new.name!r}", "max_spool_usage", 0, allowed)]


def create(
    broker: Broker, vpn: str, definition: QueueDefinition, link: str = "", base: int = -1,
    way: str = "",
) -> Queue:  # fmt: skip
    """A queue that did not exist. link: it is a bridge's endpoint, with these lanes (H1), and
    captures no topic; way: it captures none, and leads to this dead message queue (X5); base: it
    was made at that broker, and comes from elsewhere."""
    known = broker.header.queues.get(vpn, 0)
    if known >= broker.limits.queues and not way:  # nobody could be told
        raise ValueError(
            f"queue: {definition.name!r} – VPN {vpn!r} has {known} queues, at most "
            f"{broker.limits.queues} are allowed"
        )
    broker.header.queues[vpn] = known + 1
    number = broker.header.next_queue
    broker.header.next_queue += 1
    queue = broker.add_queue(
        QueueHeader(number, broker.vpn_number(vpn), definition, created=broker.now, base=base)
    )
    key = f"n/{vpn}/{bucket(definition.name)}"
    broker.values.write(key, {**(broker.values.read(key) or {}), definition.name: number})
    if link:
        broker.header.links[number] = link
    elif way:
        broker.header.ways[number] = way
    else:
        add_route(broker, definition, queue.number, bool(read_here(broker, [queue])))
    follow_definition(broker, vpn, queue, None, definition)
    entry = find(broker, vpn, definition.name)
    partitions.begin(queue, entry.hosts if entry is not None else all_hosts(broker, queue))
    join(broker, queue)
    broker.event("defined", vpn, definition.name)
    _write_down(broker, vpn, definition)
    return queue


def _write_down(broker: Broker, vpn: str, definition: QueueDefinition) -> None:
    """The definition as it now is, into the journal."""
    text = msgspec.json.encode(definition).decode()
    broker.note("definition", vpn, definition.name, "", text)


def delete(broker: Broker, vpn: str, queue: Queue, command: Delete) -> None:
    """Delete a queue: from now on nobody finds it, and its name is free; its messages are gone, not
    delivered (S7). They are removed in turn (`remove_messages`)."""
    leave(broker, queue)
    forget(broker, vpn, queue)
    _tell_consumers(broker, vpn, queue)
    queue.header.deleted = True
    queue.header.faulted = ""
    broker.event("deleted", vpn, queue.definition.name)
    begin(broker, vpn, queue, Delete(queue=queue.definition.name))


def _tell_consumers(broker: Broker, vpn: str, queue: Queue) -> None:
    """Their subscriptions are over, and none of them has asked for that: each is told in its
    inbox, by its id."""
    told = {"ended": f"queue {queue.definition.name!r} was deleted"}
    for one in queue.header.subscriptions:
        broker.emit(Reply(one.topic, one.partition, one.id, told, kind="Ended"))
        if one.session:
            unbind(broker, vpn, one.session, [queue.number, one.id])


def forget(broker: Broker, vpn: str, queue: Queue) -> None:
    """From now on nobody finds the queue here."""
    name = queue.definition.name
    drop_route(broker, queue.definition, queue.number)
    remove(broker, vpn, queue, topics_of(broker, queue))
    key = f"n/{vpn}/{bucket(name)}"
    names = dict(broker.values.read(key) or {})
    if names.pop(name, None) is not None:
        broker.header.queues[vpn] = max(broker.header.queues.get(vpn, 0) - 1, 0)
    broker.values.write(key, names)
    given_definitions.forget(broker, vpn, name)
    broker.calendar.set(f"q{queue.number}", NEVER)
    broker.header.waiting.pop(queue.number, None)
    cancel_all(broker, queue)


def remove_messages(
    broker: Broker, queue: Queue, task: Task, command: Delete, budget: Budget
) -> bool:
    """Remove what a deleted queue holds, and then the queue."""
    done = False
    while not done and not budget.spent:
        part = wanted_rows(broker, queue, task, None, None, budget)
        done, task.cursor = part.last, part.next
        apply(broker, queue, part.seqs, Event.DELETE)
    if done:
        partitions.forget(broker, queue)
        queue.drop()
    return done


def shutdown(broker: Broker, vpn: str, queue: Queue, command: Shutdown) -> None:
    """Shut down or open ingress and egress, each on its own (H5)."""
    queue.header.ingress = not command.ingress
    queue.header.egress = not command.egress
    queue.wanted = True
    broker.event(
        "shutdown", vpn, queue.definition.name, ingress=command.ingress, egress=command.egress
    )


def purge(broker: Broker, queue: Queue, task: Task, command: Purge, budget: Budget) -> bool:
    """Remove messages by predicate (active ones, R5), by ids, or all; answers how many."""
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    done = False
    while not done and not budget.spent:
        part = wanted_rows(broker, queue, task, command.where, ranges, budget)
        done, task.cursor = part.last, part.next
        if not command.dry_run:
            reason = because(command, command.where or "")
            apply(broker, queue, part.seqs, Event.PURGE, reason=reason)
        task.done["n"] = task.done.get("n", 0) + len(part.seqs)
    task.result = task.done.get("n", 0)
    return done


def was_stuck(broker: Broker, vpn: str, command: Stuck) -> None:
    """The engine had to start this broker again."""
    broker.event("broker_stuck", vpn, why=command.why)


def record_refused(broker: Broker, vpn: str, command: RecordRefused) -> None:
    """Kafka did not take what was said there: an event of the VPN."""
    broker.event("record_refused", vpn, topic=command.topic, why=command.why)


def records_lost(broker: Broker, vpn: str, command: RecordsLost) -> None:
    """Retention was shorter than the engine's rest: an event of the VPN, where the topic is its
    own, or else of each of its queues that captures the topic."""
    own = topics.split(command.topic)
    if own is not None:
        names = [""] if own[0] == vpn else []
    else:
        of_vpns = dict(Routes(broker).of_record(command.topic))
        names = [queue.definition.name for queue in of_vpns.get(vpn, ())]
    for name in names[: broker.limits.events]:
        broker.event(
            command.event if command.event in OF_TOPICS else OF_TOPICS[0],
            vpn, name, topic=command.topic, records=command.records,
            reader=command.reader,
        )  # fmt: skip
