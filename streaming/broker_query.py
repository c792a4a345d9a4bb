"""A broker as the driver sees it: its number, its query, its state, and its public record.

Each broker has its own query, checkpoint, task and loop. So each is restarted alone, and one that
cannot be restarted does not affect the others.

The record `broker/<name>` in `<vpn>.directory` has the broker's number, for clients, and its state
and figures, for `lakequeue brokers`. The driver writes it at the start, when the broker's state
changes, and after each batch.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming import StreamingQuery

from ..protocol import LakequeueError

QUERY = "lakequeue"  # of a home's only broker
STARTING, RUNNING, RESTARTING, FAILED = "starting", "running", "restarting", "failed"


@dataclass(eq=False)
class BrokerQuery:
    """One broker of an engine.

    group: its group of brokers, or empty; run: the id of the loop's run, to which the command that
    ends it refers; ended: set after the loop's last batch; failure: why it is not restarted; hangs:
    why it is restarted although its query has not failed; resting: the home is coming to rest, see
    `brokers_at_rest`.
    """

    name: str
    number: int
    query: StreamingQuery | None = None
    state: str = STARTING
    run: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    hangs: str = ""
    group: str = ""
    resting: bool = False

    @property
    def is_active(self) -> bool:
        """Whether its query runs."""
        return self.query is not None and bool(self.query.isActive)

    def begin(self) -> None:
        """Begin a new run, before the query starts."""
        self.run, self.hangs = uuid.uuid4().hex, ""
        self.ended.clear()


def first_of(brokers: dict[str, BrokerQuery]) -> BrokerQuery:
    """The broker with the lowest number. It reads the partitions of removed brokers."""
    return min(brokers.values(), key=lambda broker: broker.number)


def query_name(broker: str, alone: bool) -> str:
    """The name of a broker's query; Spark and its page show it."""
    return QUERY if alone else f"{QUERY}:{broker}"


def broker_of(query: str, brokers: dict[str, BrokerQuery]) -> str | None:
    """The broker whose query has this name; None for another query."""
    if query == QUERY:
        return next(iter(brokers), None)
    prefix, _, name = query.partition(":")
    return name if prefix == QUERY and name in brokers else None


log = logging.getLogger("lakequeue.engine")

PREFIX = "broker/"


class BrokerRecords:
    """The public records of an engine's brokers. send: writes a key and a value to the directory of
    each VPN; the value None removes the record. It may raise LakequeueError."""

    def __init__(self, send: Callable[[bytes, bytes | None], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        self.epoch = 0

    def state(self, broker: BrokerQuery, state: str) -> None:
        """Publish a broker's new state."""
        broker.state = state
        self._publish(broker, {"state": state, "why": broker.failure or broker.hangs})

    def worker(self, broker: BrokerQuery, worker: str) -> None:
        """Note the worker in which a broker now takes its steps, for its next record."""
        with self._lock:
            self._known.setdefault(broker.name, {})["worker"] = worker

    def batch(self, broker: BrokerQuery, progress: dict[str, Any]) -> None:
        """Publish the figures of a broker's batch. progress: Spark's, as in its JSON."""
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        lasted_ms = int(progress["durationMs"].get("triggerExecution", 0))
        if "steps" not in seen or not lasted_ms:
            return
        with self._lock:
            steps = self._known.get(broker.name, {}).get("steps", 0) + seen["steps"]
        load = round(min(1.0, seen["busy_ms"] / lasted_ms), 3)
        self._publish(broker, {"steps": steps, "load": load, "batch": progress["batchId"]})

    def gone(self, broker: str) -> None:
        """Delete the record of a removed broker."""
        with self._lock:
            self._known.pop(broker, None)
        self._send((PREFIX + broker).encode(), None)

    def _publish(self, broker: BrokerQuery, news: dict[str, Any]) -> None:
        with self._lock:
            about = self._known.setdefault(broker.name, {})
            about.update(news, number=broker.number, epoch=self.epoch, group=broker.group)
            value = json.dumps(about).encode()
        try:
            self._send((PREFIX + broker.name).encode(), value)
        except LakequeueError as error:  # Kafka is down; the next record has everything
            log.debug("the directory was not written: %s", error)
