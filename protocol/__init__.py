"""What is said on the wire: commands, outputs, events, their codecs, limits and error names."""

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
