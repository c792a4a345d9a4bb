"""What drives a broker: log, step, snapshot. Pure: no Kafka, no Spark, no clock."""
