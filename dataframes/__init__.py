"""Queues as Spark data: `spark.readStream` and `df.write` with `format("lakequeue")`.

A job registers `LakequeueDataSource` and uses it as a format; see `docs/how-to/spark-jobs.md`. This
package is a client of the engine, in the driver and executors of your own Spark application.
"""

from .data_source import LakequeueDataSource

__all__ = ["LakequeueDataSource"]
