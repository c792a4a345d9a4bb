"""Commands about bridges: made, defined again, deleted, shown (H1). All that may be wrong is looked
at before anything is done."""

from __future__ import annotations

from typing import Any

from ...definitions.bridge import (
    BridgeDefinition,
    bridge_to_wire,
    circle,
    circle_problem,
    parse_bridge,
    unknown_ends,
)
from ...definitions.far_address import is_address, is_vpn
from ...protocol import commands as c
from ...protocol.errors import ConfigError, Problem
from ...protocol.outputs import BridgeEntry
from ...state.commands.administration import delete
from ...state.commands.multi_step_commands import resume
from ...state.queue.broker import Broker
from . import endpoint, far_end
from .bridge_description import describe, describe_arrival
from .bridge_facts import ELSEWHERE, BridgeFacts, Link

BRIDGES_MAX = 1_000  # of a VPN


def agree(
    broker: Broker, facts: BridgeFacts, vpn: str, command: c.Bridge
) -> BridgeDefinition:  # fmt: skip
    """A bridge that is to be made, or defined again: then keys that are not named stay as they are,
    unless it is to be replaced. Raises ConfigError for one that cannot be."""
    known = _known(facts, vpn)
    name = command.definition.get("name")
    old = None if command.replace or not isinstance(name, str) else known.get(name)
    before = {} if old is None else bridge_to_wire(old)
    given = {"vpn": vpn, "from": broker.header.name, **before, **command.definition}
    where = f"bridge {str(name or '')[:200]!r}"
    new = parse_bridge(given, where)
    if new.vpn != vpn:
        raise ValueError(
            f"vpn: {new.vpn!r} – allowed is {vpn!r}, the VPN of this connection; "
            "connect to the other one for that"
        )
    _check(broker, facts, where, new)
    return new


def begin(broker: Broker, facts: BridgeFacts, new: BridgeDefinition, to: int) -> None:
    """A bridge is so, as was agreed: every broker of the home knows it, and its carrier makes it.
    to: the number of the broker that it leads to, where that is of this home."""
    broker.vpn_number(new.vpn)  # it is among the VPNs from now on
    facts.definitions.setdefault(new.vpn, {})[new.name] = bridge_to_wire(new)
    if new.carrier != broker.header.name:
        return
    if new.arrives:
        far_end.open_door(broker, facts, new)
    else:
        _make(broker, facts, new, to)


def names(facts: BridgeFacts, vpn: str) -> list[str]:
    """The names of the VPN's bridges."""
    return sorted(facts.definitions.get(vpn, {}))


def describe_bridge(
    broker: Broker, facts: BridgeFacts, vpn: str, command: c.DescribeBridge
) -> dict[str, Any]:
    """What is shown of a bridge. Raises ConfigError where there is none."""
    find(facts, vpn, command.name)
    arrival = facts.arrival(vpn, command.name)
    if arrival is not None and arrival.is_open:
        return describe_arrival(broker, vpn, arrival)
    return describe(broker, _link(facts, vpn, command.name))


def end(broker: Broker, facts: BridgeFacts, vpn: str, name: str) -> int:
    """A bridge is no more; gives how many messages waited here."""
    known = facts.definitions.get(vpn, {}).pop(name, None)
    if known is None or parse_bridge(known).carrier != broker.header.name:
        return 0
    arrival = facts.arrival(vpn, name)
    if arrival is not None and arrival.is_open:
        far_end.close_door(broker, vpn, arrival)
        return 0
    link = _link(facts, vpn, name)
    queue = broker.queues[link.queue]
    waiting = queue.header.depth
    if link.to == ELSEWHERE:
        _enter(broker, vpn, name, None)
    del facts.links[link.queue]
    delete(broker, vpn, c.Delete(queue=queue.definition.name))
    broker.event("bridge_deleted", vpn, bridge=name, messages=waiting)
    return waiting


# ---------------------------------------------------------------- what is there


