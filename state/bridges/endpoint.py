"""A bridge's endpoint: a queue of the near broker's own, where messages wait for the link (H1).

It is a `LocalQueue` by the name `#bridge/<name>` that captures no Kafka topic and takes what is
published to the bridge's subscriptions; consumers cannot bind to it. A message waits there in its
*lane*: what must keep its order. With `lanes: per-destination` that is its destination (H3), with
`none` all are in one (H2). Lanes are those of partition keys (O4), so that what can be sent next is
found without a look at what waits behind it, however deep that is.

What only the far end needs stands beside the row: the destination, and a time of delivery in the
future (L12), which is the far end's to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...definitions import QueueDefinition, parse_definition
from ...definitions.bridge import PER_DESTINATION, BridgeDefinition
from ...definitions.definition_values import DEAD_PREFIX, ENDPOINT_PREFIX, MOVED_PREFIX
from ...protocol.messages import QUEUE_ALONE
from ..rules.edits import BRIDGED
from ..rules.entering import lane_of
from ..storage import NEVER

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

ONE_LANE = 1


def endpoint_name(bridge: str) -> str:
    """The name of a bridge's endpoint."""
    return ENDPOINT_PREFIX + bridge


def is_endpoint(name: str) -> bool:
    """Whether a queue of this name is a bridge's endpoint, or another that only brokers fill."""
    return name.startswith((ENDPOINT_PREFIX, MOVED_PREFIX, DEAD_PREFIX))


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


def wait_for_link(broker: Broker, queue: Queue, to: str, due: int, n: int) -> int:
    """The next ``n`` arrivals of an endpoint go to this destination, or to the queue that it
    follows; gives their lane."""
    followed = broker.header.trails.get(queue.number)
    if followed is not None:
        to = QUEUE_ALONE + followed
    beside = {BRIDGED: [to, 0 if due == NEVER else due]}
    arrivals = queue.arrivals
    first = len(arrivals.ids)
    arrivals.dead.update(dict.fromkeys(range(first, first + n), beside))
    has_lanes = broker.header.links[queue.number] == PER_DESTINATION
    return lane_of(to) if has_lanes else ONE_LANE
