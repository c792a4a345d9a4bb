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
"""

from __future__ import annotations

import gc

DAEMON = "lakequeue.streaming.loop.worker_daemon"


def load() -> None:
    """Import what workers use."""
    import pyspark.sql.pandas.serializers
    import pyspark.sql.streaming.stateful_processor_api_client
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    from . import loop, processor, realtime  # noqa: F401
    from .worker_process import keep_free_memory

    keep_free_memory()
    gc.freeze()  # no worker looks through all that again, and its pages stay shared


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
