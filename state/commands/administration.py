"""Administration: define, delete, shut down, purge (Q1–Q9, S7, H5, R6).

A definition is checked as a whole before anything changes, so a refused one has no effect. At each
start the engine defines every queue of its configuration again. Most are unchanged; their digest
shows that without reading the queue (Q9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from ...definitions import (
    QueueDefinition,
    check_in_home,
    defined_over,
    parse_configuration,
    parse_definition,
    redefine,
)
from ...definitions.definition import NEEDS_AUTH, is_protected, name_of
from ...protocol import commands as c
from ...protocol import topics
from ...protocol.errors import ConfigError, Problem, no_such_queue
from ...protocol.ids import COUNTER_BITS, parse_ranges
from ...protocol.outputs import DirectoryEntry, Reply
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.change import apply
from ..queue.consumers import terms_of
from ..queue.header import Task
from ..queue.queue import Queue
from ..queue.table import Event
from ..rules.command_targets import split_moving, wanted
from ..rules.routing import add_route, drop_route, forget_found, queues_of_record, withdraw
from .moving import because
from .multi_step_commands import begin, cancel_all, resume
from .sessions import end_lost, unbind
from .topic_subscriptions import check_definition, follow_definition

DIGEST_BYTES = 8
OF_TOPICS = ("records_lost", "topic_made_anew", "kafka_went_back")  # events about a topic

_encode = msgspec.msgpack.encode
_in_directory = attrgetter(
    "type", "dead_message_queue", "default_publish_target", "underlying_topic", "owner",
    "permission", "permissions",
)  # fmt: skip


def configure(broker: Broker, vpn: str, command: c.Configure) -> None:
    """Set limits of the system and of VPNs."""
    configuration = parse_configuration({"system": command.system, "vpns": command.vpns})
    broker.header.system = configuration.system
    broker.reconfigured = True
    for name, limits in configuration.vpns.items():
        broker.vpn_number(name)
        broker.header.vpn_limits[name] = limits
    forget_found(broker)


# ---------------------------------------------------------------- define


def define(broker: Broker, vpn: str, command: c.Define) -> None:
    """Define a queue, or define it again (Q9). The same definition again changes nothing."""
    mapping, identity = command.definition, name_of(command.definition)
    existing = None if identity is None else broker.find(vpn, identity[1])
    if existing is not None and not command.replace:
        mapping = defined_over(existing.definition, mapping)
    given = _digest(mapping)
    if existing is not None and given and existing.header.given == given:
        return
    before = None if existing is None else existing.definition
    definition = parse_definition({"vpn": vpn, **owned(broker, before, mapping)})
    _check(broker, vpn, existing, definition)
    apply_definition(broker, definition).header.given = given


def apply_definition(broker: Broker, definition: QueueDefinition) -> Queue:
    """Apply a checked definition; returns the queue."""
    queue = broker.find(definition.vpn, definition.name)
    before = None if queue is None else queue.definition
    if queue is None:
        queue = broker.make_queue(definition, created=broker.now)
        add_route(broker, definition, queue.number)
        follow_definition(broker, queue, None, definition)
        _tell_defined(broker, queue)
    else:
        _define_again(broker, queue, definition)
    queue.header.given = b""
    broker.touch(queue)
    if before is None or _in_directory(before) != _in_directory(definition):
        _emit_entry(broker, definition.vpn, definition.name, definition.type)
    return queue


def _digest(mapping: dict[str, Any]) -> bytes:
    """The digest of a definition as given; empty if it has a number too large to encode, which the
    parser refuses later."""
    try:
        return blake2b(_encode(mapping), digest_size=DIGEST_BYTES).digest()
    except OverflowError:
        return b""


def check_allowed(
    broker: Broker, vpn: str, definition: QueueDefinition,
    targets_of: Callable[[str], Iterable[str | None]],
) -> None:  # fmt: skip
    """Raise ConfigError or ValueError for a definition that this VPN, engine or home does not
    allow. targets_of: see `dead_message_ring`."""
    if is_protected(definition) and not broker.header.auth:
        raise ValueError(f"owner: {definition.owner!r} – {NEEDS_AUTH}")
    if definition.vpn != vpn:
        raise ValueError(
            f"vpn: {definition.vpn!r} – allowed is {vpn!r}, the VPN of this connection; connect to "
            f"{definition.vpn!r} to define a queue there"
        )
    names = broker.mesh.brokers or (broker.header.name,)
    check_in_home(definition, names, broker.mesh.groups, targets_of)


def check_bookmark(
    old: QueueDefinition | None, new: QueueDefinition, hosts: Mapping[str, int]
) -> None:
    """Raise ConfigError for a new bookmark that is no id of the queue's only host: each broker
    numbers the records that it reads (R2). hosts: their numbers by name."""
    point = new.recovery_point
    if not point.isdecimal() or (old is not None and old.recovery_point == point):
        return
    if list(hosts.values()) == [int(point) >> COUNTER_BITS]:
        return
    allowed = (
        "must be epoch, now, creation, a time, or an id of the only broker of the queue, which is "
        f"on {', '.join(map(repr, hosts))}"
    )
    raise ConfigError([Problem(f"queue {new.name!r}", "recovery_point", point, allowed)])


def _check(broker: Broker, vpn: str, existing: Queue | None, definition: QueueDefinition) -> None:
    """Raise ConfigError or ValueError for a definition that conflicts with this broker's state."""

    def targets_of(name: str) -> list[str | None]:
        queue = broker.find(vpn, name)
        return [] if queue is None else [queue.definition.dead_message_queue]

    check_allowed(broker, vpn, definition, targets_of)
    before = None if existing is None else existing.definition
    check_bookmark(before, definition, {broker.header.name: broker.header.number})
    if existing is None:
        if len(broker.names) >= broker.limits.queues:  # of all VPNs
            check_number(broker, vpn, definition.name, sum(one == vpn for one, _ in broker.names))
    elif existing.definition != definition:
        check_definition(existing, definition)
        problems = redefine(existing.definition, definition)
        problems += _check_last_value(existing, definition)
        if problems:
            raise ConfigError(problems)


