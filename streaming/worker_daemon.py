"""Spark's Python daemon with its imports done: a worker that is started anew is there at once.

Spark forks Python workers from a daemon, one for a task that finds none idle: at the start, and
when a worker died. PySpark's own daemon imports nothing first, so each new worker takes a second
for its imports, and a broker stands still meanwhile. This one imports what every worker of ours
needs, and then is PySpark's.

PySpark forks first because libraries may begin threads when they are imported, and a fork takes
only its own thread along. Of these libraries two do, jemalloc in pyarrow and OpenBLAS in numpy;
both know of forks and begin theirs anew. Kafka's client begins its threads with its first use.

Only where driver and workers have one Python: on a cluster the package comes with the application,
after the daemon.

Memory that a worker lets go goes back to the system. By itself glibc keeps it: whoever frees large
blocks gets later ones from a heap that only shrinks from its end, and each thread has such a heap.
A broker's large blocks are payloads, and a deep queue lets most of them go again.
"""

from __future__ import annotations

import ctypes
import gc

DAEMON = "lakequeue.streaming.worker_daemon"
# Of mallopt(3): blocks from this size on are the system's, whatever was freed before; few heaps.
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE_BYTES, HEAPS = 128 * 1024, 2


def load() -> None:
    """Import what workers use."""
    import pyspark.sql.pandas.serializers
    import pyspark.sql.streaming.stateful_processor_api_client
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    from . import processor, realtime, worker_loops  # noqa: F401

    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # glibc's
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_ARENA_MAX, HEAPS)
    gc.freeze()  # no worker looks through all that again, and its pages stay shared


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
