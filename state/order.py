"""The order of a queue as one integer a message: smaller goes out first (O1, O2, L7).

The key is the place in the queue (*seq*), or under `priority` the inverted priority in front of it.
"""

from __future__ import annotations

SEQ_BITS = 64
SEQ_MASK = (1 << SEQ_BITS) - 1
PRIORITY_MAX = (1 << 64) - 1


def key_of(seq: int, priority: int | None) -> int:
    """The key of a place; ``priority`` None for queues without priority order."""
    return seq if priority is None else (PRIORITY_MAX - priority) << SEQ_BITS | seq
