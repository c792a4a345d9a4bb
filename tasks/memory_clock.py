"""The clock of an engine in this process stands still, so callers that wait move it in step with
real time."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

WAIT_S = 0.01  # between two looks of a caller that waits

_clocks: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def pass_time(connection: Any) -> None:
    """Advance the engine's clock by the real time since the last call."""
    now_s = time.monotonic()
    engine = connection.engine
    with _lock:
        passed_s = now_s - _clocks.setdefault(engine, now_s)
        _clocks[engine] = now_s
    connection.advance(passed_s)
