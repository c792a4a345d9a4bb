"""A whole configuration: system, VPNs, brokers, queues, bridges, clients (Q7, S8, S9, S10, B4); and
the commands that apply it.

A configuration is a mapping of optional sections. One pass reads it and collects the problems of
all sections. Only a configuration without problems becomes a `Configuration` (Q7). `conf` reads the
file.

Limits on what one process must keep always have a number, never "unlimited". A VPN has no limits of
its own unless the configuration sets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec

from ..protocol import ConfigError, Problem, commands
from . import definition_values as read
from .bridge import (
    BridgeDefinition,
    bridge_to_wire,
    circle,
    circle_problem,
    try_bridge,
    unknown_ends,
)
from .brokers import DEFAULT_BROKER, read_brokers, wrong_hosts
from .clients import ClientEntry, read_auth, read_clients
from .definition import (
    NEEDS_AUTH,
    QueueDefinition,
    dead_message_ring,
    is_protected,
    name_of,
    to_wire,
    try_definition,
)

DEFAULT_VPN = "default"

Report = Callable[[str, str, object, str], None]


class SystemLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a broker (S3, S8, B4, S6) and its alert thresholds in percent (S9)."""

    max_spool_usage: Annotated[int, read.size] = 100_000_000_000
    max_spool_files: Annotated[int, read.count(1)] = 65_536
    max_delivered_unacked: Annotated[int, read.count(1)] = 1_000_000
    on_no_match: Annotated[str, read.choice("nack", "discard")] = "nack"  # S6
    heartbeat_timeout_ms: Annotated[int, read.positive_duration] = 15_000  # C3
    spool_usage_high_percent: Annotated[float, read.percent] = 80.0
    spool_usage_clear_percent: Annotated[float, read.percent] = 60.0
    spool_files_high_percent: Annotated[float, read.percent] = 80.0
    spool_files_clear_percent: Annotated[float, read.percent] = 60.0
    delivered_unacked_high_percent: Annotated[float, read.percent] = 80.0
    delivered_unacked_clear_percent: Annotated[float, read.percent] = 60.0


class VpnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a message VPN; None means no limit of its own (S3, S9)."""

    max_spool_usage: Annotated[int | None, read.size] = None
    spool_usage_high_percent: Annotated[float, read.percent] = 80.0
    spool_usage_clear_percent: Annotated[float, read.percent] = 60.0


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration, checked and complete. vpns: every VPN that a queue or bridge names; groups:
    the group of each broker that is in one."""

    system: SystemLimits = SystemLimits()
    vpns: dict[str, VpnLimits] = msgspec.field(default_factory=lambda: {DEFAULT_VPN: VpnLimits()})
    brokers: tuple[str, ...] = (DEFAULT_BROKER,)
    groups: dict[str, str] = {}
    queues: tuple[QueueDefinition, ...] = ()
    bridges: tuple[BridgeDefinition, ...] = ()
    auth: bool = False  # commands must be signed
    clients: tuple[ClientEntry, ...] = ()


_SYSTEM_KEYS = read.keys_of(SystemLimits)
SECTIONS = ("system", "vpns", "brokers", "queues", "bridges", "auth", "clients")


def parse_configuration(mapping: object) -> Configuration:
    """Read a configuration. Raises `ConfigError` with all problems of the file (Q7)."""
    problems: list[Problem] = []

    def report(where: str, key: str, value: object, allowed: str) -> None:
        problems.append(Problem(where, key, read.shown(value), allowed))

    if not isinstance(mapping, Mapping):
        allowed = f"a configuration is a mapping of sections: {', '.join(SECTIONS)}"
        raise ConfigError([Problem("", "configuration", read.shown(mapping), allowed)])
    for key, value in mapping.items():
        if key not in SECTIONS:
            report("", read.shown_key(key), value, read.unknown_key(key, SECTIONS))
    system = SystemLimits(**_limits(mapping.get("system"), "system", SystemLimits, report))
    vpns = _vpns(mapping.get("vpns"), report)
    brokers, groups = read_brokers(mapping.get("brokers"), report)
    queues = _queues(mapping.get("queues"), problems, report)
    _check_dead_message_queues(queues, report)
    for index, queue in queues:
        allowed = "must be a broker that the section brokers names"
        for key, value, why in wrong_hosts(queue, brokers, groups, allowed):
            report(_location(index, queue.name), key, value, why)
    bridges = _bridges(mapping.get("bridges"), brokers, problems, report)
    if vpns:
        named = [(_location(index, queue.name), queue.vpn) for index, queue in queues]
        named += [(where, vpn) for where, bridge in bridges for vpn in _vpns_of(bridge)]
        for where, vpn in named:
            if vpn not in vpns and vpn != DEFAULT_VPN:
                allowed = f"must be a VPN that the section vpns names: {', '.join(sorted(vpns))}"
                report(where, "vpn", vpn, allowed)
    auth = read_auth(mapping.get("auth"), report)
    clients = read_clients(mapping.get("clients"), report)
    _check_auth(auth, queues, report)
    problems += names_within_others([*_named(queues, bridges), *vpns], brokers)
    if problems:
        raise ConfigError(problems)
    return Configuration(
        system=system,
        vpns={**{name: VpnLimits() for name in _named(queues, bridges)}, **vpns},
        brokers=brokers,
        groups=groups,
        queues=tuple(queue for _, queue in queues),
        bridges=tuple(bridge for _, bridge in bridges),
        auth=auth,
        clients=clients,
    )


