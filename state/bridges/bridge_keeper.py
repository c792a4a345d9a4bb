"""Who has which bridge: commands about bridges, and who carries them out (H1).

Who keeps the directory has the definitions of all bridges too: one writer, so a name is unique and
no circle closes. A command that another broker is told goes to the keeper over the channel, from
there to the bridge's near broker, which carries it out and answers whoever asked. All that may be
wrong is looked at by the keeper, before anything is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

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
from ...protocol.bridges import BridgeCommand
from ...protocol.errors import ConfigError, LakequeueError, Problem
from ...protocol.outputs import BridgeEntry
from ..commands import administration
from ..commands.answers import ELSEWHERE, answer, refuse
from ..commands.topic_subscriptions import follow_definition, topics_of
from ..commands.turns import resume
from ..mesh.keepership import bridges_key, check_keeper, is_asked, is_keeper, to_keeper
from ..mesh.peer import Peer
from ..mesh.peers import check_name
from ..mesh.saying import say
from ..mesh.topic_routes import changed, kind_of_topics
from . import home_door
from . import link as links
from .endpoint import definition_of, endpoint_name
from .shown import describe, describe_arrival

if TYPE_CHECKING:
    from ..broker import Broker

BRIDGES_MAX = 1_000  # of a VPN


def _kept(broker: Broker, vpn: str) -> dict[str, BridgeDefinition]:
    """The bridges of a VPN, by name; at the keeper."""
    known = broker.values.read(bridges_key(vpn)) or {}
    return {name: parse_bridge(definition) for name, definition in known.items()}


def _keep(broker: Broker, vpn: str, bridges: dict[str, BridgeDefinition]) -> None:
    broker.vpn_number(vpn)  # it is among the VPNs from now on
    definitions = {name: bridge_to_wire(one) for name, one in sorted(bridges.items())}
    broker.values.write(bridges_key(vpn), definitions)


def bridges_at(broker: Broker, name: str) -> list[str]:
    """The bridges of which a broker is an end, with their VPNs; at the keeper."""
    return [
        f"{one.name!r} of VPN {vpn!r}"
        for vpn in sorted(broker.header.vpns)
        for one in _kept(broker, vpn).values()
        if name in (one.origin, one.to)
    ]


# ---------------------------------------------------------------- at whoever is told; the keeper


def bridge(broker: Broker, vpn: str, command: c.Bridge, told: str = "") -> Any:
    """Make a bridge, or define it again: then keys that are not named stay as they are, unless it
    is to be replaced. told: the broker that was told. Raises ConfigError, and nothing is
    changed."""
    keeps = is_keeper(broker)
    if not keeps and not command.replace:  # what is not named is known there
        return _to_keeper(broker, vpn, command)
    bridges = _kept(broker, vpn) if keeps else {}
    name = command.definition.get("name")
    old = None if command.replace or not isinstance(name, str) else bridges.get(name)
    before = {} if old is None else bridge_to_wire(old)
    given = {"vpn": vpn, "from": told or broker.header.name, **before, **command.definition}
    where = f"bridge {str(name or '')[:200]!r}"
    new = parse_bridge(given, where)
    if new.vpn != vpn:
        raise ValueError(
            f"vpn: {new.vpn!r} – allowed is {vpn!r}, the VPN of this connection; "
            "connect to the other one for that"
        )
    command = msgspec.structs.replace(command, definition=bridge_to_wire(new), replace=True)
    if not keeps:
        return _to_keeper(broker, vpn, command)
    _check(broker, where, new, bridges)
    _keep(broker, vpn, {**bridges, new.name: new})
    return _to_near(broker, vpn, new, command)


def concerning(broker: Broker, vpn: str, command: c.DeleteBridge | c.DescribeBridge) -> Any:
    """A command about a bridge that is there. Raises ConfigError where there is none."""
    if not is_keeper(broker):
        return _to_keeper(broker, vpn, command)
    bridges = _kept(broker, vpn)
    found = bridges.get(command.name)
    if found is None:
        known = ", ".join(map(repr, sorted(bridges)[:20])) or "none"
        raise ConfigError(
            f"bridge: {command.name!r} – there is no such bridge in VPN {vpn!r}, which has {known}"
        )
    if isinstance(command, c.DeleteBridge):
        del bridges[command.name]
        _keep(broker, vpn, bridges)
    return _to_near(broker, vpn, found, command)


def names(broker: Broker, vpn: str, command: c.Bridges) -> Any:
    """The names of the VPN's bridges."""
    if not is_keeper(broker):
        return _to_keeper(broker, vpn, command)
    return sorted(_kept(broker, vpn))


def _check(
    broker: Broker, where: str, new: BridgeDefinition, bridges: dict[str, BridgeDefinition]
) -> None:
    """Raise ConfigError for a bridge that cannot be."""
    brokers = _brokers(broker)
    for key, name in unknown_ends(new, brokers):
        there = ", ".join(map(repr, brokers))
        raise ConfigError(
            [Problem(where, key, name, f"must be a broker of this home, which has {there}")]
        )
    old = bridges.get(new.name)
    if old is None and len(bridges) >= BRIDGES_MAX:
        raise ConfigError(f"{where}: a VPN has at most {BRIDGES_MAX} bridges")
    for key, before, now in (
        ("from", (old or new).origin, new.origin),
        ("to", (old or new).to, new.to),
    ):
        if before != now and not (_is_far(before) and _is_far(now)):
            allowed = f"cannot change while the bridge exists; it is {before!r}: delete it before"
            raise ConfigError([Problem(where, key, now, allowed)])
    vpns = [vpn for vpn in broker.header.vpns if vpn != new.vpn]
    others = [one for vpn in vpns for one in _kept(broker, vpn).values()]
    found = circle(new, [*bridges.values(), *others])
    if found:
        raise ConfigError([circle_problem(where, found)])


