"""Commands about bridges: define, delete, describe (H1, H2). Everything is checked before anything
changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...definitions.bridge import (
    BridgeDefinition,
    bridge_to_wire,
    circle,
    circle_problem,
    is_in_another_home,
    parse_bridge,
    unknown_ends,
)
from ...protocol import commands as c
from ...protocol.errors import ConfigError, Problem
from ...protocol.home_bridges import OPEN, WAITING
from ...protocol.outputs import BridgeEntry
from ...state.commands.administration import delete
from ...state.commands.multi_step_commands import resume
from ...state.queue.broker import Broker
from . import endpoint, far_end
from .bridge_facts import ELSEWHERE, Arrival, BridgeFacts, HeldLane, Link

BRIDGES_MAX = 1_000  # of a VPN


def check_definition(
    broker: Broker, facts: BridgeFacts, vpn: str, command: c.Bridge
) -> BridgeDefinition:  # fmt: skip
    """Check a bridge's definition; returns it complete. Unless it replaces the old one, keys that
    it does not name keep their values."""
    existing = _definitions_of(facts, vpn)
    name = command.definition.get("name")
    old = None if command.replace or not isinstance(name, str) else existing.get(name)
    before = {} if old is None else bridge_to_wire(old)
    given = {"vpn": vpn, "from": broker.header.name, **before, **command.definition}
    where = f"bridge {str(name or '')[:200]!r}"
    new = parse_bridge(given, where)
    if new.vpn != vpn:
        raise ValueError(
            f"vpn: {new.vpn!r} – allowed is {vpn!r}, the VPN of this connection; connect to "
            f"{new.vpn!r} to define a bridge there"
        )
    _check(broker, facts, where, new)
    return new


def begin(
    broker: Broker, facts: BridgeFacts, new: BridgeDefinition, brokers: Mapping[str, int],
    born: int = 0,
) -> None:  # fmt: skip
    """Apply a checked definition. Every broker of the home remembers it; its carrier makes it.
    brokers: of this home, empty if there is only this one; born: see `Link`."""
    broker.vpn_number(new.vpn)  # make the VPN known
    definitions = facts.definitions.setdefault(new.vpn, {})
    before = definitions.get(new.name)
    if before is not None and _born(broker, facts, parse_bridge(before)) not in (None, born):
        end(broker, facts, new.vpn, new.name)  # its deletion failed here (`failures`)
        before = None
    is_changed = before is None or parse_bridge(before) != new
    definitions[new.name] = bridge_to_wire(new)
    if new.carrier != broker.header.name:
        return
    if new.arrives:
        far_end.open_arrival(broker, facts, new, born)
    else:
        own = broker.header.number
        far = new.far_broker
        to = ELSEWHERE if far is None else brokers.get(far, own)
        _make(broker, facts, new, to, born, is_changed)
    if new.leaves or new.expects_home:
        publish_end(broker, new.vpn, new.name, bridge_to_wire(new))


def _born(broker: Broker, facts: BridgeFacts, bridge: BridgeDefinition) -> int | None:
    """The `Link.born` of the end that is here; None for no end, or an unknown one."""
    if bridge.carrier != broker.header.name:
        return None
    arrival = facts.arrival(bridge.vpn, bridge.name)
    if arrival is not None and arrival.is_open:
        return arrival.born
    return _link(facts, bridge.vpn, bridge.name).born


def names(facts: BridgeFacts, vpn: str) -> list[str]:
    """The names of the VPN's bridges."""
    return sorted(facts.definitions.get(vpn, {}))


def describe_bridge(
    broker: Broker, facts: BridgeFacts, vpn: str, command: c.DescribeBridge
) -> dict[str, Any]:
    """Describe a bridge. Raises ConfigError if there is none."""
    find(facts, vpn, command.name)
    arrival = facts.arrival(vpn, command.name)
    if arrival is not None and arrival.is_open:
        return describe_arrival(broker, vpn, arrival)
    return describe(broker, _link(facts, vpn, command.name))


