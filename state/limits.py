"""What bounds each loop and each page, as arguments: tests make them tiny, so that every boundary
is crossed. A step does at most this much in each of its phases; the rest goes on in the next one.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np

from ..protocol.bounds import OWN_BYTES_MAX, RECORD_BYTES_MAX
from .few import total_of


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a step (rows, bytes, names) and of what is stored in one page.

    The sizes of pages are part of the layout: a state is read with the limits with which it was
    written. Bits: a page has 2 to that power rows.
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
    compact_bytes_per_step: int = 1_000_000
    compact_looks_per_step: int = 16  # pages and blocks read
    deletes_per_step: int = 256  # blocks of files that hold no message any more
    beside: int = 16  # a step that brings little does so much less of bulk, due and compact
    alone: int = 8  # one that brings nothing: who sends something meanwhile waits for its end
    # Of each bridge (H1–H3).
    bridge_rows: int = 10_000  # messages on their way, unanswered
    bridge_bytes: int = 8_000_000  # and their bytes; a single message may overdraw them
    bridge_holds: int = 1_000  # lanes that are known by name while they are held
    # Of messages that other brokers were offered and that are not decided (S5).
    offer_rows: int = 10_000
    offer_bytes: int = 8_000_000  # a single message may overdraw them
    offer_again_ms: int = 100  # a queue that takes them is on its way: ask again after this
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
    # What is stored in one page, one block, one file.
    page_bits: int = 10  # rows of a queue page and of a message page
    chunk_bits: int = 8  # rows of a page of a directory
    leaf_keys: int = 2048  # keys of a leaf of the ready index
    branch_entries: int = 64  # leaves that a page above leaves names
    root_entries: int = 64  # entries of the ready index that stand in the queue's header
    block_bytes: int = 1_000_000
    file_bytes: int = 8_000_000
    calendar_buckets: int = 64
    store_slack_bytes: int = 64_000_000  # stored may be twice what lives, and this

    def __post_init__(self) -> None:
        least = {"leaf_keys": 2, "branch_entries": 2, "root_entries": 2, "store_slack_bytes": 0}
        for name in self.__dataclass_fields__:
            value, low = getattr(self, name), least.get(name, 1)
            if value < low:
                raise ValueError(f"{name}: {value} – must be {low} or more")
        if self.page_bits > 15:
            raise ValueError(f"page_bits: {self.page_bits} – must be 15 or less")


def beside(limits: Limits, records: int) -> Limits:
    """The limits of a step that brings so many records. Whoever sent a few waits for all of the
    step, and nobody for the rest of a million messages that expire or are purged. But as many rows
    as come in, and more, can always go: a record is eight messages at most. Where nothing comes in,
    somebody may send something in the next moment."""
    most = max(limits.due_rows // (16 * records), 1) if records else limits.alone
    return _divided(limits, min(limits.beside, most))


@functools.cache
def _divided(limits: Limits, by: int) -> Limits:
    return dataclasses.replace(
        limits,
        bulk_rows=max(limits.bulk_rows // by, 1),
        bulk_bytes=max(limits.bulk_bytes // by, 1),
        due_rows=max(limits.due_rows // by, 1),
        compact_bytes_per_step=max(limits.compact_bytes_per_step // by, 1),
    )


@dataclass(slots=True)
class Budget:
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

    def fits(self, sizes: np.ndarray) -> int:
        """How many of the first of these sizes the bytes allow, one at least; none of none."""
        if total_of(sizes) <= self.bytes:  # most often
            return len(sizes)
        ends = sizes.cumsum(dtype=np.int64)
        fitting = int(ends.searchsorted(self.bytes, side="right"))
        return min(max(fitting, 1), len(sizes))

    def take(self, rows: int, size: int = 0) -> None:
        """Count what was done."""
        self.rows -= rows
        self.bytes -= size
