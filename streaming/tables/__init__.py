"""Care of the Delta tables: upkeep, repair, restarts of their queries, a Spark session for SQL."""
