"""Guaranteed message queues on Kafka, Spark Structured Streaming and Delta Lake.

`connect` is where applications start; the errors are all here.
"""

from .client import (
    Admin,
    BrowsedMessage,
    Connection,
    Consumer,
    Message,
    Producer,
    Receipt,
    Redriven,
    connect,
)
from .protocol import (
    ConfigError,
    LakequeueError,
    LeaseLost,
    NotConnected,
    PermissionDenied,
    Rejected,
    Timeout,
    WindowFull,
)

__all__ = [
    "Admin",
    "BrowsedMessage",
    "ConfigError",
    "Connection",
    "Consumer",
    "LakequeueError",
    "LeaseLost",
    "Message",
    "NotConnected",
    "PermissionDenied",
    "Producer",
    "Receipt",
    "Redriven",
    "Rejected",
    "Timeout",
    "WindowFull",
    "connect",
]
