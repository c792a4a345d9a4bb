"""A whole configuration: system, VPNs, brokers, queues, bridges, clients (Q7, S8, S9, S10, B4); and
the commands that apply it.

A configuration is a mapping of optional sections. One pass reads it and collects the problems of
all sections. Only a configuration without problems becomes a `Configuration` (Q7). `conf` reads the
file.

A limit on the resources of one process always has a number, never "unlimited". A VPN has no limits
of its own unless the configuration sets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

Queues = list[tuple[str, QueueDefinition]]  # each with its location in the file
Bridges = list[tuple[str, BridgeDefinition]]


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
    for where, queue in queues:
        allowed = "must be a broker that the section brokers names"
        for key, value, why in wrong_hosts(queue, brokers, groups, allowed):
            report(where, key, value, why)
    bridges = _bridges(mapping.get("bridges"), brokers, problems, report)
    if vpns:
        named = [(where, queue.vpn) for where, queue in queues]
        named += [(where, vpn) for where, bridge in bridges for vpn in _vpns_of(bridge)]
        for where, vpn in named:
            if vpn not in vpns and vpn != DEFAULT_VPN:
                allowed = f"must be a VPN that the section vpns names: {', '.join(sorted(vpns))}"
                report(where, "vpn", vpn, allowed)
    auth = read_auth(mapping.get("auth"), report)
    clients = read_clients(mapping.get("clients"), report)
    for where, queue in queues:  # else users would believe that the queue is protected
        if not auth and is_protected(queue):
            report(where, "owner", queue.owner, NEEDS_AUTH)
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


def _named(queues: Queues, bridges: Bridges) -> list[str]:
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
    section: object, where: str, kind: type[SystemLimits] | type[VpnLimits], report: read.ReportAt
) -> dict[str, Any]:
    """The valid values of a section of limits, by attribute."""
    keys = read.keys_of(kind)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        report("", where, section, f"must be a mapping of keys: {', '.join(keys)}")
        return {}
    values = read.read_keys(section, keys, partial(report, where))
    read.check_thresholds(kind, values, partial(report, where))
    return values


def _vpns(section: object, report: read.ReportAt) -> dict[str, VpnLimits]:
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


def _queues(section: object, problems: list[Problem], report: read.ReportAt) -> Queues:
    """The valid definitions of the section `queues`, with their locations."""
    queues: Queues = []
    first: dict[tuple[str, str], int] = {}
    for index, mapping in enumerate(_items(section, "queues", "queue definitions", report)):
        identity = name_of(mapping)
        where = _location("queues", index, identity[1] if identity else None)
        definition, found = try_definition(mapping, where)
        problems += found
        if definition is not None:
            queues.append((where, definition))
        if identity and first.setdefault(identity, index) != index:
            allowed = f"is defined already, as queues[{first[identity]}]; it is unique in its VPN"
            report(where, "name", identity[1], allowed)
    return queues


def _bridges(
    section: object, brokers: tuple[str, ...], problems: list[Problem], report: read.ReportAt
) -> Bridges:
    """The valid definitions of the section `bridges`, with their locations. Names must be unique in
    a VPN, and bridges must not form a circle."""
    bridges: Bridges = []
    for index, mapping in enumerate(_items(section, "bridges", "bridges", report)):
        name = mapping.get("name") if isinstance(mapping, Mapping) else None
        where = _location("bridges", index, name)
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


def _check_dead_message_queues(queues: Queues, report: read.ReportAt) -> None:
    """X5: dead message queues must not form a circle."""
    targets = {(q.vpn, q.name): q.dead_message_queue for _, q in queues}
    for where, queue in queues:

        def targets_of(name: str, vpn: str = queue.vpn) -> list[str | None]:
            return [targets.get((vpn, name))]

        ring = dead_message_ring(queue, targets_of)
        if ring:
            report(where, "dead_message_queue", queue.dead_message_queue, ring)


def _items(section: object, key: str, what: str, report: read.ReportAt) -> Sequence[object]:
    """The entries of a section that is a list."""
    if section is None or isinstance(section, list | tuple):
        return section or ()
    report("", key, section, f"must be a list of {what}")
    return ()


def _location(section: str, index: int, name: object) -> str:
    shown = f" {read.shown(name)!r}" if isinstance(name, str) else ""
    return f"{section}[{index}]{shown}"


# ---------------------------------------------------------------- commands


def configure_commands(
    configuration: Configuration,
    broker: str | None = None,
    numbers: Mapping[str, int] | None = None,
) -> list[tuple[str, bytes]]:
    """The commands that apply a configuration to a broker, each with its VPN. Only the first broker
    gets the queues and bridges: it keeps the directory and assigns them to brokers.

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
