"""A Spark job that reads a queue into a Delta table, each message once.

    python examples/spark_job.py kafka://127.0.0.1:9092 orders lake

Needs a running engine (`lakequeue up`). Each run reads the messages that are in the queue;
docs/how-to/spark-jobs.md explains the options and the guarantees.
"""

import sys
from pathlib import Path

from lakequeue.dataframes import LakequeueDataSource
from lakequeue.streaming.jars import ensure_jars
from lakequeue.streaming.spark.spark_session import spark_session

if len(sys.argv) < 4:
    sys.exit("usage: python examples/spark_job.py URL QUEUE FOLDER")
url, queue, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3]).absolute()
spark = spark_session("orders", master="local[2]", jars=ensure_jars().spark)
spark.dataSource.register(LakequeueDataSource)
rows = spark.readStream.format("lakequeue").options(connection=url, queue=queue).load()
query = (
    rows.writeStream.format("delta")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)  # the messages that are there now; without it, for ever
    .start(str(folder / "orders"))
)
query.awaitTermination()
for row in spark.read.format("delta").load(str(folder / "orders")).collect():
    print(row.message_id, bytes(row.payload), row.delivery_count)
spark.stop()