def end(broker: Broker, facts: BridgeFacts, vpn: str, name: str) -> int:
    """Delete a bridge; returns how many messages waited here."""
    bridge, waiting = parse_bridge(facts.definitions[vpn].pop(name)), 0
    if bridge.carrier != broker.header.name:
        return 0
    arrival = facts.arrival(vpn, name)
    if arrival is not None and arrival.is_open:
        far_end.close_arrival(broker, vpn, arrival)
    else:
        link = _link(facts, vpn, name)
        queue = broker.queues[link.queue]
        waiting = queue.header.depth
        del facts.links[link.queue]
        delete(broker, vpn, c.Delete(queue=queue.definition.name))
        broker.event("bridge_deleted", vpn, bridge=name, messages=waiting)
    if bridge.leaves or bridge.expects_home:
        publish_end(broker, vpn, name, None)
    return waiting


def publish_end(broker: Broker, vpn: str, name: str, definition: dict[str, Any] | None) -> None:
    """Write into the directory that an end of a bridge to another home is here, or none."""
    header = broker.header
    at = broker.now, header.events  # each change is an event
    broker.emit(BridgeEntry(vpn, name, header.name, header.number, header.epoch, at, definition))


def publish_ends(broker: Broker, facts: BridgeFacts) -> None:
    """Write all ends that are here once more, see `home_bridges.BridgeEnds`."""
    for vpn in sorted(facts.definitions):
        for name, bridge in _definitions_of(facts, vpn).items():
            is_here = bridge.carrier == broker.header.name
            if is_here and (bridge.leaves or bridge.expects_home):
                publish_end(broker, vpn, name, bridge_to_wire(bridge))


# ---------------------------------------------------------------- checks


def _definitions_of(facts: BridgeFacts, vpn: str) -> dict[str, BridgeDefinition]:
    given = facts.definitions.get(vpn, {})
    return {name: parse_bridge(definition) for name, definition in given.items()}


def find(facts: BridgeFacts, vpn: str, name: str) -> BridgeDefinition:
    """The definition of a bridge. Raises ConfigError if there is none."""
    found = facts.definitions.get(vpn, {}).get(name)
    if found is None:
        existing = ", ".join(map(repr, names(facts, vpn)[:20])) or "none"
        raise ConfigError(
            f"bridge: {name!r} – there is no such bridge in VPN {vpn!r}, which has {existing}"
        )
    return parse_bridge(found)


def _link(facts: BridgeFacts, vpn: str, name: str) -> Link:
    return next(one for one in facts.links.values() if (one.vpn, one.bridge) == (vpn, name))


def _check(broker: Broker, facts: BridgeFacts, where: str, new: BridgeDefinition) -> None:
    """Raise ConfigError for a bridge that conflicts with the home or with other bridges."""
    brokers = broker.mesh.brokers or (broker.header.name,)
    for key, name in unknown_ends(new, brokers):
        there = ", ".join(map(repr, brokers))
        raise ConfigError(
            [Problem(where, key, name, f"must be a broker of this home, which has {there}")]
        )
    if not broker.header.joins_homes and (new.leaves or new.expects_home):
        key, end = ("to", new.to) if new.leaves else ("from", new.origin)
        allowed = (
            "must be in this home: the trigger 'micro-batch' serves no bridge to another Kafka"
        )
        raise ConfigError([Problem(where, key, end, allowed)])
    if new.far_broker is not None and new.far_vpn is None and not new.arrives:
        allowed = "is a broker of this home, whose queues get their messages without a bridge"
        raise ConfigError([Problem(where, "to", new.to, allowed)])
    existing = _definitions_of(facts, new.vpn)
    old = existing.get(new.name)
    if old is None and len(existing) >= BRIDGES_MAX:
        raise ConfigError(f"{where}: a VPN has at most {BRIDGES_MAX} bridges")
    for key, before, now in (
        ("from", (old or new).origin, new.origin),
        ("to", (old or new).to, new.to),
    ):
        if before != now and not (is_in_another_home(before) and is_in_another_home(now)):
            allowed = f"cannot change while the bridge exists; it is {before!r}: delete it first"
            raise ConfigError([Problem(where, key, now, allowed)])
    others = [
        one for vpn in sorted(facts.definitions) for one in _definitions_of(facts, vpn).values()
    ]
    found = circle(new, others)
    if found:
        raise ConfigError([circle_problem(where, found)])


# ---------------------------------------------------------------- the near end


