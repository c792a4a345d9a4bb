"""Spark's Python daemon with all imports done, so that a new worker is ready at once.

Spark forks a Python worker from a daemon if no idle one is left: at the start, and after a worker
died. With PySpark's own daemon each new worker needs a second for its imports, during which its
broker takes no steps. This daemon does these imports first, and then runs PySpark's.

PySpark forks before it imports, because libraries may start threads when they are imported, and a
fork copies only its own thread. Two of our libraries do, jemalloc in pyarrow and OpenBLAS in numpy,
but both handle forks. Kafka's client starts its threads when it is first used.

This works only if driver and workers use the same Python. On a cluster the package arrives with the
application, after the daemon has started.
"""

from __future__ import annotations

DAEMON = "lakequeue.streaming.loop.worker_daemon"


def load() -> None:
    """Import the modules that workers use."""
    import pyspark.sql.pandas.serializers
    import pyspark.sql.streaming.stateful_processor_api_client
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    from . import loop, processor, realtime  # noqa: F401
    from .worker_process import collect_garbage_rarely, keep_free_memory

    keep_free_memory()
    collect_garbage_rarely()


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
