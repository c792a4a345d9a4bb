"""The Spark session, the streaming queries, and what Spark reports."""
