"""The Spark session, the streaming queries, and Spark's progress and errors."""