def _make(
    broker: Broker, facts: BridgeFacts, bridge: BridgeDefinition, to: int, born: int,
    is_changed: bool,
) -> None:  # fmt: skip
    """Make or change the bridge's endpoint and link. The same definition again changes nothing."""
    definition = endpoint.definition_of(bridge)
    queue = broker.find(bridge.vpn, definition.name)
    if queue is None:
        queue = endpoint.make(broker, bridge)
        facts.links[queue.number] = Link(
            bridge.vpn, bridge.name, queue.number, to, bridge.to, bridge.lanes,
            bridge.far_vpn or "", born=born,
        )  # fmt: skip
        broker.event("bridge_made", bridge.vpn, bridge=bridge.name, to=bridge.to,
                     lanes=bridge.lanes)  # fmt: skip
        return
    link = facts.links[queue.number]
    if queue.header.faulted:
        queue.header.faulted = ""
        resume(broker, queue)
        broker.touch(queue)
    if not is_changed:
        return
    endpoint.change(broker, queue, definition)
    link.to_name, link.lanes = bridge.to, bridge.lanes
    broker.event("bridge_made", bridge.vpn, bridge=bridge.name, again=True, lanes=bridge.lanes)


# ---------------------------------------------------------------- description


DESTINATIONS_SHOWN = 10


def describe(broker: Broker, link: Link) -> dict[str, Any]:
    """Everything about one bridge, for people and programs. For each refusing queue: since when,
    and how many messages wait for it, including refused ones."""
    queue = broker.queues[link.queue]
    header, limits = queue.header, broker.limits
    rows, size = link.in_transit()
    oldest = min((flight.at for flight in link.flights.values()), default=None)
    blocked = _blocked(broker, link)
    return {
        "name": link.bridge,
        "vpn": link.vpn,
        "from": broker.header.name,
        "to": link.to_name,
        "subscriptions": list(queue.definition.subscriptions),
        "lanes": link.lanes,
        "endpoint": queue.definition.name,
        "waiting": header.depth - rows,
        "spool_bytes": header.bytes,
        "max_spool_usage": queue.definition.max_spool_usage,
        "on_its_way": rows,
        "bytes_on_its_way": size,
        "window_rows": limits.bridge_rows,
        "window_bytes": limits.bridge_bytes,
        "unanswered_s": None if oldest is None else (broker.now - oldest) / 1000,
        "egress": header.egress,
        "state": _state(link, bool(blocked)),
        "why": link.why if link.to == ELSEWHERE else "",
        "blocked": blocked,
        "sent": link.sent,
        "taken": link.taken,
        "refused": link.refused,
    }


def _state(link: Link, blocked: bool) -> str:
    """`open`, `blocked` if a far queue holds lanes back, `waiting` if the far home cannot be
    reached."""
    if link.to == ELSEWHERE and link.way != OPEN:
        return WAITING
    return "blocked" if blocked else OPEN


def describe_arrival(broker: Broker, vpn: str, arrival: Arrival) -> dict[str, Any]:
    """Describe the far end of a bridge from another home."""
    peer = arrival.peer
    return {
        "name": arrival.name,
        "vpn": vpn,
        "from": arrival.origin,
        "to": broker.header.name,
        "subscriptions": list(arrival.subscriptions),
        "state": WAITING if peer is None else OPEN,
        "why": "" if peer else "nothing has come over it yet",
        "home": None if peer is None else {"epoch": peer[0], "broker": peer[1]},
        "heard_s": (broker.now - arrival.last) / 1000 if arrival.last else None,
        "taken": arrival.taken,
        "refused": arrival.refused,
        "repeated": arrival.repeated,
        "blocked": [],
    }


def _blocked(broker: Broker, link: Link) -> list[dict[str, Any]]:
    """The far queues that hold lanes back, the longest first."""
    by_endpoint: dict[str, list[tuple[int, HeldLane]]] = {}
    for lane, held in link.held.items():
        by_endpoint.setdefault(held.endpoint, []).append((lane, held))
    shown = []
    for refusing, lanes in by_endpoint.items():
        since = min(held.since for _, held in lanes)
        shown.append(
            {
                "endpoint": refusing or None,
                "reason": lanes[0][1].reason,
                "since": since,
                "for_s": (broker.now - since) / 1000,
                "waiting": sum(link.waiting.get(lane, 0) for lane, _ in lanes),
                "lanes": len(lanes),
                "lanes_counted": len(lanes),
                "destinations": sorted({h.destination for _, h in lanes})[:DESTINATIONS_SHOWN],
            }
        )
    return sorted(shown, key=lambda one: (one["since"], one["endpoint"] or ""))
