"""Two threads that send records on time: the engine's heartbeat, and ticks for micro-batches.

**Heartbeat**: a record on `<vpn>.engine` every two seconds. It tells a client without an answer
whether the engine runs, which neither an answer from Kafka nor a lock on another machine shows. A
reader waits for the next record instead of comparing clocks; only `lakequeue doctor` compares its
time. A heartbeat shows that the process lives, not that its queries answer.

**Ticks**: with micro-batches no batch runs without input. Each batch reports the broker's next
deadline, and the thread sends a tick then. An extra tick does no harm.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...protocol import LakequeueError
from ..version import code_version, release
from ..watch_thread import WatchThread

log = logging.getLogger("lakequeue.engine")

EVERY_S = 2.0


class EngineHeartbeat(WatchThread):
    """Sends the heartbeat. send: writes one record to the topic of each VPN; it may raise
    LakequeueError."""

    def __init__(self, send: Callable[[bytes], None], home: Path, every_s: float = EVERY_S) -> None:
        super().__init__("lakequeue-heartbeat")
        self._send = send
        self._every_s = every_s
        self._about: dict[str, object] = {
            "host": socket.gethostname(), "process": os.getpid(), "home": str(home),
            "version": release(), "code": code_version(),
        }  # fmt: skip

    def stop(self) -> None:
        super().stop()
        if self.is_alive():
            self.join(timeout=1)

    def run(self) -> None:
        while not self._stopping.is_set():
            about = {**self._about, "time": round(time.time() * 1000)}
            try:
                self._send(json.dumps(about).encode())
            except LakequeueError as error:  # Kafka is down, so nobody could read it
                log.debug("a heartbeat was not sent: %s", error)
            self._stopping.wait(self._every_s)


GRACE_S = 0.005
REPEAT_S = 2.0


class Ticker(threading.Thread):
    """Sends a tick at each deadline. send: writes one tick record to the commands topic. The first
    tick is sent at once, for deadlines that passed before."""

    def __init__(self, send: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="lakequeue-ticker")
        self._send = send
        self._deadlines: dict[str, int] = {}
        self._changed = threading.Condition()
        self._over = False

    def set(self, broker: str, at_ms: int) -> None:
        """Set a broker's next deadline, epoch ms; 0 for none."""
        with self._changed:
            if at_ms:
                self._deadlines[broker] = at_ms
            else:
                self._deadlines.pop(broker, None)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        self._send()
        while True:
            with self._changed:
                if self._over:
                    return
                now = time.time()
                due = min(self._deadlines.values(), default=0) / 1000
                if not due or due + GRACE_S > now:
                    self._changed.wait(due + GRACE_S - now if due else None)
                    continue
                # The deadline stays until the batch with this tick reports. Tick again only if that
                # takes long.
                for broker, at in self._deadlines.items():
                    if at / 1000 <= now:
                        self._deadlines[broker] = int((now + REPEAT_S) * 1000)
            self._send()
