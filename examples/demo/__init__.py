"""The applications of `lakequeue demo`: stories on real Kafka, Spark and Delta.

They use `lakequeue.connect` and start the engine with `lakequeue up`, as any application would.
Each breaks something on the way, and ends with accounts that compare what was sent with the Delta
tables.
"""
