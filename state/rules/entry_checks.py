"""What decides whether and how a message enters a queue: the queue's own checks, and its
expressions (Q4, Q6, S3, S10, S11, O2–O4). The same for publishes and for what is redriven (X6).
Nothing here changes anything."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from ...expressions import Program, as_priority, compile_program, is_true
from ...protocol.errors import Reason
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..storage.row import Row

LOW_PRIORITY_BELOW = 4
LANE_BITS = 52
FILTERED = "filter"
KEEPS_LAST = "keeps_last_message"  # the queue keeps one message, and has one


def may_be_elsewhere(broker: Broker, row: Row) -> bool:
    """Whether another queue here may hold a message too: most are in one queue only. What came from
    another broker came for each queue by itself; so it may have died there, and come back."""
    if broker.mesh is not None and broker.mesh.keeps_directory:
        return True
    return row.stored != row.id or broker.spool.matches(row.stored) > 1


def over_quota(queue: Queue, size: int, messages: int = 1) -> bool:
    """Whether messages of this size together would exceed the queue's quotas, in bytes or in
    messages. A quota of 0 bytes keeps the last message, so it is never exceeded (S10)."""
    d, header = queue.header.definition, queue.header
    if not d.max_spool_usage:
        return False
    if header.bytes + size > d.max_spool_usage:
        return True
    return d.max_spool_messages is not None and header.depth + messages > d.max_spool_messages


def refusal(queue: Queue, sizes: list[int], size: int, priority: int) -> Reason | None:
    """The first of the queue's own checks in S3 that fails, of messages with these sizes, together
    `size`. priority: the publisher's."""
    d = queue.header.definition
    if over_quota(queue, size, len(sizes)):
        return Reason.QUEUE_QUOTA
    if size > d.max_message_size and max(sizes) > d.max_message_size:
        return Reason.MESSAGE_TOO_LARGE
    if not queue.header.ingress:
        return Reason.QUEUE_SHUTDOWN
    limit = d.reject_low_priority_msg_limit
    if limit is None or priority >= LOW_PRIORITY_BELOW:
        return None
    return Reason.LOW_PRIORITY_LIMIT if queue.header.depth + len(sizes) > limit else None


def program_of(queue: Queue) -> Program | None:
    """The queue's expressions, compiled; None where it has none."""
    d = queue.header.definition
    if queue.program_of is not d:
        texts = (d.filter, d.priority, d.barrier_expression, d.partition_key)
        queue.program = compile_program(texts) if any(texts) else None
        queue.program_of = d
    program: Program | None = queue.program
    return program


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


class Match(NamedTuple):
    """How a message enters a queue. level: by the queue's priority expression (O2)."""

    queue: Queue
    level: int = 0
    barrier: bool = False
    lane: int = 0


def plain_match(queue: Queue) -> Match:
    """How a message enters a queue without expressions: made once for each queue."""
    known: Match | None = queue.plain_match
    if known is None:
        known = queue.plain_match = Match(queue)
    return known


def match(queue: Queue, payload: bytes, priority: int, key: bytes | None) -> Match | None:
    """How a message enters a queue; None if its filter keeps it out (Q4)."""
    program = program_of(queue)
    if program is None:
        return plain_match(queue)
    passes, level, barrier, lane = program.run(payload, priority, key)
    d = queue.definition
    if d.filter is not None and not is_true(passes):
        return None
    level = 0 if d.priority is None else as_priority(level)
    return Match(queue, level, is_true(barrier), lane_of(lane))


def dead_match(queue: Queue, payload: bytes, priority: int, key: bytes | None) -> Match:
    """Where a dead message stands in a dead message queue. No filter keeps it out (X5)."""
    program = program_of(queue)
    if program is None:
        return Match(queue)
    _, level, barrier, lane = program.run(payload, priority, key)
    level = 0 if queue.definition.priority is None else as_priority(level)
    return Match(queue, level, is_true(barrier), lane_of(lane))


def way_in(
    queue: Queue, size: int, priority: int, payload: bytes, key: bytes | None
) -> Match | str:
    """How a message that is stored already enters a queue in which it is not, or why it cannot (X6,
    R6). size: as quotas count it; priority: the publisher's."""
    reason = refusal(queue, [size], size, priority)
    if reason is not None:
        return reason.value
    if not queue.definition.max_spool_usage and queue.header.depth:
        return KEEPS_LAST
    return match(queue, payload, priority, key) or FILTERED
