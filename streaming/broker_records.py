"""What everybody may know of the brokers: a record each, `broker/<name>`, in `<vpn>.directory`.

Clients find a broker's number there, and `lakequeue brokers` how it does. Written at the start,
when a broker's state changes, and with the figures of each batch; the newest of a name counts.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from ..protocol import LakequeueError
from .broker_query import BrokerQuery

log = logging.getLogger("lakequeue.engine")

PREFIX = "broker/"


class BrokerRecords:
    """Of one engine. send: puts a key and a value on the directory of each VPN; None takes the
    record of this key back. It may raise LakequeueError."""

    def __init__(self, send: Callable[[bytes, bytes | None], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self.epoch = 0

    def state(self, broker: BrokerQuery, state: str) -> None:
        """A broker is in this state now."""
        broker.state = state
        self._say(broker, {"state": state, "why": broker.failure or broker.hangs})

    def worker(self, broker: BrokerQuery, worker: str) -> None:
        """A broker steps in this worker now; its next figures say so too."""
        with self._lock:
            self._known.setdefault(broker.name, {})["worker"] = worker

    def batch(self, broker: BrokerQuery, progress: dict[str, Any]) -> None:
        """A batch of a broker is done. progress: Spark's, as in its JSON."""
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        lasted_ms = int(progress["durationMs"].get("triggerExecution", 0))
        if "steps" not in seen or not lasted_ms:
            return
        with self._lock:
            steps = self._known.get(broker.name, {}).get("steps", 0) + seen["steps"]
        load = round(min(1.0, seen["busy_ms"] / lasted_ms), 3)
        self._say(broker, {"steps": steps, "load": load, "batch": progress["batchId"]})

    def gone(self, broker: str) -> None:
        """A broker was removed."""
        with self._lock:
            self._known.pop(broker, None)
        self._send((PREFIX + broker).encode(), None)

    def _say(self, broker: BrokerQuery, news: dict[str, Any]) -> None:
        with self._lock:
            about = self._known.setdefault(broker.name, {})
            about.update(news, number=broker.number, epoch=self.epoch, group=broker.group)
            value = json.dumps(about).encode()
        try:
            self._send((PREFIX + broker.name).encode(), value)
        except LakequeueError as error:  # Kafka is away; the next record says it all
            log.debug("the directory was not written: %s", error)
