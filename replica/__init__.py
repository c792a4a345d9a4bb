"""Drives a broker: log, step, snapshot. Pure: no Kafka, no Spark, no clock."""
