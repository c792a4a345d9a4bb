"""Prometheus metrics of the engine. `metric_table` lists them, with their sources.

A scrape reads memory only: figures of batches and queries come with Spark's progress, those of
queues from snapshots that `streaming.watch.queue_watch` takes from time to time, and times of
messages from the journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from . import metric_table as table
from .message_times import MessageTimes
from .queue_figures import QueueFigures

_TABLES = ("lakequeue-tables", "lakequeue-history")  # names of queries
_BROKER = "broker-0"  # a micro-batch does not name its broker
_STEP_PHASE = table.BY_NAME["step_seconds"]


class Metrics(Collector):
    """Counters and times of the engine; `serve` publishes them over HTTP.

    wanted: called at the start of each scrape, so that the caller knows that metrics are in use.
    queues: the number of queues that have series of their own.
    """

    def __init__(self, queues: int = 50) -> None:
        self.registry = CollectorRegistry()
        self.wanted: Callable[[], None] = lambda: None
        self.queues = QueueFigures(queues)
        self.times = MessageTimes(self.queues.place)
        self._made = {
            metric.name: _make(metric, self.registry)
            for metric in table.TABLE
            if metric.source in (table.ENGINE, table.BATCH, table.QUERY)
        }
        self.registry.register(self)
        self._server: Any = None
        self._behind_since: dict[str, float] = {}

    def batch(self, progress: dict[str, Any]) -> None:
        """Count one completed batch. ``progress``: Spark's StreamingQueryProgress, as in its
        JSON."""
        ms = int(progress["durationMs"].get("triggerExecution", 0))
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        broker = str(seen.get("broker") or _BROKER)
        if "steps" in seen:
            self._loop(broker, seen)
        self.count("batches", broker)
        rows = int(seen.get("records_in", progress["numInputRows"]))
        self.count("input_records", broker, by=rows)
        self._made["batch_seconds"].labels(broker).observe(ms / 1000)
        for operator in progress["stateOperators"]:
            self.level("state_pages", operator["numRowsTotal"], broker)
            self.level("state_memory_bytes", operator["memoryUsedBytes"], broker)

    def _loop(self, broker: str, seen: dict[str, Any]) -> None:
        for metric in table.of(table.BATCH):
            if metric is _STEP_PHASE:
                continue
            value = (seen.get(metric.figure) or 0) * metric.scale
            if metric.kind == table.COUNTER:
                self.count(metric.name, broker, by=value)
            else:
                self.level(metric.name, value, broker)
        for figure, phase in table.PHASES.items():
            seconds = (seen.get(figure) or 0) * _STEP_PHASE.scale
            self.count("step_seconds", broker, phase, by=seconds)

    def query(self, progress: dict[str, Any]) -> None:
        """Count one completed batch of any of the engine's streaming queries."""
        name = str(progress.get("name") or "unnamed")
        self.count("query_batches", name)
        self.count("query_input_rows", name, by=max(0, progress.get("numInputRows") or 0))
        for phase, ms in (progress.get("durationMs") or {}).items():
            self.count("query_phase_seconds", name, phase, by=max(0, ms) / 1000)
        operators = progress.get("stateOperators") or []
        self.level("query_state_rows", sum(o["numRowsTotal"] for o in operators), name)
        self.level("query_state_bytes", sum(o["memoryUsedBytes"] for o in operators), name)
        behind = _behind(progress)
        self.level("query_lag_records", behind, name)
        self._lag(name, progress, behind)
        self.level("query_last_batch_time_seconds", time.time(), name)

    def _lag(self, name: str, progress: dict[str, Any], behind: int) -> None:
        """Set a table query's lag: the age of the last record that it wrote. The age of unread
        records counts from the first batch that did not read them."""
        if name not in _TABLES or "timestamp" not in progress:
            return
        begun = datetime.fromisoformat(str(progress["timestamp"])).timestamp()
        since = self._behind_since.setdefault(name, begun)
        self.level("table_lag_seconds", max(0.0, time.time() - since), name)
        if not behind:
            del self._behind_since[name]

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter. A batch that runs again counts again."""
        self._made[name].labels(*labels).inc(by)

    def level(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        made = self._made[name]
        (made.labels(*labels) if labels else made).set(value)

    def describe(self) -> Iterator[Family]:
        """Return nothing at registration; no name occurs twice in the table."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """The metrics of queues, made at each scrape."""
        self.wanted()
        yield from self.queues.families()
        yield from self.times.families()

    def serve(self, port: int) -> str:
        """Serve on 127.0.0.1; with port 0, on a free port. Returns the address."""
        server, _ = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        self._server = server
        return f"http://127.0.0.1:{server.server_port}/metrics"

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()  # else its port stays in use
            self._server = None


def _make(metric: table.Metric, registry: CollectorRegistry) -> Any:
    if metric.kind == table.HISTOGRAM:
        return Histogram(
            metric.family, metric.text, metric.labels, buckets=metric.buckets, registry=registry
        )
    kind = Counter if metric.kind == table.COUNTER else Gauge
    return kind(metric.family, metric.text, metric.labels, registry=registry)


def _behind(progress: Mapping[str, Any]) -> int:
    """The number of records that a query's sources have not read yet, from Spark's Kafka source."""
    total = 0
    for source in progress.get("sources") or ():
        latest, ends = source.get("latestOffset"), source.get("endOffset")
        if not isinstance(latest, dict) or not isinstance(ends, dict):
            continue
        for topic, partitions in latest.items():
            done = ends.get(topic) or {}
            total += sum(max(0, at - done.get(p, 0)) for p, at in partitions.items())
    return total
