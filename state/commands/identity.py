"""Who says a command: the proof of signed commands, and that none is carried out twice.

Theory. A signature names the client, its session, a number that the session counts up, and the
time. The broker remembers of each session the highest number and which of the `WINDOW` below it
have come, as IPsec does: what is older or came already is refused, what overtook another is not. A
session that was silent for longer than `SKEW_MS` is forgotten; its commands are too old by then.

Time is the step's, which does not run ahead of commands that wait: what stood in Kafka while the
engine was away is as young as it was when it came. It may be far behind, as when a home begins: so
what was signed later than it is taken, and its session is remembered for as long as that is new.
"""

from __future__ import annotations

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

WINDOW = 64
SKEW_MS = 600_000
SESSIONS_MAX = 1_000  # of a client, within that time


def know(broker: Broker, command: c.Clients) -> None:
    """From now on these are the clients, and no others."""
    header = broker.header
    header.auth = command.required
    header.clients = {f"{one.vpn}/{one.name}": (one.sealed, one.admin) for one in command.clients}


def speaker_of(broker: Broker, vpn: str, value: bytes | None) -> tuple[Speaker | None, bytes]:
    """Who says this, and the command. None: nobody is asked. Raises PermissionDenied where the
    engine asks and has no proof, ValueError for half a signature."""
    value = value or b""
    found = split(value)
    if not broker.header.auth:
        return None, value if found is None else found[3]
    if found is None:
        raise PermissionDenied("the command is not signed, and this engine takes no others")
    signature, code, said, command = found
    key, admin = _known(broker, vpn, signature.client)
    if key is None or not is_signed(key, vpn, code, said):
        raise PermissionDenied(
            f"client {signature.client!r} of VPN {vpn!r} is not known with the key that signed this"
        )
    if signature.broker not in (broker.home.number, *broker.header.speaks_for):
        raise PermissionDenied(f"the command is for broker {signature.broker}")
    _take_number(broker, vpn, signature)
    return Speaker(signature.client, signature.session, admin), command


def command_of(value: bytes | None) -> bytes | None:
    """What a record says, signed or not, for whom to answer."""
    try:
        found = split(value or b"")
    except ValueError:
        return value
    return value if found is None else found[3]


def heard_as(vpn: str, client: str, to: int, own: int) -> str:
    """Whose numbers these are: what was said to a removed broker is counted by itself (M4)."""
    return f"{vpn}/{client}" if to == own else f"{vpn}/{client}@{to}"


def _known(broker: Broker, vpn: str, client: str) -> tuple[bytes | None, bool]:
    if client == ENGINE_CLIENT:
        return engines_key(broker.home.secret), True
    known = broker.header.clients.get(f"{vpn}/{client}")
    if known is None:
        return None, False
    return unseal(broker.home.secret, vpn, client, known[0]), known[1]


def _take_number(broker: Broker, vpn: str, signature: Signature) -> None:
    """Once only. Raises PermissionDenied."""
    now = broker.now
    if signature.time < now - SKEW_MS:
        raise PermissionDenied(
            f"the command was signed at {signature.time}, and the engine's time is {now}: at most "
            f"{SKEW_MS // 60_000} minutes may lie between them"
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
            f"command {signature.seq} of session {signature.session!r} was heard before"
        )
    else:
        seen |= 1 << -ahead
    if signature.session not in sessions and len(sessions) >= SESSIONS_MAX:
        for session in [s for s, known in sessions.items() if known[2] < now - SKEW_MS]:
            del sessions[session]
        if len(sessions) >= SESSIONS_MAX:
            raise PermissionDenied(
                f"client {signature.client!r} has {len(sessions)} sessions, as many as may be"
            )
    sessions[signature.session] = (highest, seen, max(now, signature.time))
