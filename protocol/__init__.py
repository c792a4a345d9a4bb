"""The protocol: commands, outputs and events, with codecs, bounds and error classes."""

from .errors import (
    ConfigError,
    LakequeueError,
    LeaseLost,
    NotConnected,
    PermissionDenied,
    Problem,
    Reason,
    Rejected,
    Timeout,
    WindowFull,
)

__all__ = [
    "ConfigError",
    "LakequeueError",
    "LeaseLost",
    "NotConnected",
    "PermissionDenied",
    "Problem",
    "Reason",
    "Rejected",
    "Timeout",
    "WindowFull",
]
