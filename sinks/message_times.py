"""Histograms of how long messages wait and how long consumers need, from the journal.

The journal has the times at which a message was spooled, delivered and acknowledged. This module
follows a sample of each queue's messages: all of them while they are few. If there are too many,
half of them are dropped, by a hash of the id, and each of the others counts twice. So the sums stay
right and the work is bounded. Only messages that arrive after the engine's start are followed.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from . import metric_table as table
from .queue_figures import OTHER

ROOM = 256  # messages of a queue that are followed at once
AT_ONCE = 64  # new messages of one record
QUEUES_MAX = 500  # queues that are followed; the one with the oldest last event is dropped
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _LEVEL_MAX = np.uint64(40), 24  # the hash has 24 bits

QueueKey = tuple[str, str, str]
WAITING = table.BY_NAME["queue_waiting_seconds"]
PROCESSING = table.BY_NAME["queue_processing_seconds"]
_DELIVERED = ("delivered", "redelivered")
_GONE = (
    "acknowledged", "expired", "consumer_rejected", "purged", "replaced", "redriven", "deleted",
    "lost",
)  # fmt: skip
_HEARD = frozenset(("spooled", "ready", *_DELIVERED, *_GONE))


@dataclass(slots=True)
class _Histogram:
    counts: list[int]
    total: float = 0.0

    def observe(self, seconds: float, weight: int, buckets: tuple[float, ...]) -> None:
        self.counts[bisect_left(buckets, seconds)] += weight
        self.total += seconds * weight


@dataclass(slots=True)
class _Sample:
    """The sample of a queue: id → when it became ready, when it was delivered (0: not yet),
    weight."""

    level: int = 0
    messages: dict[int, list[int]] = field(default_factory=dict)

    def of(self, ids: Any) -> list[int]:
        """The given messages that are in the sample."""
        if not self.level:
            return ids.tolist()
        hashed = (ids * _GOLDEN) >> _SHIFT
        return ids[hashed < np.uint64(1 << (_LEVEL_MAX - self.level))].tolist()

    def more(self, ids: Any, time: int) -> None:
        """Add new messages to the sample."""
        new = self.of(ids)
        while len(new) > AT_ONCE or len(new) + len(self.messages) > ROOM:
            if self.level == _LEVEL_MAX:
                return
            self.level += 1
            kept = set(self.of(np.array([*self.messages], np.uint64)))
            self.messages = {i: m for i, m in self.messages.items() if i in kept}
            for message in self.messages.values():
                message[2] *= 2
            new = self.of(ids)
        for number in new:
            self.messages[number] = [time, 0, 1 << self.level]
        if self.level and len(new) < AT_ONCE // 4 and len(self.messages) < ROOM // 4:
            self.level -= 1  # older ones keep their weight


class MessageTimes:
    """Measures the times of sampled messages. place: returns the labels of a queue."""

    def __init__(self, place: Callable[[str, str, str], QueueKey]) -> None:
        self._place = place
        self._followed: dict[QueueKey, _Sample] = {}
        self._histograms: dict[tuple[str, QueueKey], _Histogram] = {}
        self._lock = threading.Lock()

    def journal(self, broker: str, events: pa.Table) -> None:
        """Read a record of the journal. Records must come in order."""
        with self._lock:
            for batch in events.to_batches():
                self._batch(broker, batch)

    def _batch(self, broker: str, batch: pa.RecordBatch) -> None:
        columns = [batch[name] for name in ("vpn", "queue", "event")]
        names = [column.dictionary.to_pylist() for column in columns]
        if not _HEARD.intersection(names[2]):
            return
        codes = [column.indices.to_numpy(zero_copy_only=False) for column in columns]
        ids = batch["message_id"].fill_null(0).to_numpy(zero_copy_only=False)
        times = batch["time"].to_numpy()
        changes = np.zeros(len(ids), bool)
        changes[:1] = True
        for column in (*codes, times):
            changes[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(changes).tolist()
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            vpn, queue, event = (n[c[start]] for n, c in zip(names, codes, strict=True))
            if event in _HEARD and ids[start]:
                self._heard((broker, vpn, queue), event, ids[start:end], int(times[start]))

    def _heard(self, queue: QueueKey, event: str, ids: Any, time: int) -> None:
        followed = self._followed.pop(queue, None) or _Sample()
        self._followed[queue] = followed  # the newest is last
        if len(self._followed) > QUEUES_MAX:
            del self._followed[next(iter(self._followed))]
        if event == "spooled":
            followed.more(ids, time)
            return
        messages, place = followed.messages, self._place(*queue)
        if not messages:
            return
        for number in followed.of(ids):
            message = messages.get(number)
            if message is None:
                continue
            if event == "ready":
                message[0] = time
            elif event in _DELIVERED:
                if event == "delivered" and not message[1]:
                    self._observe(WAITING, place, time - message[0], message[2])
                message[1] = time
            else:
                if event == "acknowledged" and message[1]:
                    self._observe(PROCESSING, place, time - message[1], message[2])
                del messages[number]

    def _observe(self, metric: table.Metric, place: QueueKey, ms: int, weight: int) -> None:
        key = metric.name, place
        found = self._histograms.get(key)
        if found is None and len(self._histograms) >= 2 * QUEUES_MAX:  # no scrape yet
            key = metric.name, (*place[:2], OTHER)
            found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = _Histogram([0] * (len(metric.buckets) + 1))
        found.observe(max(0, ms) / 1000, weight, metric.buckets)

    def families(self) -> Iterator[Family]:
        """Both histograms, without queues that no longer have series of their own."""
        with self._lock:
            found = {key: (list(h.counts), h.total) for key, h in self._histograms.items()}
            for key in [key for key in found if self._place(*key[1]) != key[1]]:
                del found[key], self._histograms[key]
        for metric in (WAITING, PROCESSING):
            family = HistogramMetricFamily(metric.family, metric.text, labels=metric.labels)
            bounds = [*map(floatToGoString, (*metric.buckets, float("inf")))]
            for (name, place), (counts, total) in found.items():
                if name == metric.name:
                    sums = np.cumsum(counts).tolist()
                    family.add_metric(place, list(zip(bounds, sums, strict=True)), total)
            yield family
