"""An engine in this process has a clock that stands still: whoever waits moves it along with the
clock on the wall."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

WAIT_S = 0.01  # how often somebody who waits looks

_clocks: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def pass_time(connection: Any) -> None:
    """The engine's clock goes on by as much as has passed since somebody called this."""
    now_s = time.monotonic()
    engine = connection.engine
    with _lock:
        passed_s = now_s - _clocks.setdefault(engine, now_s)
        _clocks[engine] = now_s
    connection.advance(passed_s)
