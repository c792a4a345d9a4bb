"""A bridge's endpoint: the internal queue at the near broker where messages wait for the link (H1).

Its name is `#bridge/<name>`, and it takes messages that are published to the bridge's
subscriptions. A message waits in its *lane*, whose messages keep their order. With `lanes:
per-destination` a lane is a destination (H3), with `none` there is one lane (H2). They are the
lanes of partition keys (O4), so the next messages to send are found without searching.

The row's extras have what only the far end needs: the destination, and a future delivery time
(L12), for which the far end waits.

Held lanes (H2, H3). `bridge_blocked` is written when the first lane is held by a queue at the far
end, `bridge_cleared` when the last one gets through. After its first message got through, a held
lane is *opening*: it is sent like others, and counts as held until all messages sent of it are
stored. So a queue that accepts a message now and then causes one event.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...definitions import QueueDefinition, parse_definition
from ...definitions.bridge import (
    PER_DESTINATION,
    BridgeDefinition,
    bridge_to_wire,
    parse_bridge,
)
from ...definitions.definition_values import ENDPOINT_PREFIX
from ...state.queue.broker import Broker
from ...state.queue.header import Subscription
from ...state.queue.queue import Queue
from ...state.rules.edits import TRANSIT
from ...state.rules.entry_checks import lane_of
from ...state.rules.routing import set_topics
from ...state.storage.row import NEVER, Row
from ..facts import Entry
from ..stand_ins import subscription_of
from .bridge_facts import ELSEWHERE, BridgeFacts, HeldLane, Link

ONE_LANE = 1
SUBSCRIPTION = "#link"  # the holder in the journal
NUMBER = 1  # the number of that subscription


def endpoint_name(bridge: str) -> str:
    """The name of a bridge's endpoint."""
    return ENDPOINT_PREFIX + bridge


def definition_of(bridge: BridgeDefinition) -> QueueDefinition:
    """The definition of a bridge's endpoint."""
    given = {
        "name": bridge.name, "vpn": bridge.vpn, "message_type": "binary", "type": "LocalQueue",
        "subscriptions": list(bridge.subscriptions), "max_spool_usage": bridge.max_spool_usage,
        "max_message_size": "11MB",
    }  # fmt: skip
    plain = parse_definition({k: v for k, v in given.items() if v is not None})
    name = endpoint_name(bridge.name)
    return msgspec.structs.replace(
        plain, name=name, underlying_topic=name, default_publish_target=name
    )


def entry_of(bridge: BridgeDefinition, brokers: Mapping[str, int]) -> Entry:
    """A bridge's entry in the directory. Its endpoint is a queue of its carrier, so messages
    published at any broker reach it. An arriving bridge has no endpoint and takes nothing."""
    definition = definition_of(bridge)
    topics = [] if bridge.arrives else list(definition.subscriptions)
    return Entry(definition, [brokers[bridge.carrier]], topics, bridge=bridge_to_wire(bridge))


def entries_of(broker: Broker) -> dict[tuple[str, str], Entry]:
    """The entries of a single broker's bridges, by VPN and name."""
    own = {broker.header.name: broker.header.number}
    return {
        (vpn, endpoint_name(name)): entry_of(parse_bridge(bridge), own)
        for vpn, bridges in BridgeFacts.load(broker).definitions.items()
        for name, bridge in bridges.items()
    }  # fmt: skip


def subscription_of_link(to_name: str) -> Subscription:
    """The link's subscription. Nothing is delivered to it; the link fetches (`link.forward`)."""
    return subscription_of(SUBSCRIPTION, NUMBER, to_name, ELSEWHERE)


def make(broker: Broker, bridge: BridgeDefinition) -> Queue:
    """Make an endpoint."""
    definition = definition_of(bridge)
    queue = broker.make_queue(
        definition, created=broker.now, stands_for=definition.name,
        next_subscription=NUMBER + 1, subscriptions=[subscription_of_link(bridge.to)],
    )  # fmt: skip
    set_topics(broker, queue, definition.subscriptions)
    broker.queue_event(queue, "defined")
    return queue


