"""Queues as Spark data: `spark.readStream` and `df.write` with `format("lakequeue")`.

A job registers `LakequeueDataSource` and names it as a format; see `docs/how-to/spark-jobs.md`.
This room stands beside the engine, not in it: it speaks as a client does, from the driver and from
the executors of somebody's own Spark application.
"""

from .data_source import LakequeueDataSource

__all__ = ["LakequeueDataSource"]
