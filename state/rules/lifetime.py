"""How long a message may live in a queue: the expiration models (X1, X2, X4, X5)."""

from __future__ import annotations

from ...definitions import QueueDefinition
from ..storage.row import NEVER


def expires_at(definition: QueueDefinition, now: int, ttl_ends: int, own_only: bool = False) -> int:
    """When a message that enters the queue now expires, by the expiration model (X2, X4).

    ttl_ends: end of the publisher's TTL, epoch ms, NEVER where there is none. own_only: in a dead
    message queue and after a redrive only the queue's own expiration counts (X5).
    """
    own, most = definition.expiration_ms, definition.max_ttl_ms
    if most is not None and (own is None or most < own):  # max_ttl bounds who has no TTL, too
        own = most
    queue_ends = NEVER if own is None else now + own
    model = definition.expiration_model
    if own_only or model == "queue":
        return queue_ends
    if model == "latest":
        return max(queue_ends, ttl_ends)
    if model == "earliest":
        return min(queue_ends, ttl_ends)
    return ttl_ends if ttl_ends != NEVER else queue_ends
