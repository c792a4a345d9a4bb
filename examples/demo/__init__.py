"""The two demos of `lakequeue demo`.

They use `lakequeue.connect`, as any application would. `flights` runs on real Kafka, Spark and
Delta: it kills a worker while it runs, and ends with accounts that compare the messages sent with
the Delta tables. `bridge` runs in memory.
"""