def _check_auth(auth: bool, queues: list[tuple[int, QueueDefinition]], report: Report) -> None:
    """Report permissions that have no effect, so that nobody believes a queue is protected."""
    for index, queue in queues:
        if not auth and is_protected(queue):
            report(_location(index, queue.name), "owner", queue.owner, NEEDS_AUTH)


def _named(
    queues: list[tuple[int, QueueDefinition]], bridges: list[tuple[str, BridgeDefinition]]
) -> list[str]:
    """The default VPN and the VPNs that queues and bridges name, in order."""
    named = [one.vpn for _, one in queues]
    named += [vpn for _, one in bridges for vpn in _vpns_of(one)]
    return list(dict.fromkeys([DEFAULT_VPN, *named]))


def _vpns_of(bridge: BridgeDefinition) -> list[str]:
    return [bridge.vpn] if bridge.far_vpn is None else [bridge.vpn, bridge.far_vpn]


def names_within_others(vpns: Iterable[str], brokers: Iterable[str]) -> list[Problem]:
    """The VPNs and brokers whose topics begin with another one's name. A client whose Kafka ACLs
    allow the other one's prefix could access them too."""
    names = [("vpns", vpn) for vpn in sorted(set(vpns))] + [("brokers", b) for b in brokers]
    owners = {name: "VPN" if where == "vpns" else "broker" for where, name in reversed(names)}
    problems = []
    for where, name in names:
        parts = name.split(".")
        within = [".".join(parts[:n]) for n in range(1, len(parts))]
        if where == "brokers" and owners[name] == "VPN":
            within.append(name)
        for other in filter(owners.__contains__, within):
            kind = owners[other]
            allowed = f"its topics would be among the topics of {kind} {other!r}: rename one"
            problems.append(Problem(f"{where} {name!r}", "name", name, allowed))
    return problems


def _limits(
    section: object, where: str, kind: type[SystemLimits] | type[VpnLimits], report: Report
) -> dict[str, Any]:
    """The valid values of a section of limits, by attribute."""
    keys = read.keys_of(kind)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        report("", where, section, f"must be a mapping of keys: {', '.join(keys)}")
        return {}
    values = read.read_keys(section, keys, partial(report, where))
    limits = kind(**values)
    for attribute in kind.__struct_fields__:
        if attribute.endswith("_clear_percent"):
            high_key = attribute.replace("_clear_", "_high_")
            clear, high = getattr(limits, attribute), getattr(limits, high_key)
            if clear > high:
                report(where, attribute, clear, f"must not be above {high_key}, {high}")
    return values


