"""Bridges to other homes: which exist, what they copy, and the Kafka at the other end."""
