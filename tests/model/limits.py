"""Limits so small that a short walk crosses each of them many times."""

from typing import Any

from lakequeue.state import Limits

PAGES: dict[str, Any] = {
    "live_rows": 5, "memory_bytes": 150, "blocks_cached": 2, "segment_rows": 4, "merge_rows": 5,
    "block_bytes": 100, "block_rows": 0, "file_bytes": 300, "store_slack_bytes": 200,
}  # fmt: skip
BUDGETS: dict[str, Any] = {
    "command_rows": 4, "bulk_rows": 3, "bulk_bytes": 200, "due_rows": 3, "due_names": 2,
    "delivery_rows": 3,
    "delivery_bytes": 200, "looks": 5, "look_bytes": 200, "again_rows": 3, "again_bytes": 100,
    "browse_rows": 100, "browse_bytes": 5_000, "browse_pages": 100,
}  # fmt: skip
SMALL_PAGES = Limits(**PAGES)  # the same order of events, from other pages
SMALL_BUDGETS = Limits(**BUDGETS)
TINY = Limits(**PAGES, **BUDGETS)
