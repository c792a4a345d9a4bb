"""Brokers, streaming queries and times of messages, from the engine's metrics."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..sinks.metric_table import BATCH, QUERY, of

READ_S = 3.0
POINTS = 150
QUEUES_KEPT = 20  # queues whose waiting times are kept: those requested last
QUANTILES = (0.5, 0.99)

Samples = dict[str, list[tuple[dict[str, str], float]]]
Buckets = list[tuple[float, float]]  # upper bound, cumulative count


class EngineFigures:
    """The engine's metrics. read: returns them as Prometheus text; None if they are not
    available."""

    def __init__(
        self,
        read: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._waits: dict[tuple[str, str], deque[tuple[float, Buckets]]] = {}
        self._lock = threading.Lock()

    @classmethod
    def at(cls, address: str) -> EngineFigures:
        """Figures of an engine that serves its metrics at this address."""

        def read() -> str:
            with urllib.request.urlopen(address, timeout=READ_S) as answer:
                return answer.read().decode()

        return cls(read)

    def _samples(self) -> Samples | None:
        """The samples; None if they are not available or the engine does not answer."""
        if self._read is None:
            return None
        found: Samples = defaultdict(list)
        try:
            text = self._read()
        except OSError:
            return None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((sample.labels, sample.value))
        return found

    def engine(self) -> dict[str, Any]:
        """`brokers` and `queries`, each a name with its figures by metric; `known`: whether the
        metrics are available."""
        found = self._samples()
        samples = found or {}
        brokers = _by(samples, "broker", [m.shown for m in of(BATCH)])
        queries = _by(samples, "query", [m.shown for m in of(QUERY) if "query" in m.labels])
        return {"brokers": brokers, "queries": queries, "known": found is not None}

    def times(self, vpn: str, queue: str) -> dict[str, Any]:
        """Median and 99th percentile of waiting and processing, in seconds, over all samples; and
        `past`: recent waiting, each a time and both figures, for messages delivered since the
        previous point."""
        samples = self._samples() or {}
        found = {
            name: _buckets(samples, f"lakequeue_queue_{name}_seconds_bucket", (vpn, queue))
            for name in ("waiting", "processing")
        }
        out: dict[str, Any] = {
            name: [quantile(buckets, q) for q in QUANTILES] for name, buckets in found.items()
        }
        return out | {"past": self._past((vpn, queue), found["waiting"])}

    def _past(
        self, queue: tuple[str, str], buckets: Buckets
    ) -> list[tuple[float, float | None, float | None]]:
        with self._lock:
            kept = self._waits.pop(queue, None) or deque(maxlen=POINTS)
            self._waits[queue] = kept  # the newest is last
            if len(self._waits) > QUEUES_KEPT:
                del self._waits[next(iter(self._waits))]
            if buckets:
                kept.append((self._clock(), buckets))
            shown = list(kept)
        past = []
        for (_, before), (at, now) in pairwise(shown):
            new = [(bound, max(0.0, n - b)) for (_, b), (bound, n) in zip(before, now, strict=True)]
            past.append((at, quantile(new, 0.5), quantile(new, 0.99)))
        return past


def _buckets(samples: Samples, metric: str, queue: tuple[str, str]) -> Buckets:
    """A queue's buckets, added up over the brokers that host it."""
    total: dict[float, float] = defaultdict(float)
    for labels, count in samples.get(metric, ()):
        if (labels["vpn"], labels["queue"]) == queue:
            total[float(labels["le"])] += count
    return sorted(total.items())


def _by(samples: Samples, label: str, names: list[str]) -> dict[str, dict[str, float]]:
    """The figures by the value of a label; those of a phase are under `name/phase`."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name in names:
        for labels, value in samples.get(name, ()):
            phase = f"/{labels['phase']}" if "phase" in labels else ""
            found[labels[label]][name + phase] = value
    return dict(found)


def quantile(buckets: Sequence[tuple[float, float]], q: float) -> float | None:
    """A quantile of cumulative buckets (upper bound, count), as Prometheus computes it."""
    total = buckets[-1][1] if buckets else 0
    if not total:
        return None
    low, before = 0.0, 0.0
    for bound, count in buckets:
        if count >= q * total:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (q * total - before) / (count - before)
        low, before = bound, count
    return low
