"""A bridge's endpoint: a queue of the near broker's own, where messages wait for the link (H1).

It is an internal queue by the name `#bridge/<name>` that takes what is published to the bridge's
subscriptions. A message waits there in its *lane*: what must keep its order. With
`lanes: per-destination` that is its destination (H3), with `none` all are in one (H2). Lanes are
those of partition keys (O4), so what can be sent next is found without a look at what waits.

What only the far end needs stands beside the row: the destination, and a time of delivery in the
future (L12), which is the far end's to wait for.
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
from ...state.queue.header import QueueHeader, Subscription
from ...state.queue.queue import Queue
from ...state.rules.edits import WAY
from ...state.rules.entry_checks import lane_of
from ...state.rules.routing import set_topics
from ...state.storage.row import NEVER, Row
from ..facts import Entry
from .bridge_facts import ELSEWHERE, BridgeFacts, Link

ONE_LANE = 1
SUBSCRIPTION = "#link"  # what the journal says of who has them
NUMBER = 1  # of that subscription


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
    """A bridge in the home's directory: its endpoint is a queue of its carrier, so what is
    published at any broker reaches it. One that arrives has none, and takes nothing."""
    definition = definition_of(bridge)
    topics = [] if bridge.arrives else list(definition.subscriptions)
    return Entry(definition, [brokers[bridge.carrier]], topics, bridge=bridge_to_wire(bridge))


def entries_of(broker: Broker) -> dict[tuple[str, str], Entry]:
    """Those of a broker that is alone, by VPN and name."""
    own = {broker.header.name: broker.header.number}
    return {
        (vpn, endpoint_name(name)): entry_of(parse_bridge(bridge), own)
        for vpn, bridges in BridgeFacts.load(broker).definitions.items()
        for name, bridge in bridges.items()
    }  # fmt: skip


def subscription_of(to_name: str) -> Subscription:
    """The link's: nothing is delivered to it, it takes (`link.forward`)."""
    return Subscription(
        id=SUBSCRIPTION, number=NUMBER, name=to_name, session="", topic="", partition=0,
        framing="", removes_on_send=False, filter=None, max_backlog=0, broker=ELSEWHERE,
    )  # fmt: skip


def make(broker: Broker, bridge: BridgeDefinition) -> Queue:
    """An endpoint that did not exist."""
    definition = definition_of(bridge)
    number = broker.header.next_queue
    broker.header.next_queue += 1
    header = QueueHeader(
        number, broker.vpn_number(bridge.vpn), definition, created=broker.now,
        stands_for=definition.name, next_subscription=NUMBER + 1,
    )  # fmt: skip
    header.subscriptions.append(subscription_of(bridge.to))
    queue = broker.add_queue(header)
    set_topics(broker, queue, definition.subscriptions)
    broker.event("defined", bridge.vpn, definition.name)
    return queue


def change(broker: Broker, queue: Queue, definition: QueueDefinition) -> None:
    """It is defined again."""
    queue.header.definition = definition
    set_topics(broker, queue, definition.subscriptions)
    broker.touch(queue)


def wait(link: Link, rows: list[Row], to: str) -> None:
    """Messages with this destination are about to enter."""
    lane = lane_of(to) if link.lanes == PER_DESTINATION else ONE_LANE
    for row in rows:
        row.lane = lane
        row.extras = {WAY: {"to": to, "due": 0 if row.until == NEVER else row.until}}
        row.until = NEVER
    link.waiting[lane] = link.waiting.get(lane, 0) + len(rows)


def beside(row: Row) -> tuple[str, int]:
    """Where a message goes, and when it is to be delivered there; 0 for at once."""
    assert row.extras is not None
    way = row.extras[WAY]
    return way["to"], way["due"]
