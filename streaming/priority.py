"""Whoever steps comes first: where cores are scarce, the Java process yields to its worker.

A broker's steps are what clients wait for, and they run in a Python worker. Beside it the
executor's Java process writes the tables, for which nobody waits, on as many threads as there are
cores; on a machine whose cores are all busy these took up to half of the steps' time. The kernel
knows no more than we tell it, so each thread of Java gets a lower priority than the worker has (a
higher nice value): it yields while the worker computes, and has all that is left; while the worker
waits for Java, as when it saves a state, that is everything. Decision 0041 has the figures.

A process may always lower its own user's priorities, not raise them. Threads and processes that
begin later inherit the priority of who begins them; workers are forked by a daemon that began
before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

BELOW = 5  # a worker then has three times the weight of a thread of Java, where both compute
NICE_MAX = 19


def lower_java() -> int:
    """Lower the priority of the Java process that this worker belongs to. Called in the worker, at
    each batch: threads come and go. Returns how many threads were lowered; where the system has no
    `/proc`, or its threads are not ours to lower, none is."""
    lowered = 0
    with suppress(OSError, ValueError):
        java = _parent(os.getppid())  # ours is the daemon that forks workers
        nice = min(os.getpriority(os.PRIO_PROCESS, 0) + BELOW, NICE_MAX)
        for thread in map(int, os.listdir(f"/proc/{java}/task")):
            with suppress(OSError):  # it ended meanwhile
                if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
                    lowered += 1
    return lowered


def _parent(process: int) -> int:
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
