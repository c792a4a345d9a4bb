"""Bounds for every loop and every page.

They are arguments, so that tests can make them tiny and cross every boundary. A phase of a step
does at most this much; the next step goes on with the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from ..protocol.bounds import OWN_BYTES_MAX, RECORD_BYTES_MAX

PASSED_OVER = 8  # reading this many other rows of a segment costs as much as one that is wanted


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one step, of what stays in memory, and of one page.

    They decide only what is written next: any stored state can be read with any limits.
    """

    # Rows and bytes per step, summed over all queues.
    command_rows: int = 10_000  # rows that acks, cancels and renewals read or change
    bulk_rows: int = 2_000  # rows that a purge, redrive, deletion or expression reads
    bulk_bytes: int = 2_000_000  # payloads and expressions that these read
    due_rows: int = 2_000  # rows with a deadline that has passed
    due_names: int = 1_000  # queues, sessions and producers with a deadline that has passed
    delivery_rows: int = 20_000
    delivery_bytes: int = 16_000_000
    message_bytes: int = RECORD_BYTES_MAX - OWN_BYTES_MAX  # one message, as it is delivered
    again_rows: int = 20_000  # sent again because no client confirmed them
    again_bytes: int = 16_000_000
    looks: int = 20_000  # messages that consumers' filters are evaluated on
    look_bytes: int = 16_000_000  # payloads and filters that this reads
    merge_rows: int = 2_000  # cold rows that a step merges
    beside: int = 16  # a step with few records divides its bulk, due and merge limits by this
    alone: int = 8  # a step without records divides them by this: a new record waits for its end
    # Of each bridge (H1–H3).
    bridge_rows: int = 10_000  # messages sent and not yet answered
    bridge_bytes: int = 8_000_000  # and their bytes; a single message may overdraw them
    bridge_holds: int = 1_000  # held lanes that are remembered by name
    # Not confirmed yet by a broker that is away: changes of the directory (Q9), and records to it.
    unconfirmed_changes: int = 100_000
    unconfirmed_bytes: int = 32_000_000
    unconfirmed_records: int = 10_000  # then nothing is added that can wait or be refused
    # Waiting commands, subscriptions, acks and receipts.
    pending_commands: int = 10_000  # of one queue
    subscriptions: int = 10_000  # of one queue, and of one session
    session_queue_subscriptions: int = 256  # of one session to one queue
    queues: int = 100_000  # of one VPN
    filter_characters: int = 1_000_000  # of all subscriptions of one queue
    early_acks: int = 10_000  # ranges of one queue (L9)
    held_receipts: int = 1_000_000  # waiting for the Delta tables
    # Answers.
    browse_rows: int = 10_000  # messages that one answer reads
    browse_bytes: int = 4_000_000  # payloads that it reads
    browse_pages: int = 500  # segments and blocks that it reads
    queues_listed: int = 200
    captures_listed: int = 2_000
    # History.
    events: int = 1_000
    producer_idle_ms: int = 7 * 86_400_000  # then the broker forgets a producer's sequences (P1)
    # Memory.
    live_rows: int = 8_192  # of one queue; above that a quarter of them becomes cold
    memory_bytes: int = 16_000_000  # contents; above that the spool writes them to blocks
    blocks_cached: int = 16  # blocks that were read and stay in memory
    # Sizes of a page, a block and a spool file.
    segment_rows: int = 1_024  # rows of a segment of a run
    block_bytes: int = 1_000_000
    block_rows: int = 20  # reading a block counts as reading this many rows
    file_bytes: int = 8_000_000
    store_slack_bytes: int = 64_000_000  # the store may have twice the live bytes plus this

    def __post_init__(self) -> None:
        least = {"live_rows": 2, "store_slack_bytes": 0, "block_rows": 0}
        for name in self.__dataclass_fields__:
            value, low = getattr(self, name), least.get(name, 1)
            if value < low:
                raise ValueError(f"{name}: {value} – allowed is {low} or more")


def divisor(limits: Limits, records: int) -> int:
    """By how much a step with this many records divides its bulk, due and merge limits.

    The sender of a few records waits for the whole step, but must not wait for a million other
    messages to expire. Still, more rows can leave than come in: a record has eight messages at
    most. A step without records is bounded too: a record may arrive just after it began.
    """
    if not records:
        return min(limits.beside, limits.alone)
    return min(limits.beside, max(limits.due_rows // (16 * records), 1))


class Budget(msgspec.Struct):
    """The rows and bytes that a phase may still use. whole: the budget that this is a share of."""

    rows: int
    bytes: int = 1 << 62
    whole: Budget | None = None

    @property
    def spent(self) -> bool:
        """Whether nothing is left; a single message may overdraw the bytes."""
        return self.rows <= 0 or self.bytes <= 0

    def share(self, n: int) -> Budget:
        """One of ``n`` equal shares of the rest: at least one row and one byte."""
        if self.spent:
            return Budget(0, 0, self)
        return Budget(max(self.rows // n, 1), max(self.bytes // n, 1), self)

    def fits(self, sizes: Sequence[int]) -> int:
        """The number of sizes, from the first on, that fit into the bytes; at least one."""
        if sum(sizes) <= self.bytes:  # most often
            return len(sizes)
        return max(bisect_right(list(accumulate(sizes)), self.bytes), 1)

    def take(self, rows: int, size: int = 0) -> None:
        """Use up rows and bytes, also of the whole."""
        self.rows -= rows
        self.bytes -= size
        if self.whole is not None:
            self.whole.take(rows, size)
