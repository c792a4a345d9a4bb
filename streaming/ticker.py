"""Time as input: a tick is sent when the engine's next deadline is due.

The engine runs no batch while nothing happens. It says with each batch when it wants to be woken;
this thread sleeps until then and sends a tick record. A tick too many does no harm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GRACE_S = 0.005
REPEAT_S = 2.0


class Ticker:
    """``send`` puts one tick record on the commands topic."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._deadlines: dict[str, int] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="lakequeue-ticker")

    def start(self) -> None:
        """Begin; the first tick goes out at once, for what came due while nobody watched."""
        self._thread.start()

    def set(self, broker: str, at_ms: int) -> None:
        """A broker's next deadline, epoch ms; 0 for none."""
        with self._changed:
            if at_ms:
                self._deadlines[broker] = at_ms
            else:
                self._deadlines.pop(broker, None)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        self._send()
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.time()
                due = min(self._deadlines.values(), default=0) / 1000
                if not due or due + GRACE_S > now:
                    self._changed.wait(due + GRACE_S - now if due else None)
                    continue
                # Until the batch with this tick reports, the deadline stands; tick again only
                # if that takes long.
                for broker, at in self._deadlines.items():
                    if at / 1000 <= now:
                        self._deadlines[broker] = int((now + REPEAT_S) * 1000)
            self._send()
