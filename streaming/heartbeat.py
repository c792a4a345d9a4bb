"""The engine says that it lives: a record on `<vpn>.engine` every two seconds.

Who asks the engine something and gets no answer wants to know what is not there. That Kafka answers
says nothing of the engine; a lock in the home says nothing on another machine. So the driver's
process tells it, in a topic that clients may read. Whether it lives is not told by clocks: who
looks waits for the next record; the time in it is for `lakequeue doctor`, which compares them.
It says that the process lives, not that its queries answer.
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

from ..protocol import LakequeueError
from .version import code_version, release

log = logging.getLogger("lakequeue.engine")

EVERY_S = 2.0


class EngineHeartbeat:
    """``send`` puts one record on the topic of each VPN; it may raise LakequeueError."""

    def __init__(self, send: Callable[[bytes], None], home: Path, every_s: float = EVERY_S) -> None:
        self._send = send
        self._every_s = every_s
        self._about: dict[str, object] = {
            "host": socket.gethostname(), "process": os.getpid(), "home": str(home),
            "version": release(), "code": code_version(),
        }  # fmt: skip
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="lakequeue-heartbeat")

    def start(self) -> None:
        """Begin, with the first record at once."""
        self._thread.start()

    def stop(self) -> None:
        """From now on nothing is said."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        while not self._stopping.is_set():
            about = {**self._about, "time": round(time.time() * 1000)}
            try:
                self._send(json.dumps(about).encode())
            except LakequeueError as error:  # Kafka is away: who asks cannot hear anything either
                log.debug("a heartbeat was not sent: %s", error)
            self._stopping.wait(self._every_s)
