"""What a client may do with a queue: levels, each with the rights of those before.

    no-access < read-only < consume < modify-topic < delete

A queue's owner and the VPN's administrators may do everything. Others have what `permissions` says
of them, else `permission`. Publishing is not a command: Kafka's ACLs say who
writes to a VPN's publish topic.
"""

from __future__ import annotations

from typing import Any

from ...definitions import QueueDefinition
from ...definitions.definition import PERMISSIONS, name_of
from ...protocol import commands as c
from ...protocol.errors import PermissionDenied
from ...protocol.signing import Speaker
from ..queue.broker import Broker
from ..queue.queue import Queue

NO_ACCESS, READ_ONLY, CONSUME, MODIFY_TOPIC, DELETE = PERMISSIONS

NEEDS: dict[type, str] = {
    c.Describe: READ_ONLY, c.Browse: READ_ONLY,
    c.Subscribe: CONSUME, c.SetBacklog: CONSUME, c.Unsubscribe: CONSUME, c.Ack: CONSUME,
    c.TransportAck: CONSUME, c.Cancel: CONSUME, c.Reject: CONSUME, c.Renew: CONSUME,
    c.Returned: CONSUME,
    c.SubscribeTopic: MODIFY_TOPIC, c.UnsubscribeTopic: MODIFY_TOPIC,
    c.Purge: DELETE, c.Move: DELETE, c.Edit: DELETE, c.Redrive: DELETE, c.Shutdown: DELETE,
    c.Delete: DELETE, c.MoveQueue: DELETE, c.Define: DELETE,
}  # fmt: skip
OF_ADMIN = (c.Captures, c.Events, c.Bridge, c.DeleteBridge, c.Bridges, c.DescribeBridge)
OF_ALL = (c.Begin, c.Queues, c.Usage, c.Heartbeat, c.Bye)


def may(speaker: Speaker | None, definition: QueueDefinition, level: str) -> bool:
    """Whether a client has this right; nobody is asked where there is no speaker."""
    if speaker is None or speaker.admin or speaker.client == definition.owner:
        return True
    return PERMISSIONS.index(permission_of(speaker, definition)) >= PERMISSIONS.index(level)


def permission_of(speaker: Speaker, definition: QueueDefinition) -> str:
    """What a client that is neither owner nor administrator has."""
    return dict(definition.permissions).get(speaker.client, definition.permission)


def check_permission(broker: Broker, vpn: str, command: Any) -> None:
    """Raise PermissionDenied for what the speaker may not do, before anything is done."""
    speaker = broker.speaker
    if speaker is None or speaker.admin:
        return
    kind = type(command)
    if kind in OF_ADMIN:
        name = kind.__struct_config__.tag
        why = f"client {speaker.client!r} is no administrator: {name!r} is refused"
        raise PermissionDenied(why)
    if isinstance(command, (c.Heartbeat, c.Bye)) and not is_own(speaker, command.session):
        raise _others_session(speaker, command.session)
    if kind in OF_ALL:
        return
    queue = broker.find(vpn, queue_of(command))
    if queue is None:
        return  # the sentence that there is none, or a new definition
    check_level(speaker, queue.definition.name, queue.definition, NEEDS[kind])
    _check_subscription(speaker, queue, command)


def check_level(speaker: Speaker, name: str, definition: QueueDefinition, level: str) -> None:
    """Raise PermissionDenied if a client has less than this on a queue."""
    if not may(speaker, definition, level):
        has = permission_of(speaker, definition)
        raise PermissionDenied(
            f"client {speaker.client!r} has {has!r} on queue {name!r}, and this needs {level!r}",
            name,
        )


def queue_of(command: Any) -> str:
    """The queue that a command is about; empty where a definition names none."""
    if isinstance(command, c.Define):
        identity = name_of(command.definition)
        return identity[1] if identity else ""
    return str(command.queue)


def _check_subscription(speaker: Speaker, queue: Queue, command: Any) -> None:
    """What a subscription holds is its session's affair: nobody speaks for another's."""
    session = command.session if isinstance(command, c.Subscribe) else ""
    if session and not is_own(speaker, session):
        raise _others_session(speaker, session)
    bound = queue.subscription(getattr(command, "subscription", ""))
    if bound is None:
        return
    if bound.client != speaker.client or (bound.session and not is_own(speaker, bound.session)):
        raise PermissionDenied(
            f"subscription {bound.id!r} is another session's than {speaker.session!r}",
            queue.definition.name,
        )


def is_own(speaker: Speaker, session: str) -> bool:
    """Whether a session is the speaker's; one in memory has parts, each with heartbeats."""
    return session == speaker.session or session.startswith(f"{speaker.session}/")


def _others_session(speaker: Speaker, session: str) -> PermissionDenied:
    return PermissionDenied(
        f"client {speaker.client!r} speaks as session {speaker.session!r}, not {session!r}"
    )
