"""The definition of a bridge (H1–H3), and the check that bridges do not form a circle.

A bridge leads from one broker of a home to another and carries the topics of its subscriptions. In
a circle of bridges a message would go round for ever, so a bridge that closes one is refused. The
check is conservative: bridges form a circle if each carries some topic that the new one carries
too.

One end may be in another home or another VPN, given by its address:

    kafka://HOST:PORT[,HOST:PORT…][/VPN][?broker=NAME]    another lakequeue, on another Kafka
    memory://NAME[/VPN][?broker=NAME]                     another engine in this process
    vpn://NAME[?broker=NAME]                              another VPN of this home

The default VPN has the name of the bridge's own VPN. The default broker is the first one of the
other home; in another VPN of this home, it is the same broker. Such a bridge is defined at both
ends under one name: with an address as `to` where it leaves, and as `from` where it arrives. So an
end accepts only bridges that it expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from ..protocol import ConfigError, Problem
from ..protocol.patterns import REGEX, TOPIC, kind_of, matches
from . import definition_values as read

PER_DESTINATION, NONE = "per-destination", "none"
BRIDGE_NAME_MAX = 150  # characters; the endpoint's queue name adds a prefix


def _name(value: object) -> str:
    name = read.queue_name(value)
    if len(name) > BRIDGE_NAME_MAX:
        raise ValueError(f"must have at most {BRIDGE_NAME_MAX} characters")
    return name


def _end(value: object) -> str:
    """A broker of this home, or an address."""
    name = read.queue_name(value)
    if is_address(name):
        far_address(name)
    return name


def _subscriptions(value: object) -> tuple[str, ...]:
    found = read.topic_patterns([value] if isinstance(value, str) else value)
    if not found:
        raise ValueError("must be a list of one or more topics or patterns")
    return found


class BridgeDefinition(msgspec.Struct, frozen=True, kw_only=True, rename={"origin": "from"}):
    """A bridge's definition, checked and with every default resolved.

    origin (`from` on the wire), to: names of brokers; one of them may be an address.
    max_spool_usage: bytes that may wait at the near broker, None: the default of a queue.
    credentials: the name of a file that only the engine reads.
    """

    name: Annotated[str, _name]
    vpn: Annotated[str, read.vpn_name] = "default"
    origin: Annotated[str, _end]
    to: Annotated[str, _end]
    subscriptions: Annotated[tuple[str, ...], _subscriptions]
    lanes: Annotated[str, read.choice(PER_DESTINATION, NONE)] = PER_DESTINATION  # H3; or "none", H2
    max_spool_usage: Annotated[int | None, read.size] = None
    credentials: Annotated[str | None, read.broker_name] = None

    @property
    def leaves(self) -> bool:
        """Whether it leads to another home."""
        return is_in_another_home(self.to)

    @property
    def far_vpn(self) -> str | None:
        """The other VPN of this home that it leads to, or None."""
        return far_address(self.to).place if is_vpn(self.to) else None

    @property
    def far_broker(self) -> str | None:
        """The broker of this home that it leads to; None if it leads to another home."""
        if is_vpn(self.to):
            return far_address(self.to).broker or self.origin
        return None if self.leaves else self.to

    @property
    def arrives(self) -> bool:
        """Whether it is the far end of a bridge from another home or VPN."""
        return is_address(self.origin)

    @property
    def expects_home(self) -> bool:
        """Whether it is the far end of a bridge from another home."""
        return is_in_another_home(self.origin)

    @property
    def carrier(self) -> str:
        """The broker of this home that has an end: the near one, or the far one if it arrives."""
        return self.to if self.arrives else self.origin


_KEYS = read.keys_of(BridgeDefinition)
_REQUIRED = ("name", "from", "to", "subscriptions")


def try_bridge(mapping: object, where: str = "") -> tuple[BridgeDefinition | None, list[Problem]]:
    """Read a bridge's definition; returns it and its problems."""
    problems: list[Problem] = []

    def report(key: str, value: object, allowed: str) -> None:
        problems.append(Problem(where, key, read.shown(value), allowed))

    if not isinstance(mapping, Mapping):
        report("bridge", mapping, f"must be a mapping of keys: {', '.join(_KEYS)}")
        return None, problems
    values = read.read_keys(mapping, _KEYS, report)
    for key in _REQUIRED:
        if mapping.get(key) is None:
            report(key, None, "is required")
    there = values.get("to", "")
    if is_vpn(there) and far_address(there).place == values.get("vpn", "default"):
        report("to", there, "is the VPN where it begins; a bridge joins two VPNs, or two brokers")
    if values.get("origin") is not None and values.get("origin") == values.get("to"):
        report("to", values["to"], "is the broker where it begins; a bridge joins two brokers")
    elif is_address(values.get("to", "")) and is_address(values.get("origin", "")):
        report("from", values["origin"], "must be a broker of this home, since `to` is an address")
    if "credentials" in values and not values.get("to", "").startswith(f"{KAFKA}://"):
        allowed = f"are for a bridge that leads to another Kafka: to: {KAFKA}://…"
        report("credentials", values["credentials"], allowed)
    return (None if problems else BridgeDefinition(**values)), problems


