"""Guaranteed message queues on Kafka, Spark Structured Streaming and Delta Lake."""
