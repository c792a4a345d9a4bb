"""Whether and how a message enters a queue (Q4, Q6, R2, S3, S10, S11, O2–O4, X1, X2).

The queue's own checks, its expressions, its expiration model and its recovery point. The same
functions serve publishes and redriven messages (X6). Nothing here changes any state.

Recovery points (R2). The engine reads a new topic from its beginning. A new queue takes the records
that its recovery point allows: all (`epoch`), those since it was created (`creation`), since its
definition said `now`, since a time, or from a bookmark's message id on. The same definition again
changes nothing. This concerns plain records only: a producer that waits for an answer is never too
early.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from ...definitions import QueueDefinition
from ...expressions import Program, as_priority, compile_program, is_true
from ...protocol.errors import Reason
from ...protocol.ids import COUNTER_BITS
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..storage.blocks import Content
from ..storage.row import NEVER, TTL_OVER, Row

LOW_PRIORITY_BELOW = 4
LANE_BITS = 52
DECIMAL_BITS_MAX = 10_000  # Python writes integers of more than 4,300 digits in hex only
FILTERED = "filter"
KEEPS_LAST = "keeps_last_message"  # the queue keeps one message, and has one


def has_already(broker: Broker, queue: Queue, row: Row) -> bool:
    """Whether another queue has the message too. Most messages are in one queue, which their count
    shows. With other brokers it does not: a message arrives once for each queue, and may have died
    there and come back."""
    counts = not broker.mesh.keeps_directory and row.stored == row.id
    is_alone = counts and broker.spool.matches(row.stored) < 2
    return not is_alone and queue.holds(row.id)


def over_quota(queue: Queue, size: int, messages: int = 1) -> bool:
    """Whether messages with this total size would exceed the queue's quota of bytes or messages. A
    quota of 0 bytes keeps the last message, so nothing exceeds it (S10)."""
    d, header = queue.header.definition, queue.header
    if not d.max_spool_usage:
        return False
    if header.bytes + size > d.max_spool_usage:
        return True
    return d.max_spool_messages is not None and header.depth + messages > d.max_spool_messages


def refusal(queue: Queue, sizes: list[int], size: int, priority: int) -> Reason | None:
    """The first of the queue's own checks in S3 that messages with these sizes fail; None if they
    pass. size: their sum; priority: the publisher's."""
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
    """The queue's expressions, compiled; None if it has none."""
    d = queue.header.definition
    if queue.program_of is not d:
        texts = (d.filter, d.priority, d.barrier_expression, d.partition_key)
        queue.program = compile_program(texts) if any(texts) else None
        queue.program_of = d
    program: Program | None = queue.program
    return program


def lane_of(key: object) -> int:
    """The lane of a partition key: 52 bits of its hash, 0 for NULL (O4). Two keys share a lane with
    a chance of 1 in 2^52, and then only wait for each other."""
    if key is None:
        return 0
    if isinstance(key, float) and key.is_integer():
        key = int(key)  # 1 and 1.0 are the same number
    is_long = isinstance(key, int) and key.bit_length() > DECIMAL_BITS_MAX
    text = f"{type(key).__name__}:{hex(key) if is_long else key}"  # type: ignore[arg-type]
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - LANE_BITS) or 1


class Match(NamedTuple):
    """How a message enters a queue. level: by the queue's priority expression (O2)."""

    queue: Queue
    level: int = 0
    barrier: bool = False
    lane: int = 0


def plain_match(queue: Queue) -> Match:
    """How a message enters a queue without expressions. Each queue has one such object."""
    found: Match | None = queue.plain_match
    if found is None:
        found = queue.plain_match = Match(queue)
    return found


def match(
    queue: Queue, payload: bytes, priority: int, key: bytes | None, is_dead: bool = False
) -> Match | None:
    """How a message enters a queue; None if the queue's filter refuses it (Q4). To a dead message
    the filter does not apply (X5)."""
    program = program_of(queue)
    if program is None:
        return plain_match(queue)
    passes, level, barrier, lane = program.run(payload, priority, key)
    d = queue.definition
    if d.filter is not None and not is_dead and not is_true(passes):
        return None
    level = 0 if d.priority is None else as_priority(level)
    return Match(queue, level, is_true(barrier), lane_of(lane))


def match_stored(queue: Queue, row: Row, content: Content) -> Match | str:
    """How a stored message enters another queue, or the reason why it cannot (X6, R6)."""
    reason = refusal(queue, [row.size], row.size, row.priority)
    if reason is not None:
        return reason.value
    if not queue.definition.max_spool_usage and queue.header.depth:
        return KEEPS_LAST
    return match(queue, content[0], row.priority, content[1]) or FILTERED


# ---------------------------------------------------------------- lifetime


def expires_at(definition: QueueDefinition, now: int, ttl_ends: int) -> int:
    """When a message that enters the queue now will expire, by the expiration model (X2, X4).

    ttl_ends: see `Row`.
    """
    own, most = definition.expiration_ms, definition.max_ttl_ms
    # max_ttl also bounds messages without a TTL
    if most is not None and (own is None or most < own):
        own = most
    queue_ends = NEVER if own is None else now + own
    model = definition.expiration_model
    if ttl_ends == TTL_OVER or model == "queue":
        return queue_ends
    if model == "latest":
        return max(queue_ends, ttl_ends)
    if model == "earliest":
        return min(queue_ends, ttl_ends)
    return ttl_ends if ttl_ends != NEVER else queue_ends


# ---------------------------------------------------------------- recovery points


def recovers(queue: Queue, published: int, next_id: int) -> bool:
    """Whether the queue takes a plain record (R2). published: epoch ms; next_id: the id that the
    record would get."""
    point = queue.definition.recovery_point
    if point == "epoch":
        return True
    header = queue.header
    if point == "creation":
        return published >= header.created
    if point == "now":
        return published >= max(header.created, header.pointed)
    if point.isdecimal():  # of another broker: the queue has moved, so its recorded state counts
        return next_id >> COUNTER_BITS != int(point) >> COUNTER_BITS or next_id >= int(point)
    return published >= _ms(point)


@lru_cache(maxsize=1_000)
def _ms(point: str) -> int:
    return round(datetime.fromisoformat(point).timestamp() * 1000)
