"""The worker's process: its memory, its priority, and stack traces if a step hangs.

**Memory** (decision 0027). Payloads come and go in blocks of up to a megabyte. If the process
returned each block to the system at once, the kernel would clear the same memory again and again,
which on some virtual machines costs 15 times as much as writing to it. So the process keeps freed
memory and uses it again, and returns all of it once a minute. Larger blocks are returned at once.
This needs glibc (mallopt(3), malloc_trim(3)); without it, nothing is done.

**Priority** (decision 0028). Clients wait for steps, but not for the tables, which Java writes at
the same time on all cores. So each thread of Java gets a lower priority than the worker. Java
yields while the worker computes, and has all cores while the worker waits for it. This is done only
for a home's only broker. A process may lower its priority but not raise it, and children inherit
it. So with several brokers Java keeps its priority, and a worker that had a higher one lowers its
own to the same.

**Stack traces.** A C timer writes the stacks of all threads to Spark's log if a step takes too
long. It needs no Python lock, so it also shows a thread that holds that lock. The stepping thread
resets the timer every few seconds, and stops it while it waits for other threads.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 128 << 20  # free at a heap's end
LARGE_BYTES = 4 << 20
HEAPS = 2
RETURN_EVERY_S = 60.0
GARBAGE_AFTER = 20_000  # new objects between two collections

_given_back_at = time.monotonic()


def _glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


def keep_free_memory() -> None:
    """Keep freed memory, in this process and its forks. Call it before the first thread starts."""
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_ARENA_MAX, HEAPS)


def return_free_memory(every_s: float = RETURN_EVERY_S) -> None:
    """Return all free memory to the system, at most every ``every_s`` seconds. Call it between two
    batches: it takes some milliseconds, in which other threads wait for memory."""
    global _given_back_at
    now = time.monotonic()
    if now - _given_back_at >= every_s and (trim := _glibc("malloc_trim")) is not None:
        _given_back_at = now
        trim(0)


def collect_garbage_rarely() -> None:
    """Collect garbage rarely, in this process and its forks. Call it after the imports: the
    collector then skips imported objects, so their memory stays shared between forks. Steps make no
    cycles of objects: with Python's usual threshold of 700 new objects, 3 to 10 % of a small step
    was a search for them."""
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)


BELOW = 5  # a worker then has three times the weight of a Java thread if both compute
NICE_MAX = 19


def set_priorities(alone: bool) -> int:
    """Set the priorities of a broker's worker and Java. Call it in the worker at each batch, since
    threads come and go. alone: this is the only broker, and Java yields to this worker; otherwise
    this worker gets Java's priority. Returns how many threads were lowered: none if the system has
    no `/proc` or does not allow it."""
    with suppress(OSError, ValueError):
        java = _parent(os.getppid())  # our parent is the daemon that forks workers
        if alone:
            return _lower(java, os.getpriority(os.PRIO_PROCESS, 0) + BELOW)
        return _lower(os.getpid(), os.getpriority(os.PRIO_PROCESS, java))
    return 0


def _lower(process: int, nice: int) -> int:
    lowered = 0
    for thread in map(int, os.listdir(f"/proc/{process}/task")):
        with suppress(OSError):  # it ended meanwhile
            if os.getpriority(os.PRIO_PROCESS, thread) < min(nice, NICE_MAX):
                os.setpriority(os.PRIO_PROCESS, thread, min(nice, NICE_MAX))
                lowered += 1
    return lowered


def _parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


DUMP_S = 20.0  # before `step_watch` starts the worker again
RESET_S = 2.0


class StackDump:
    """The timer that writes stack traces if one thread hangs."""

    def __init__(self) -> None:
        self._reset_at = float("-inf")

    def reset(self) -> None:
        """Reset the timer: the thread makes progress."""
        now = time.monotonic()
        if now - self._reset_at >= RESET_S:
            self._reset_at = now
            # A worker's standard error goes to Spark's log. A test may have replaced it with an
            # object that is not a file.
            faulthandler.dump_traceback_later(DUMP_S, file=sys.__stderr__ or 2)

    def stop(self) -> None:
        """Stop the timer: the thread now waits for other threads."""
        if self._reset_at > float("-inf"):
            self._reset_at = float("-inf")
            faulthandler.cancel_dump_traceback_later()