def unknown_ends(bridge: BridgeDefinition, brokers: Iterable[str]) -> list[tuple[str, str]]:
    """The ends of a bridge, as key and name, that should be brokers of this home but are not."""
    near = None if bridge.arrives else bridge.origin
    ends = (("from", near), ("to", bridge.far_broker))
    return [(key, end) for key, end in ends if end is not None and end not in brokers]


def parse_bridge(mapping: object, where: str = "") -> BridgeDefinition:
    """Read a bridge's definition. Raises `ConfigError` with all problems (Q7)."""
    definition, problems = try_bridge(mapping, where)
    if definition is None:
        raise ConfigError(problems)
    return definition


def bridge_to_wire(definition: BridgeDefinition) -> dict[str, Any]:
    """A mapping from which `parse_bridge` makes an equal definition."""
    given: dict[str, Any] = msgspec.to_builtins(definition)
    return {key: value for key, value in given.items() if value is not None}


# ---------------------------------------------------------------- circles


def circle(new: BridgeDefinition, others: Iterable[BridgeDefinition]) -> list[str] | None:
    """The names of the bridges of a circle that the new one would close, the new one first; None if
    it closes none."""
    onward: dict[tuple[str, str], list[BridgeDefinition]] = {}
    for one in others:
        itself = (one.vpn, one.name) == (new.vpn, new.name)
        shares = any(overlap(a, b) for a in one.subscriptions for b in new.subscriptions)
        if shares and not itself and not one.arrives:
            onward.setdefault(_begin(one), []).append(one)
    if new.arrives:
        return None
    paths = [(_end_of(new), [new.name])]
    seen = {_end_of(new)}
    while paths:
        at, names = paths.pop(0)
        if at == _begin(new):
            return names
        for one in onward.get(at, ()):
            end = _end_of(one)
            if end not in seen:
                seen.add(end)
                paths.append((end, [*names, one.name]))
    return None


def _begin(bridge: BridgeDefinition) -> tuple[str, str]:
    """The VPN and broker where a bridge begins."""
    return bridge.vpn, bridge.origin


def _end_of(bridge: BridgeDefinition) -> tuple[str, str]:
    """The VPN and broker where a bridge ends; for another home, values that match nothing here."""
    return bridge.far_vpn or bridge.vpn, bridge.far_broker or bridge.to


def circle_problem(where: str, names: list[str]) -> Problem:
    """The problem of a bridge that closes a circle."""
    others = ", ".join(map(repr, names[1:]))
    allowed = f"would bring messages back to where they began, through {others}"
    return Problem(where, "subscriptions", names[0], allowed)


def overlap(one: str, other: str) -> bool:
    """Whether some topic may match both patterns. A regular expression counts as overlapping with
    every pattern except a plain topic that it does not match."""
    kinds = kind_of(one), kind_of(other)
    if kinds[0] == TOPIC:
        return matches(other, one)
    if kinds[1] == TOPIC:
        return matches(one, other)
    if REGEX in kinds:
        return True
    return _wildcards_overlap(one.split("/"), other.split("/"))


def _wildcards_overlap(one: list[str], other: list[str]) -> bool:
    for a, b in zip(one, other, strict=False):
        if ">" in (a, b):
            return True
        if not _levels_overlap(a, b):
            return False
    return len(one) == len(other)


def _levels_overlap(a: str, b: str) -> bool:
    starts = a.removesuffix("*"), b.removesuffix("*")
    if a == starts[0] and b == starts[1]:
        return a == b
    if a == starts[0]:
        return a.startswith(starts[1])
    if b == starts[1]:
        return b.startswith(starts[0])
    return starts[0].startswith(starts[1]) or starts[1].startswith(starts[0])


# ---------------------------------------------------------------- addresses


KAFKA, MEMORY, VPN = "kafka", "memory", "vpn"
SHAPE = "kafka://HOST:PORT[/VPN][?broker=NAME]"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class FarAddress(NamedTuple):
    """The parts of an address. place: Kafka's hosts, an engine's name, or a VPN's; vpn, broker:
    None if not given."""

    scheme: str
    place: str
    vpn: str | None
    broker: str | None


def is_address(end: str) -> bool:
    """Whether an end of a bridge is an address: in another home, or another VPN."""
    return "://" in end


def is_in_another_home(end: str) -> bool:
    """Whether an end of a bridge is the address of another home."""
    return is_address(end) and not is_vpn(end)


def is_vpn(end: str) -> bool:
    """Whether an end of a bridge is in another VPN of this home."""
    return end.startswith(f"{VPN}://")


def far_address(text: str) -> FarAddress:
    """Parse an address. Raises ValueError with what is allowed."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise ValueError(f"must be {SHAPE} ({error})") from error
    if parts.scheme not in (KAFKA, MEMORY, VPN) or parts.fragment:
        raise ValueError(f"must be a broker of this home, {SHAPE} or vpn://NAME")
    if "@" in parts.netloc:
        raise ValueError(f"must be {SHAPE}; put credentials into a file, see `credentials`")
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
