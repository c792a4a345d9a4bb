"""Examples that are run: `lakequeue demo` tells two stories on real Kafka and Spark.

They are applications like anybody's: they speak to the engine through `lakequeue.connect` and start
it through the command `lakequeue up`, so they may import every room, and no room imports them. Each
breaks something on the way and ends with accounts that compare what was sent with what the tables
in Delta say.
"""
