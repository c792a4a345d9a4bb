"""Bounds of both Kafka transports: seconds, records, bytes."""

OPEN_SECONDS_MAX = 5.0  # until a connection is refused
ASK_SECONDS_MAX = 5.0  # for a question to Kafka (partitions, end of a partition)
MISSING_SECONDS_MAX = 1.0  # a topic that was just made is not known to every broker at once
FULL_SECONDS_MAX = 10.0  # how long publish waits for room
CLOSE_SECONDS_MAX = 5.0  # how long close waits for what is not sent yet
MESSAGE_BYTES_MAX = 11_990_000  # our topics take 12,000,000 with what Kafka adds to a record
BUFFER_RECORDS_MAX = 100_000
BUFFER_BYTES_MAX = 1024 * 1024 * 1024
POLL_RECORDS_MAX = 4_000
POLL_BYTES_MAX = 8 * 1024 * 1024
FETCH_PARTITION_BYTES_MAX = 16 * 1024 * 1024
FETCH_WAIT_MS = 100
# librdkafka's timer has steps of about a millisecond, so 0.1 costs as much as 1. Publishes of
# 1,000/s arrive 1.5 ms sooner; a flood of records that cannot share one costs a tenth more CPU.
LINGER_MS = 0
RECONNECT_MS_MAX = 1_000
