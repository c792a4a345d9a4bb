"""How long a message may live in a queue: the expiration models (X1, X2, X4, X5)."""

from __future__ import annotations

from ..definitions import QueueDefinition
from .storage import NEVER


def expires_at(definition: QueueDefinition, now: int, ttl_ends: int) -> int:
    """When a message that enters the queue now expires, by the expiration model (X2, X4).

    ttl_ends: end of the publisher's TTL, epoch ms, NEVER where there is none.
    """
    own = definition.expiration_ms
    queue_ends = NEVER if own is None else now + own
    model = definition.expiration_model
    if model == "queue":
        return queue_ends
    if model == "latest":
        return max(queue_ends, ttl_ends)
    if model == "earliest":
        return min(queue_ends, ttl_ends)
    return ttl_ends if ttl_ends != NEVER else queue_ends
