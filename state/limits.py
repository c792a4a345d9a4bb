"""What bounds each loop and each page, as arguments: tests make them tiny, so that every boundary
is crossed. A step does at most this much in each of its phases; the rest goes on in the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ..protocol.bounds import OWN_BYTES_MAX, RECORD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a step (rows, bytes, names) and of what is kept in memory and in one page.

    Any stored state can be read with any limits: they decide only what is written next.
    """

    # Rows and bytes in a step, of all queues together.
    command_rows: int = 10_000  # rows that acks and their like look at or change
    bulk_rows: int = 2_000  # rows that a purge, a redrive, a deletion, an expression looks at
    bulk_bytes: int = 2_000_000  # payloads, and expressions, that these read
    due_rows: int = 2_000  # rows whose time has come
    due_names: int = 1_000  # queues, sessions, producers whose time has come
    delivery_rows: int = 20_000
    delivery_bytes: int = 16_000_000
    message_bytes: int = RECORD_BYTES_MAX - OWN_BYTES_MAX  # of one, as it is delivered
    again_rows: int = 20_000  # sent again, since nobody said that they arrived
    again_bytes: int = 16_000_000
    looks: int = 20_000  # messages that consumers' filters look at
    look_bytes: int = 16_000_000  # payloads, and filters, that they read
    merge_rows: int = 2_000  # cold rows that a step merges
    beside: int = 16  # a step that brings little does so much less of bulk, due and merge
    alone: int = 8  # one that brings nothing: a record that comes meanwhile waits for its end
    # Of each bridge (H1–H3).
    bridge_rows: int = 10_000  # messages on their way, unanswered
    bridge_bytes: int = 8_000_000  # and their bytes; a single message may overdraw them
    bridge_holds: int = 1_000  # lanes that are known by name while they are held
    # What waits for its turn, or for its message.
    pending_commands: int = 10_000  # of one queue
    subscriptions: int = 10_000  # of one queue, and of one session
    session_queue_subscriptions: int = 256  # of one session to one queue
    queues: int = 100_000  # of one VPN
    filter_characters: int = 1_000_000  # of all subscriptions of one queue
    early_acks: int = 10_000  # ranges of one queue (L9)
    held_receipts: int = 1_000_000  # that wait for the Delta tables
    ignored_acks: int = 10_000  # ids of one command that are named in the journal (L8)
    # Answers.
    browse_rows: int = 10_000  # messages that one answer looks at
    browse_bytes: int = 4_000_000  # payloads that it reads
    browse_pages: int = 500  # pages of any kind that it reads
    queues_listed: int = 200
    captures_listed: int = 2_000
    # What is remembered.
    events: int = 1_000
    producer_idle_ms: int = 7 * 86_400_000  # then a producer's sequences are forgotten (P1)
    # What is kept in memory.
    live_rows: int = 8_192  # of one queue; above that a quarter of them goes to its cold part
    memory_bytes: int = 16_000_000  # contents; above that the spool writes them to blocks
    blocks_cached: int = 16  # blocks of contents that were read and are kept
    # What is stored in one page, one block, one file.
    segment_rows: int = 1_024  # rows of a segment of a run
    block_bytes: int = 1_000_000
    block_rows: int = 20  # what a block that is read takes of a step's rows
    file_bytes: int = 8_000_000
    store_slack_bytes: int = 64_000_000  # stored may be twice what lives, and this

    def __post_init__(self) -> None:
        least = {"live_rows": 2, "store_slack_bytes": 0, "block_rows": 0}
        for name in self.__dataclass_fields__:
            value, low = getattr(self, name), least.get(name, 1)
            if value < low:
                raise ValueError(f"{name}: {value} – must be {low} or more")


def beside(limits: Limits, records: int) -> Limits:
    """The limits of a step that brings so many records.

    The sender of a few records waits for the whole step, so it must not wait for the rest of a
    million messages that expire or are purged. But as many rows as come in, and more, can always
    go: a record is eight messages at most. A step that brings nothing is bounded as well, because
    a record may come in the next moment.
    """
    most = max(limits.due_rows // (16 * records), 1) if records else limits.alone
    by = min(limits.beside, most)
    known = _divided.get((id(limits), by))
    if known is None or known[0] is not limits:
        known = _divided[id(limits), by] = limits, _divide(limits, by)
    return known[1]


# By identity: a hash of all limits would cost more than many a step.
_divided: dict[tuple[int, int], tuple[Limits, Limits]] = {}


def _divide(limits: Limits, by: int) -> Limits:
    return dataclasses.replace(
        limits,
        bulk_rows=max(limits.bulk_rows // by, 1),
        bulk_bytes=max(limits.bulk_bytes // by, 1),
        due_rows=max(limits.due_rows // by, 1),
        merge_rows=max(limits.merge_rows // by, 1),
    )


class Budget(msgspec.Struct):
    """What is left of a phase's rows and bytes."""

    rows: int
    bytes: int = 1 << 62

    @property
    def spent(self) -> bool:
        """Whether nothing is left; a single message may overdraw the bytes."""
        return self.rows <= 0 or self.bytes <= 0

    def share(self, n: int) -> Budget:
        """An equal share of what is left for one of ``n``; a row and a byte at least."""
        if self.spent:
            return Budget(0, 0)
        return Budget(max(self.rows // n, 1), max(self.bytes // n, 1))

    def fits(self, sizes: Sequence[int]) -> int:
        """How many of the first of these sizes the bytes allow, one at least; none of none."""
        left = self.bytes
        if sum(sizes) <= left:  # most often
            return len(sizes)
        for fitting, size in enumerate(sizes):
            left -= size
            if left < 0:
                return max(fitting, 1)
        raise AssertionError("a sum above the budget has a prefix above it")

    def take(self, rows: int, size: int = 0) -> None:
        """Count what was done."""
        self.rows -= rows
        self.bytes -= size
