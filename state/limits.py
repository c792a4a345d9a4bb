"""What bounds the state's pages and the work of a step: numbers given as an argument.

A loop or a page whose size could grow has its number here. Tests run the same code with pages of 4,
leaves of 3 and chunks of 4, so that each bound is crossed many times in a short walk. The sizes of
pages are part of the layout: a state is read with the limits with which it was written.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of pages, and what one step may do. Bits: a page has 2 to that power rows."""

    page_bits: int = 10  # rows of a queue page and of a message page
    chunk_bits: int = 8  # rows of a page of a directory
    leaf_keys: int = 2048  # keys of a leaf of the ready index
    branch_entries: int = 64  # leaves that a page above leaves names
    root_entries: int = 64  # entries of the ready index that stand in the queue's header
    block_bytes: int = 1_000_000
    file_bytes: int = 8_000_000
    calendar_buckets: int = 64
    store_slack_bytes: int = 64_000_000  # stored may be twice what lives, and this
    compact_bytes_per_step: int = 1_000_000
    compact_looks_per_step: int = 16  # pages and blocks read
    deletes_per_step: int = 256  # blocks of files that hold no message any more
    due_per_step: int = 10_000  # names that the calendar gives

    def __post_init__(self) -> None:
        least = {"page_bits": 1, "chunk_bits": 1, "leaf_keys": 2, "branch_entries": 2,
                 "root_entries": 2, "store_slack_bytes": 0}  # fmt: skip
        for name in self.__dataclass_fields__:
            value, low = getattr(self, name), least.get(name, 1)
            if value < low:
                raise ValueError(f"{name}: {value} – must be {low} or more")
        if self.page_bits > 15:
            raise ValueError(f"page_bits: {self.page_bits} – must be 15 or less")


# The sizes of the default limits, for the rules that are not given any.
DEFAULT = Limits()
PAGE_BITS = DEFAULT.page_bits
PAGE_ROWS = 1 << PAGE_BITS
ROW_MASK = PAGE_ROWS - 1
