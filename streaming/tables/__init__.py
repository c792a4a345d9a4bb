"""The Delta tables beside the queries that write them: upkeep, repair, restarts, SQL with Spark."""
