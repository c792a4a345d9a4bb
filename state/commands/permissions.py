"""The sender of a command, and its permissions.

Permissions. A client has one level for a queue, which includes all lower ones:

    no-access < read-only < consume < modify-topic < delete

A queue's owner and the VPN's administrators may do everything. Other clients have the level that
`permissions` names for them, else `permission`. Publishing is not a command: Kafka's ACLs decide
which clients may write to a VPN's publish topic.

Signatures. A signature names the client, its session, a number that the session counts up, and the
time. As in IPsec, the broker remembers each session's highest number, and which of the `WINDOW`
numbers below it have arrived. It refuses repeated and older numbers, and accepts commands out of
order. After `SKEW_MS` of silence it forgets a session, whose commands are too old by then.

Ages are measured by the step's time, which never runs ahead of waiting commands. So a command does
not age in Kafka while the engine is down. The step's time may be far behind, as when a home begins.
Then newer signatures are accepted, and their sessions are kept until it has caught up.
"""

from __future__ import annotations

from typing import Any

from ...definitions import QueueDefinition
from ...definitions.definition import PERMISSIONS, name_of
from ...protocol import commands as c
from ...protocol.errors import PermissionDenied
from ...protocol.signing import (
    ENGINE_CLIENT,
    Signature,
    Speaker,
    engines_key,
    is_signed,
    split,
    unseal,
)
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
    """Whether a client has this level. Without a speaker, commands need no signature."""
    if speaker is None or speaker.admin or speaker.client == definition.owner:
        return True
    return PERMISSIONS.index(permission_of(speaker, definition)) >= PERMISSIONS.index(level)


def permission_of(speaker: Speaker, definition: QueueDefinition) -> str:
    """The level of a client that is neither owner nor administrator."""
    return dict(definition.permissions).get(speaker.client, definition.permission)


def check_permission(broker: Broker, vpn: str, command: Any) -> None:
    """Raise PermissionDenied if the speaker may not send this command. It changes nothing."""
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
        return  # a new queue, or a command that is refused because there is none
    check_level(speaker, queue.definition.name, queue.definition, NEEDS[kind])
    _check_subscription(speaker, queue, command)


def check_level(speaker: Speaker, name: str, definition: QueueDefinition, level: str) -> None:
    """Raise PermissionDenied if a client has a lower level than this for a queue."""
    if not may(speaker, definition, level):
        has = permission_of(speaker, definition)
        raise PermissionDenied(
            f"client {speaker.client!r} has {has!r} on queue {name!r}; this needs {level!r}",
            name,
        )


def queue_of(command: Any) -> str:
    """The queue that a command is about; empty if a definition names none."""
    if isinstance(command, c.Define):
        identity = name_of(command.definition)
        return identity[1] if identity else ""
    return str(command.queue)


def _check_subscription(speaker: Speaker, queue: Queue, command: Any) -> None:
    """Only the session of a subscription may use it."""
    session = command.session if isinstance(command, c.Subscribe) else ""
    if session and not is_own(speaker, session):
        raise _others_session(speaker, session)
    bound = queue.subscription(getattr(command, "subscription", ""))
    if bound is None:
        return
    if bound.client != speaker.client or (bound.session and not is_own(speaker, bound.session)):
        raise PermissionDenied(
            f"subscription {bound.id!r} does not belong to session {speaker.session!r}",
            queue.definition.name,
        )


def is_own(speaker: Speaker, session: str) -> bool:
    """Whether a session is the speaker's. A session in memory has parts with their own
    heartbeats."""
    return session == speaker.session or session.startswith(f"{speaker.session}/")


def _others_session(speaker: Speaker, session: str) -> PermissionDenied:
    return PermissionDenied(
        f"session: {session!r} – client {speaker.client!r} signs as session {speaker.session!r}"
    )


# ---------------------------------------------------------------- signatures


WINDOW = 64
SKEW_MS = 600_000
SESSIONS_MAX = 1_000  # of a client, within that time


def set_clients(broker: Broker, command: c.Clients) -> None:
    """Replace the list of clients."""
    header = broker.header
    header.auth = command.required
    header.clients = {f"{one.vpn}/{one.name}": (one.sealed, one.admin) for one in command.clients}


def speaker_of(broker: Broker, vpn: str, value: bytes | None) -> tuple[Speaker | None, bytes]:
    """The speaker and the unsigned command; the speaker is None if signatures are not required.
    Raises PermissionDenied without a valid signature, ValueError for an incomplete one."""
    value = value or b""
    found = split(value)
    if not broker.header.auth:
        return None, value if found is None else found[3]
    if found is None:
        raise PermissionDenied("the command is not signed; this engine requires signatures")
    signature, code, signed_part, command = found
    key, admin = _key_of(broker, vpn, signature.client)
    if key is None or not is_signed(key, vpn, code, signed_part):
        raise PermissionDenied(
            f"client {signature.client!r} of VPN {vpn!r} is unknown, or has another key than the "
            "one that signed this command"
        )
    if signature.broker not in (broker.home.number, *broker.header.speaks_for):
        raise PermissionDenied(f"the command is for broker {signature.broker}")
    _take_number(broker, vpn, signature)
    return Speaker(signature.client, signature.session, admin), command


def command_of(value: bytes | None) -> bytes | None:
    """The command of a record, signed or not, to find out whom to answer."""
    try:
        found = split(value or b"")
    except ValueError:
        return value
    return value if found is None else found[3]


def heard_as(vpn: str, client: str, to: int, own: int) -> str:
    """The key under which a client's numbers are kept. Commands to a removed broker have numbers of
    their own (M4)."""
    return f"{vpn}/{client}" if to == own else f"{vpn}/{client}@{to}"


def _key_of(broker: Broker, vpn: str, client: str) -> tuple[bytes | None, bool]:
    if client == ENGINE_CLIENT:
        return engines_key(broker.home.secret), True
    registered = broker.header.clients.get(f"{vpn}/{client}")
    if registered is None:
        return None, False
    return unseal(broker.home.secret, vpn, client, registered[0]), registered[1]


def _take_number(broker: Broker, vpn: str, signature: Signature) -> None:
    """Accept a signature's number once. Raises PermissionDenied."""
    now = broker.now
    if signature.time < now - SKEW_MS:
        raise PermissionDenied(
            f"the command was signed at {signature.time}, and the engine's time is {now}: it may "
            f"be at most {SKEW_MS // 60_000} minutes old"
        )
    name = heard_as(vpn, signature.client, signature.broker, broker.home.number)
    sessions = broker.header.heard.setdefault(name, {})
    highest, seen, _ = sessions.get(signature.session, (0, 0, 0))
    ahead = signature.seq - highest
    if ahead > 0:
        seen = ((seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
        highest = signature.seq
    elif ahead <= -WINDOW or seen >> -ahead & 1:
        raise PermissionDenied(
            f"command {signature.seq} of session {signature.session!r} was received before"
        )
    else:
        seen |= 1 << -ahead
    if signature.session not in sessions and len(sessions) >= SESSIONS_MAX:
        for session in [s for s, (_, _, last) in sessions.items() if last < now - SKEW_MS]:
            del sessions[session]
        if len(sessions) >= SESSIONS_MAX:
            raise PermissionDenied(
                f"client {signature.client!r} has {len(sessions)} sessions, the most allowed"
            )
    sessions[signature.session] = (highest, seen, max(now, signature.time))
