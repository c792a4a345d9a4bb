"""Where the far end of a bridge is, where that is no broker of this home (H1).

    kafka://HOST:PORT[,HOST:PORT…][/VPN][?broker=NAME]    another lakequeue, on another Kafka
    memory://NAME[/VPN][?broker=NAME]                     another engine in this process
    vpn://NAME[?broker=NAME]                              another VPN of this home

Without a VPN it is the bridge's own, by name; without a broker the first one there, and of another
VPN the same one.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from . import definition_values as read

KAFKA, MEMORY, VPN = "kafka", "memory", "vpn"
SHAPE = "kafka://HOST:PORT[/VPN][?broker=NAME]"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class FarAddress(NamedTuple):
    """An address, taken apart. place: Kafka's addresses, an engine's name, or a VPN's; vpn, broker:
    None where they are not said."""

    scheme: str
    place: str
    vpn: str | None
    broker: str | None


def is_address(end: str) -> bool:
    """Whether an end of a bridge is in another home, or another VPN."""
    return "://" in end


def is_vpn(end: str) -> bool:
    """Whether an end of a bridge is in another VPN of this home."""
    return end.startswith(f"{VPN}://")


def far_address(text: str) -> FarAddress:
    """Take an address apart. Raises ValueError with what is allowed."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ValueError(f"must be {SHAPE} ({error})") from error
    if parts.scheme not in (KAFKA, MEMORY, VPN) or parts.fragment:
        raise ValueError(f"must be a broker of this home, {SHAPE} or vpn://NAME")
    if "@" in parts.netloc:
        raise ValueError(f"must be {SHAPE}; credentials stand in a file, see `credentials`")
    pattern = _HOST if parts.scheme == KAFKA else _NAME
    if not all(pattern.fullmatch(one) for one in parts.netloc.split(",")):
        raise ValueError(f"must be {SHAPE}")
    vpn = parts.path.removeprefix("/")
    if vpn and parts.scheme == VPN:
        raise ValueError("must be vpn://NAME[?broker=NAME]")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if given.keys() - {"broker"}:
        raise ValueError(f"must be {SHAPE}, without any other option")
    broker = given.get("broker")
    return FarAddress(
        parts.scheme,
        parts.netloc,
        read.vpn_name(vpn) if vpn else None,
        None if broker is None else read.broker_name(broker),
    )