def change(broker: Broker, queue: Queue, definition: QueueDefinition) -> None:
    """Give an endpoint a new definition."""
    queue.header.definition = definition
    set_topics(broker, queue, definition.subscriptions)
    broker.touch(queue)


def prepare(link: Link, rows: list[Row], to: str) -> None:
    """Prepare messages with this destination that are about to enter. A change of `lanes` takes
    effect once the endpoint is empty: in other lanes, new messages would overtake waiting ones
    (H3)."""
    one_lane = ONE_LANE in link.waiting if link.waiting else link.lanes != PER_DESTINATION
    lane = ONE_LANE if one_lane else lane_of(to)
    for row in rows:
        row.lane = lane
        row.extras = {TRANSIT: {"to": to, "due": 0 if row.until == NEVER else row.until}}
        row.until = NEVER
    link.waiting[lane] = link.waiting.get(lane, 0) + len(rows)


def destination_and_due(row: Row) -> tuple[str, int]:
    """A message's destination, and its delivery time there; 0 for at once."""
    assert row.extras is not None
    transit = row.extras[TRANSIT]
    return transit["to"], transit["due"]


# ---------------------------------------------------------------- held lanes


RETRY_MS = 500  # the first delay of a held lane; it doubles each time
RETRY_MAX_MS = 5_000


def held_ms(held: HeldLane | None) -> int:
    """How long a held lane waits before the next attempt."""
    if held is None:  # beyond `Limits.bridge_holds`
        return RETRY_MAX_MS
    return int(min(RETRY_MS << min(held.tries - 1, 10), RETRY_MAX_MS))


def hold_lane(
    broker: Broker, link: Link, lane: int, destination: str, reason: str, endpoint: str,
    progress: bool,
) -> HeldLane | None:  # fmt: skip
    """Hold a lane that was refused. progress: some of its messages were stored before."""
    held = link.held.get(lane)
    if held is None:
        if len(link.held) >= broker.limits.bridge_holds:
            return None
        is_told = any(h.endpoint == endpoint for h in link.held.values())
        held = link.held[lane] = HeldLane(destination, endpoint, reason, broker.now)
        if not is_told:
            _tell_blocked(broker, link, lane, held)
        return held
    held.tries = 1 if progress or held.opening else held.tries + 1
    held.opening = False
    held.destination, held.reason = destination, reason
    if held.endpoint != endpoint:
        others = {h.endpoint for key, h in link.held.items() if key != lane}
        before, since = held.endpoint, held.since
        held.endpoint, held.since = endpoint, broker.now
        if before not in others:
            _tell_cleared(broker, link, before, since)
        if endpoint not in others:
            _tell_blocked(broker, link, lane, held)
    return held


def went_through(broker: Broker, link: Link, lane: int) -> None:
    """Note that all messages sent of a held lane were stored."""
    held = link.held[lane]
    if held.opening or lane not in link.waiting:
        _clear(broker, link, lane)
    else:
        held.opening, held.tries = True, 1


def forget_empty(broker: Broker, link: Link) -> None:
    """Clear held lanes without waiting messages."""
    for lane in [lane for lane in link.held if lane not in link.waiting]:
        _clear(broker, link, lane)


def _clear(broker: Broker, link: Link, lane: int) -> None:
    held = link.held.pop(lane)
    if not any(h.endpoint == held.endpoint for h in link.held.values()):
        _tell_cleared(broker, link, held.endpoint, held.since)


def _tell_blocked(broker: Broker, link: Link, lane: int, held: HeldLane) -> None:
    broker.event(
        "bridge_blocked", link.vpn, held.endpoint, bridge=link.bridge, to=link.to_name,
        reason=held.reason, destination=held.destination, waiting=link.waiting.get(lane, 0),
    )  # fmt: skip


def _tell_cleared(broker: Broker, link: Link, endpoint: str, since: int) -> None:
    broker.event(
        "bridge_cleared", link.vpn, endpoint, bridge=link.bridge, to=link.to_name,
        after_s=(broker.now - since) / 1000,
    )  # fmt: skip