def check_number(broker: Broker, vpn: str, name: str, number: int) -> None:
    """Raise ValueError if a VPN with this number of queues cannot have another one."""
    most = broker.limits.queues
    if number >= most:
        raise ValueError(
            f"queue: {name!r} – VPN {vpn!r} has {number} queues, at most {most} are allowed"
        )


def owned(
    broker: Broker, before: QueueDefinition | None, mapping: dict[str, Any]
) -> dict[str, Any]:
    """Complete a definition by a client that signs commands. A new queue belongs to the client. An
    existing queue keeps its owner and permissions unless the definition names them."""
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


def _define_again(broker: Broker, queue: Queue, new: QueueDefinition) -> None:
    """Give an existing queue a new definition."""
    header, old = queue.header, queue.definition
    if old == new and not header.faulted:
        return
    drop_route(broker, old, queue.number)
    add_route(broker, new, queue.number)
    follow_definition(broker, queue, old, new)
    header.definition = new
    for one in queue.header.subscriptions:  # they acknowledge by their terms
        terms = terms_of(new, one)
        if one.broker is None and terms != terms_of(old, one):
            broker.emit(Reply(one.topic, one.partition, one.id, terms, kind="Backlog"))
            queue.consumers.watch(one)
    if old.recovery_point != new.recovery_point:
        header.pointed = broker.now
    if header.faulted:
        header.faulted = ""
        resume(broker, queue)
    queue.wanted = True
    _tell_defined(broker, queue, again=True)


def _check_last_value(queue: Queue, new: QueueDefinition) -> list[Problem]:
    """Refuse quota 0 while several messages are stored: it would discard all but one (S10)."""
    depth = queue.header.depth
    if new.max_spool_usage or depth < 2:
        return []
    allowed = f"keeps only the last message, but {depth} are stored: consume or purge them first"
    return [Problem(f"queue {new.name!r}", "max_spool_usage", 0, allowed)]


def _tell_defined(broker: Broker, queue: Queue, **details: bool) -> None:
    """Write an event, and the definition into the journal."""
    broker.queue_event(queue, "defined", **details)
    d = queue.definition
    broker.note("definition", d.vpn, d.name, "", msgspec.json.encode(d).decode())


