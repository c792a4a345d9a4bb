"""Limits so small that a short walk crosses each of them many times."""

from lakequeue.state.limits import Limits

TINY = Limits(
    page_bits=2, chunk_bits=2, leaf_keys=3, branch_entries=3, root_entries=2, block_bytes=20,
    file_bytes=60, calendar_buckets=3, store_slack_bytes=100, compact_bytes_per_step=30,
    compact_looks_per_step=3, deletes_per_step=2,
)  # fmt: skip
