"""Memory that a worker lets go: kept for a moment, and then the system's again.

Payloads come and go, in blocks of up to a megabyte. Were each block the system's own, or were the
heap cut back whenever its end is free, the kernel would have to clear the same memory again and
again; on a virtual machine whose host takes back what is free, that costs 15 times what it costs to
write there (decision 0027). So what is let go is used again, and once a minute all that is free
goes back: a queue that was deep is not forever. Blocks larger than any payload's are the system's
at once. Each thread could have a heap of its own; here there are few.

That is glibc's (mallopt(3), malloc_trim(3)); where Python runs on something else, nothing is done.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 128 << 20  # free at a heap's end
LARGE_BYTES = 4 << 20
HEAPS = 2
EVERY_S = 60.0

_given_back_at = time.monotonic()


def _glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


def keep() -> None:
    """From now on. Before the first thread: what is set belongs to the process and its forks."""
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_ARENA_MAX, HEAPS)


def give_back(every_s: float = EVERY_S) -> None:
    """All that is free, if the last time was so long ago. Between two pieces of work: it takes some
    milliseconds, in which others wait for memory."""
    global _given_back_at
    now = time.monotonic()
    if now - _given_back_at >= every_s and (trim := _glibc("malloc_trim")) is not None:
        _given_back_at = now
        trim(0)
