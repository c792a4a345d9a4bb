"""Whoever steps comes first: where cores are scarce, the Java process yields to its worker.

A broker's steps are what clients wait for, and they run in a Python worker. Beside it the
executor's Java process writes the tables, for which nobody waits, on as many threads as there are
cores; on a machine whose cores are all busy these took up to half of the steps' time. The kernel
knows no more than we tell it, so each thread of Java gets a lower priority than the worker has (a
higher nice value): it yields while the worker computes, and has all that is left; while the worker
waits for Java, as when it saves a state, that is everything. Decision 0041 has the figures.

That holds for a broker that is alone in its engine. A process may always lower its own user's
priorities, not raise them, and what is begun later inherits the priority of who begins it: Java
begins a daemon for each broker, which forks that one's workers. So with several brokers Java keeps
the priority that it has, and where a broker was alone before, its worker takes that of the new
ones: none comes before another.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BELOW = 5  # a worker then has three times the weight of a thread of Java, where both compute
NICE_MAX = 19


def share_out(alone: bool) -> int:
    """Called in a broker's worker, at each batch: threads come and go. alone: there is no other
    broker, and the Java process yields to this worker; else this worker gets Java's priority.
    Returns how many threads were lowered; where the system has no `/proc`, or its threads are not
    ours to lower, none is."""
    with suppress(OSError, ValueError):
        java = _parent(os.getppid())  # ours is the daemon that forks workers
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
