"""What decides whether and how a message enters a queue: the queue's own checks, and its
expressions (Q4, Q6, S3, S10, S11, O2–O4). The same for publishes and for what is redriven (X6)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from ...expressions import Program, as_priority, compile_program, is_true
from ...protocol.errors import Reason
from .lanes import LANE_BITS

if TYPE_CHECKING:
    from ..queue import Queue

LOW_PRIORITY_BELOW = 4
FILTERED = "filter"
KEEPS_LAST = "keeps_last_message"  # the queue keeps one message, and has one


def over_quota(queue: Queue, size: int) -> bool:
    """Whether a message of this size would exceed the queue's quotas, in bytes or in messages.

    Counts what entered in this step too, and what will enter if other brokers agree. A quota of 0
    bytes keeps the last message, so it is never exceeded (S10).
    """
    d = queue.definition
    arrivals, header = queue.arrivals, queue.header
    used = header.bytes + header.kept_bytes + arrivals.staying_bytes
    if d.max_spool_usage and used + size > d.max_spool_usage:
        return True
    most = d.max_spool_messages
    if most is None or not d.max_spool_usage:
        return False
    return header.depth + header.kept + arrivals.staying >= most


def refusal(queue: Queue, size: int, priority: int) -> Reason | None:
    """The first of the queue's own checks in S3 that fails. priority: the publisher's."""
    d = queue.definition
    if over_quota(queue, size):
        return Reason.QUEUE_QUOTA
    if size > d.max_message_size:
        return Reason.MESSAGE_TOO_LARGE
    if not queue.header.ingress:
        return Reason.QUEUE_SHUTDOWN
    limit = d.reject_low_priority_msg_limit
    if limit is None or priority >= LOW_PRIORITY_BELOW:
        return None
    depth = queue.header.depth + queue.header.kept + queue.arrivals.staying
    return Reason.LOW_PRIORITY_LIMIT if depth >= limit else None


def program_of(queue: Queue) -> Program | None:
    """The queue's expressions, compiled; None where it has none."""
    d = queue.definition
    texts = (d.filter, d.priority, d.barrier_expression, d.partition_key)
    return compile_program(texts) if any(texts) else None


def lane_of(key: object) -> int:
    """The lane of a partition key's value: 52 bits of it, 0 for NULL (O4). Two keys that share a
    lane, one pair in 2^52, would only wait for each other."""
    if key is None:
        return 0
    if isinstance(key, float) and key.is_integer():
        key = int(key)  # 1 and 1.0 are the same number
    text = f"{type(key).__name__}:{key}"
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - LANE_BITS) or 1


@dataclass(slots=True)
class Match:
    """A queue that a message enters. priority: by the queue's expression (O2)."""

    queue: Queue
    priority: int
    barrier: bool
    lane: int = 0


def match(
    queue: Queue, program: Program | None, payload: bytes, priority: int, key: bytes | None
) -> Match | None:
    """How a message enters a queue; None if its filter keeps it out (Q4)."""
    if program is None:
        return Match(queue, 0, False)
    passes, level, barrier, lane = program.run(payload, priority, key)
    d = queue.definition
    if d.filter is not None and not is_true(passes):
        return None
    level = 0 if d.priority is None else as_priority(level)
    return Match(queue, level, is_true(barrier), lane_of(lane))


def way_in(
    queue: Queue, program: Program | None, size: int, priority: int, payload: bytes,
    key: bytes | None,
) -> Match | str:  # fmt: skip
    """How a message that is stored already enters a queue in which it is not, or why it cannot (X6,
    R6). size: as quotas count it; priority: the publisher's."""
    reason = refusal(queue, size, priority)
    if reason is not None:
        return reason.value
    if not queue.definition.max_spool_usage and (queue.header.depth or queue.arrivals.ids):
        return KEEPS_LAST
    return match(queue, program, payload, priority, key) or FILTERED
