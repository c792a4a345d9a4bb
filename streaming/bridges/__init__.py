"""Bridges to other homes: they are found, copied for, and connected to the other Kafka."""
