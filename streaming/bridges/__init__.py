"""Bridges to other homes: finds them, connects to the other Kafka, and copies."""
