"""Whether a queue has room for one more message (S3, S10)."""

from __future__ import annotations

from .queue import Queue


def over_quota(queue: Queue, size: int) -> bool:
    """Whether a message of this size would exceed the queue's quotas, in bytes or in messages.

    Counts what entered in this step too. A quota of 0 bytes keeps the last message, so it is never
    exceeded (S10).
    """
    d = queue.definition
    arrivals = queue.arrivals
    if d.max_spool_usage and queue.header.bytes + arrivals.bytes + size > d.max_spool_usage:
        return True
    most = d.max_spool_messages
    if most is None or not d.max_spool_usage:
        return False
    return queue.header.depth + len(arrivals.ids) >= most
