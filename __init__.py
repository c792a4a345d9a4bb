"""Guaranteed message queues on Kafka, Spark Structured Streaming and Delta Lake.

`connect` is where applications start; the errors are all here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Loads public names on first use: each Python process of an engine imports this package, and
    most of them connect to nothing."""
    if name in __all__:
        for room in ("protocol", "client"):
            found = getattr(import_module(f".{room}", __name__), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