def _is_far(end: str) -> bool:
    """Whether it is in another home, whose address may change."""
    return is_address(end) and not is_vpn(end)


def _brokers(broker: Broker) -> dict[str, int]:
    """The home's brokers, as this one knows them."""
    header = broker.header
    parting = header.parting  # no bridge leads to who is being removed
    stay = [n for n in sorted(header.peers) if parting is None or n != parting.number]
    return {header.name: header.number, **{header.peers[n].name: n for n in stay}}


def _to_keeper(broker: Broker, vpn: str, command: c.Command) -> Any:
    to_keeper(broker, BridgeCommand(vpn, c.encode_command(command), False))
    return ELSEWHERE


def _to_near(broker: Broker, vpn: str, bridge: BridgeDefinition, command: Any) -> Any:
    """The near broker carries it out: this one, or a peer."""
    brokers = _brokers(broker)
    number, far = brokers[bridge.carrier], brokers.get(bridge.far_broker or "", 0)
    if number != broker.header.number:
        say(broker, number, BridgeCommand(vpn, c.encode_command(command), True, far))
        return ELSEWHERE
    return _carry_out(broker, vpn, command, far)


def hear_command(broker: Broker, sender: int, said: BridgeCommand) -> None:
    """What another broker was told, or the keeper agreed to."""
    command: Any = c.decode_command(said.command)
    try:
        answer(broker, command, _heard(broker, sender, said, command))
    except (LakequeueError, ValueError) as error:
        refuse(broker, said.vpn, command, error)


def _heard(broker: Broker, sender: int, said: BridgeCommand, command: Any) -> Any:
    if said.by_keeper:
        check_keeper(broker, sender, said)
        return _carry_out(broker, said.vpn, command, said.far)
    if not is_asked(broker, said):
        return ELSEWHERE
    match command:
        case c.Bridge():
            return bridge(broker, said.vpn, command, broker.header.peers[sender].name)
        case c.DeleteBridge() | c.DescribeBridge():
            return concerning(broker, said.vpn, command)
        case c.Bridges():
            return names(broker, said.vpn, command)
    raise ValueError(f"bridge: {type(command).__name__} is no command about bridges")


# ---------------------------------------------------------------- at the near broker


def _carry_out(broker: Broker, vpn: str, command: Any, far: int) -> Any:
    if isinstance(command, c.Bridge):
        return _make(broker, vpn, parse_bridge(command.definition), far)
    arrival = home_door.load(broker, vpn, command.name)
    if arrival is not None and arrival.is_open:
        if isinstance(command, c.DescribeBridge):
            return describe_arrival(broker, vpn, arrival)
        home_door.close_door(broker, vpn, command.name)
        return 0
    queue = broker.find(vpn, endpoint_name(command.name))
    if queue is None:
        raise ConfigError(f"bridge: {command.name!r} – is not here any more")
    if isinstance(command, c.DescribeBridge):
        return describe(broker, queue)
    waiting = queue.header.depth
    link = links.load(broker, queue.number)
    if link is not None and link.to == links.ELSEWHERE:
        _enter(broker, vpn, command.name, None)
    links.forget(broker, queue.number)
    administration.delete(broker, vpn, queue, c.Delete(queue=queue.definition.name))
    broker.event("bridge_deleted", vpn, bridge=command.name, messages=waiting)
    return waiting


def _make(broker: Broker, vpn: str, bridge: BridgeDefinition, far: int) -> None:
    """Make the bridge's endpoint and its link, or change them; the same again changes nothing."""
    if bridge.arrives:
        home_door.open_door(broker, bridge)
        return
    if bridge.leaves:
        _enter(broker, vpn, bridge.name, bridge_to_wire(bridge))
    elif far != broker.header.number:
        there = str(bridge.far_broker)
        check_name(broker, far, there)
        broker.header.peers.setdefault(far, Peer(there))  # also before the engine told of it
    definition = definition_of(bridge)
    queue = broker.find(vpn, definition.name)
    if queue is None:
        queue = administration.create(broker, vpn, definition, bridge.lanes)
        links.save(broker, queue.number, links.new(bridge, far))
        broker.event("bridge_made", vpn, bridge=bridge.name, to=bridge.to, lanes=bridge.lanes)
        return
    link = links.load(broker, queue.number)
    assert link is not None
    if queue.header.faulted:
        queue.header.faulted, queue.wanted = "", True
        resume(broker, queue)
    if link.to == links.ELSEWHERE and link.to_name != bridge.to:
        link.to_name = bridge.to
        links.save(broker, queue.number, link)
        for topic in topics_of(broker, queue):
            changed(broker, vpn, kind_of_topics(topic), topic)
    if queue.definition == definition and link.lanes == bridge.lanes:
        return
    follow_definition(broker, vpn, queue, queue.definition, definition)
    queue.header.definition = definition
    broker.header.links[queue.number] = link.lanes = bridge.lanes
    links.save(broker, queue.number, link)
    broker.event("bridge_made", vpn, bridge=bridge.name, again=True, lanes=bridge.lanes)


def _enter(broker: Broker, vpn: str, name: str, definition: dict[str, Any] | None) -> None:
    """Tell the engine of a bridge that leads to another home, or of its end."""
    header = broker.header
    broker.emit(BridgeEntry(vpn, name, header.number, header.epoch, definition))