def _known(facts: BridgeFacts, vpn: str) -> dict[str, BridgeDefinition]:
    given = facts.definitions.get(vpn, {})
    return {name: parse_bridge(definition) for name, definition in given.items()}


def find(facts: BridgeFacts, vpn: str, name: str) -> BridgeDefinition:
    """A bridge of this name. Raises ConfigError where there is none."""
    found = facts.definitions.get(vpn, {}).get(name)
    if found is None:
        known = ", ".join(map(repr, names(facts, vpn)[:20])) or "none"
        raise ConfigError(
            f"bridge: {name!r} – there is no such bridge in VPN {vpn!r}, which has {known}"
        )
    return parse_bridge(found)


def _link(facts: BridgeFacts, vpn: str, name: str) -> Link:
    return next(one for one in facts.links.values() if (one.vpn, one.bridge) == (vpn, name))


def _check(broker: Broker, facts: BridgeFacts, where: str, new: BridgeDefinition) -> None:
    """Raise ConfigError for a bridge that cannot be."""
    brokers = (broker.header.name,) if broker.mesh is None else broker.mesh.brokers
    for key, name in unknown_ends(new, brokers):
        there = ", ".join(map(repr, brokers))
        raise ConfigError(
            [Problem(where, key, name, f"must be a broker of this home, which has {there}")]
        )
    if new.far_broker is not None and new.far_vpn is None and not new.arrives:
        allowed = "is another broker of this home, which gets what its queues take without a bridge"
        raise ConfigError([Problem(where, "to", new.to, allowed)])
    known = _known(facts, new.vpn)
    old = known.get(new.name)
    if old is None and len(known) >= BRIDGES_MAX:
        raise ConfigError(f"{where}: a VPN has at most {BRIDGES_MAX} bridges")
    for key, before, now in (
        ("from", (old or new).origin, new.origin),
        ("to", (old or new).to, new.to),
    ):
        if before != now and not (_is_far(before) and _is_far(now)):
            allowed = f"cannot change while the bridge exists; it is {before!r}: delete it before"
            raise ConfigError([Problem(where, key, now, allowed)])
    others = [one for vpn in sorted(facts.definitions) for one in _known(facts, vpn).values()]
    found = circle(new, others)
    if found:
        raise ConfigError([circle_problem(where, found)])


def _is_far(end: str) -> bool:
    """Whether it is in another home, whose address may change."""
    return is_address(end) and not is_vpn(end)


# ---------------------------------------------------------------- the near end


def _make(broker: Broker, facts: BridgeFacts, bridge: BridgeDefinition, to: int) -> None:
    """Make the bridge's endpoint and its link, or change them; the same again changes nothing."""
    if bridge.leaves:
        _enter(broker, bridge.vpn, bridge.name, bridge_to_wire(bridge))
    definition = endpoint.definition_of(bridge)
    queue = broker.find(bridge.vpn, definition.name)
    if queue is None:
        queue = endpoint.make(broker, bridge)
        facts.links[queue.number] = Link(
            bridge.vpn, bridge.name, queue.number, to, bridge.to, bridge.lanes,
            bridge.far_vpn or "",
        )  # fmt: skip
        broker.event("bridge_made", bridge.vpn, bridge=bridge.name, to=bridge.to,
                     lanes=bridge.lanes)  # fmt: skip
        return
    link = facts.links[queue.number]
    if queue.header.faulted:
        queue.header.faulted = ""
        resume(broker, queue)
        broker.touch(queue)
    link.to_name = bridge.to
    if queue.definition == definition and link.lanes == bridge.lanes:
        return
    endpoint.change(broker, queue, definition)
    link.lanes = bridge.lanes
    broker.event("bridge_made", bridge.vpn, bridge=bridge.name, again=True, lanes=bridge.lanes)


def _enter(broker: Broker, vpn: str, name: str, definition: dict[str, Any] | None) -> None:
    """Tell the engine of a bridge that leads to another home, or of its end."""
    header = broker.header
    broker.emit(BridgeEntry(vpn, name, header.number, header.epoch, definition))