def _vpns(section: object, report: Report) -> dict[str, VpnLimits]:
    """The section `vpns`: limits by name."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        report("", "vpns", section, "must be a mapping of VPN names to their limits")
        return {}
    vpns: dict[str, VpnLimits] = {}
    for name, limits in section.items():
        try:
            read.vpn_name(name)
        except ValueError as error:
            report("vpns", read.shown_key(name), name, f"a VPN's name {error}")
            continue
        vpns[name] = VpnLimits(**_limits(limits, f"vpns {name!r}", VpnLimits, report))
    return vpns


def _queues(
    section: object, problems: list[Problem], report: Report
) -> list[tuple[int, QueueDefinition]]:
    """The valid definitions of the section `queues`, with their indexes."""
    if section is None:
        return []
    if not isinstance(section, list | tuple):
        report("", "queues", section, "must be a list of queue definitions")
        return []
    queues: list[tuple[int, QueueDefinition]] = []
    first: dict[tuple[str, str], int] = {}
    for index, mapping in enumerate(section):
        identity = name_of(mapping)
        where = _location(index, identity[1] if identity else None)
        definition, found = try_definition(mapping, where)
        problems += found
        if definition is not None:
            queues.append((index, definition))
        if identity and first.setdefault(identity, index) != index:
            allowed = f"is defined already, as queues[{first[identity]}]; it is unique in its VPN"
            report(where, "name", identity[1], allowed)
    return queues


def _bridges(
    section: object, brokers: tuple[str, ...], problems: list[Problem], report: Report
) -> list[tuple[str, BridgeDefinition]]:
    """The valid definitions of the section `bridges`, with their locations. Names must be unique in
    a VPN, and bridges must not form a circle."""
    if section is None:
        return []
    if not isinstance(section, list | tuple):
        report("", "bridges", section, "must be a list of bridges")
        return []
    bridges: list[tuple[str, BridgeDefinition]] = []
    for index, mapping in enumerate(section):
        name = mapping.get("name") if isinstance(mapping, Mapping) else None
        where = f"bridges[{index}]" + (f" {read.shown(name)!r}" if isinstance(name, str) else "")
        bridge, found = try_bridge(mapping, where)
        problems += found
        if bridge is None:
            continue
        for key, broker in unknown_ends(bridge, brokers):
            allowed = f"must be a broker that the section brokers names: {', '.join(brokers)}"
            report(where, key, broker, allowed)
        if any((one.vpn, one.name) == (bridge.vpn, bridge.name) for _, one in bridges):
            report(where, "name", bridge.name, "is defined already; it is unique in its VPN")
        ring = circle(bridge, [one for _, one in bridges])
        if ring:
            problems.append(circle_problem(where, ring))
        bridges.append((where, bridge))
    return bridges


def _check_dead_message_queues(queues: list[tuple[int, QueueDefinition]], report: Report) -> None:
    """X5: dead message queues must not form a circle."""
    targets = {(q.vpn, q.name): q.dead_message_queue for _, q in queues}
    for index, queue in queues:

        def targets_of(name: str, vpn: str = queue.vpn) -> list[str | None]:
            return [targets.get((vpn, name))]

        ring = dead_message_ring(queue, targets_of)
        if ring:
            where = _location(index, queue.name)
            report(where, "dead_message_queue", queue.dead_message_queue, ring)


def _location(index: int, name: str | None) -> str:
    return f"queues[{index}]" + (f" {read.shown(name)!r}" if name else "")


# ---------------------------------------------------------------- commands


def configure_commands(
    configuration: Configuration,
    broker: str | None = None,
    numbers: Mapping[str, int] | None = None,
) -> list[tuple[str, bytes]]:
    """The commands that apply a configuration to a broker, each with its VPN. Only the first broker
    gets the queues and bridges: it keeps the directory and places them.

    broker: a broker of the configuration, None for the first; numbers: the brokers' numbers, by
    default their indexes.
    """

    def plain(value: Any) -> dict[str, Any]:
        return {
            k.removesuffix("_ms"): (f"{v}ms" if k.endswith("_ms") else v)
            for k, v in msgspec.structs.asdict(value).items()
            if v is not None
        }

    system = plain(configuration.system)
    vpns = {name: plain(limits) for name, limits in configuration.vpns.items()}
    first = next(iter(configuration.vpns), DEFAULT_VPN)
    out: list[tuple[str, commands.Command]] = []
    brokers = configuration.brokers
    if len(brokers) > 1:
        given = numbers or {name: number for number, name in enumerate(brokers)}
        groups = {
            name: configuration.groups[name] for name in given if name in configuration.groups
        }
        out.append((first, commands.Peers(brokers=dict(given), groups=groups)))
    out.append((first, commands.Configure(system=system, vpns=vpns)))
    if broker in (None, *brokers[:1]):
        out += [(q.vpn, commands.Define(definition=to_wire(q))) for q in configuration.queues]
        for one in configuration.bridges:
            out.append((one.vpn, commands.Bridge(definition=bridge_to_wire(one))))
    return [(vpn, commands.encode_command(command)) for vpn, command in out]
