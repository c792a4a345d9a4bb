"""What a bridge's definition says (H1–H3), and which bridges would go round in a circle.

Theory. A bridge is an arrow between two brokers of a home that carries the topics of its
subscriptions. A message that could come back to where it began would go round for ever, so a bridge
that closes a circle is refused. Whether it does is looked at on the safe side: a circle counts
where each of its bridges carries some topic that the new one carries too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..protocol import ConfigError, Problem
from ..protocol.patterns import REGEX, TOPIC, kind_of, matches
from . import definition_values as read

PER_DESTINATION, NONE = "per-destination", "none"
BRIDGE_NAME_MAX = 150  # its endpoint's name has it behind a prefix


class BridgeDefinition(msgspec.Struct, frozen=True, kw_only=True, rename={"origin": "from"}):
    """A bridge's definition, checked and with every default resolved. origin, to: names of brokers;
    `from` on the wire. max_spool_usage: bytes that may wait at the near broker, None: the default
    of a queue."""

    name: str
    vpn: str = "default"
    origin: str
    to: str
    subscriptions: tuple[str, ...]
    lanes: str = PER_DESTINATION  # H3; or "none", H2
    max_spool_usage: int | None = None


def _name(value: object) -> str:
    name = read.queue_name(value)
    if len(name) > BRIDGE_NAME_MAX:
        raise ValueError(f"must have at most {BRIDGE_NAME_MAX} characters")
    return name


def _far(value: object) -> str:
    name = read.queue_name(value)
    if "://" in name:
        raise ValueError(
            "must be a broker of this home; a bridge to another Kafka is not supported by this "
            "version"
        )
    return name


def _subscriptions(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise ValueError("must be a list of one or more topics or patterns")
    if len(given) > read.PATTERNS_MAX:
        raise ValueError(f"must be at most {read.PATTERNS_MAX} topics or patterns")
    for pattern in given:
        kind_of(pattern)
    return tuple(sorted(set(given)))


_KEYS: dict[str, tuple[str, read.Reader]] = {
    "name": ("name", _name),
    "vpn": ("vpn", read.vpn_name),
    "from": ("origin", read.queue_name),
    "to": ("to", _far),
    "subscriptions": ("subscriptions", _subscriptions),
    "lanes": ("lanes", read.choice(PER_DESTINATION, NONE)),
    "max_spool_usage": ("max_spool_usage", read.size),
}
_REQUIRED = ("name", "from", "to", "subscriptions")


def try_bridge(mapping: object, where: str = "") -> tuple[BridgeDefinition | None, list[Problem]]:
    """Read a bridge's definition; gives all that is wrong with it."""
    problems: list[Problem] = []

    def report(key: str, value: object, allowed: str) -> None:
        problems.append(Problem(where, key, read.shown(value), allowed))

    if not isinstance(mapping, Mapping):
        report("bridge", mapping, f"must be a mapping of keys: {', '.join(_KEYS)}")
        return None, problems
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if not isinstance(key, str) or key not in _KEYS:
            report(read.shown_key(key), value, read.unknown_key(key, _KEYS))
        elif value is not None:
            attribute, reader = _KEYS[key]
            try:
                values[attribute] = reader(value)
            except ValueError as error:
                report(key, value, read.reason(error))
    for key in _REQUIRED:
        if mapping.get(key) is None:
            report(key, None, "is required")
    if values.get("origin") is not None and values.get("origin") == values.get("to"):
        report("to", values["to"], "is the broker that it begins at; a bridge joins two brokers")
    return (None if problems else BridgeDefinition(**values)), problems


def parse_bridge(mapping: object, where: str = "") -> BridgeDefinition:
    """Read a bridge's definition; raises `ConfigError` with every problem (Q7)."""
    definition, problems = try_bridge(mapping, where)
    if definition is None:
        raise ConfigError(problems)
    return definition


def bridge_to_wire(definition: BridgeDefinition) -> dict[str, Any]:
    """The definition as a mapping that `parse_bridge` reads back to an equal one."""
    given: dict[str, Any] = msgspec.to_builtins(definition)
    return {key: value for key, value in given.items() if value is not None}


# ---------------------------------------------------------------- circles


def circle(new: BridgeDefinition, others: Iterable[BridgeDefinition]) -> list[str] | None:
    """The names of bridges that would bring a message of the new one back to where it began, that
    one first; None where there are none."""
    onward: dict[str, list[BridgeDefinition]] = {}
    for one in others:
        if one.name != new.name and one.vpn == new.vpn and _share_a_topic(one, new):
            onward.setdefault(one.origin, []).append(one)
    ways = [(new.to, [new.name])]
    seen = {new.to}
    while ways:
        at, names = ways.pop(0)
        if at == new.origin:
            return names
        for one in onward.get(at, ()):
            if one.to not in seen:
                seen.add(one.to)
                ways.append((one.to, [*names, one.name]))
    return None


def circle_problem(where: str, names: list[str]) -> Problem:
    """That a bridge closes a circle, as a sentence."""
    others = ", ".join(map(repr, names[1:]))
    allowed = f"would bring messages back to where they began, by way of {others}"
    return Problem(where, "subscriptions", names[0], allowed)


def _share_a_topic(one: BridgeDefinition, other: BridgeDefinition) -> bool:
    return any(overlap(a, b) for a in one.subscriptions for b in other.subscriptions)


def overlap(one: str, other: str) -> bool:
    """Whether some topic may match both patterns. Of regular expressions it is taken for granted,
    unless the other is a plain topic."""
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