def _emit_entry(broker: Broker, vpn: str, name: str, kind: str) -> None:
    """Write a queue's entry in the directory. kind: empty if the queue was deleted."""
    header = broker.header
    if broker.mesh.keeps_directory:
        return
    hosts, state = ({header.name: header.number}, "there") if kind else ({}, "")
    # Each definition and each deletion is an event, so the number of events orders the entries.
    broker.emit(DirectoryEntry(vpn, name, hosts, kind, state, header.epoch, header.events))


# ---------------------------------------------------------------- delete


def delete(broker: Broker, vpn: str, command: c.Delete) -> None:
    """Delete a queue. Its name is free at once, and none of its messages is delivered any more
    (S7). `remove_messages` removes them, over several steps."""
    queue = broker.find(vpn, command.queue)
    if queue is None:
        raise no_such_queue(command.queue, vpn)
    withdraw(broker, queue)
    delete_withdrawn(broker, queue)


def delete_withdrawn(broker: Broker, queue: Queue) -> None:
    """Delete a queue that nothing finds any more."""
    cancel_all(broker, queue)
    told = {"ended": f"queue {queue.definition.name!r} was deleted"}
    for one in queue.header.subscriptions:
        if one.broker is None:
            broker.emit(Reply(one.topic, one.partition, one.id, told, kind="Ended"))
            unbind(broker, queue, one.id, one.session)
    queue.header.deleted = True
    queue.header.faulted = ""
    broker.touch(queue)
    broker.queue_event(queue, "deleted")
    begin(broker, queue, c.Delete(queue=queue.definition.name), bounded=False)
    if not queue.header.stands_for:
        _emit_entry(broker, queue.definition.vpn, queue.definition.name, "")


def remove_messages(
    broker: Broker, queue: Queue, task: Task, command: c.Delete, budget: Budget
) -> bool:
    """Remove a deleted queue's messages, and then the queue."""
    part = wanted(broker, queue, task, None, None, budget, moving=True)
    apply(broker, queue, part.rows, Event.DELETE)
    if part.last:
        broker.drop_queue(queue)
    return part.last


# ---------------------------------------------------------------- the rest


def shutdown(broker: Broker, queue: Queue, command: c.Shutdown) -> None:
    """Shut down or open ingress and egress independently (H5)."""
    queue.header.ingress = not command.ingress
    queue.header.egress = not command.egress
    queue.wanted = True
    broker.touch(queue)
    broker.queue_event(queue, "shutdown", ingress=command.ingress, egress=command.egress)


def purge(broker: Broker, queue: Queue, task: Task, command: c.Purge, budget: Budget) -> bool:
    """Remove active messages by predicate (R5), messages by ids, or all; answers how many."""
    ranges = parse_ranges(command.ids) if command.ids is not None else None
    change = not command.dry_run
    part = wanted(broker, queue, task, command.where, ranges, budget, thaw=change, moving=True)
    here, others = split_moving(broker, queue, command, part.rows)
    if change:
        reason = because(command, command.where or "")
        apply(broker, queue, here, Event.PURGE, reason=reason)
    task.result = task.add("n", len(here) + others)
    return part.last


def existing_topics(broker: Broker, vpn: str, command: c.ExistingTopics) -> None:
    """Note which captured topics exist in Kafka. The engine sends that list."""
    broker.header.captured = command.topics


def records_lost(broker: Broker, vpn: str, command: c.RecordsLost) -> None:
    """Write an event: records were deleted before the engine read them. For a topic of the VPN
    there is one event; for any other topic, one for each queue that captures it. Sessions whose
    commands are lost end."""
    own = topics.split(command.topic)
    if own is not None:
        names = [""] if own[0] == vpn else []
    else:
        of_vpns = dict(queues_of_record(broker, command.topic))
        names = [queue.definition.name for queue in of_vpns.get(vpn, ())]
    for name in names[: broker.limits.events]:
        broker.event(
            command.event if command.event in OF_TOPICS else OF_TOPICS[0], vpn, name,
            topic=command.topic, records=command.records, reader=command.reader,
        )  # fmt: skip
    if own == (vpn, topics.COMMANDS) and command.reader == "engine":
        # There may be acks among them, for messages that a consumer which lives on would hold for
        # good. It subscribes again (C3).
        for session in sorted(session for session in broker.sessions if session[0] == vpn):
            end_lost(broker, session, "commands lost")
