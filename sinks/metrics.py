"""Prometheus metrics of the engine. `metric_table` lists them, with their sources.

A scrape reads memory only: batches and queries come with Spark's progress, queues from a look that
`streaming.watch.queue_watch` takes from time to time, times of messages from the journal.
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


class Metrics:
    """Counters and times of the engine; `serve` shows them over HTTP.

    wanted: called at each scrape, before the answer, to say that somebody looks. queues: how many
    queues have series of their own.
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
        self.registry.register(_QueueCollector(self))
        self._server: Any = None
        self._behind_since: dict[str, float] = {}

    def batch(self, progress: dict[str, Any]) -> None:
        """One batch is done. ``progress``: Spark's StreamingQueryProgress, as in its JSON."""
        ms = int(progress["durationMs"].get("triggerExecution", 0))
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        rows = int(seen.get("records_in", progress["numInputRows"]))
        broker = str(seen.get("broker") or _BROKER)
        if "steps" in seen:
            self._loop(broker, seen)
        self._made["batches"].labels(broker).inc()
        self._made["input_records"].labels(broker).inc(rows)
        self._made["batch_seconds"].labels(broker).observe(ms / 1000)
        for operator in progress["stateOperators"]:
            self._made["state_pages"].labels(broker).set(operator["numRowsTotal"])
            self._made["state_memory_bytes"].labels(broker).set(operator["memoryUsedBytes"])

    def _loop(self, broker: str, seen: dict[str, Any]) -> None:
        """Take the figures of a real-time batch."""
        for metric in table.of(table.BATCH):
            if metric is _STEP_PHASE:
                continue
            value = (seen.get(metric.figure) or 0) * metric.scale
            made = self._made[metric.name].labels(broker)
            made.inc(value) if metric.kind == table.COUNTER else made.set(value)
        for figure, phase in table.PHASES.items():
            seconds = (seen.get(figure) or 0) * _STEP_PHASE.scale
            self._made["step_seconds"].labels(broker, phase).inc(seconds)

    def query(self, progress: dict[str, Any]) -> None:
        """One batch of any of the engine's streaming queries is done."""
        name, made = str(progress.get("name") or "unnamed"), self._made
        made["query_batches"].labels(name).inc()
        made["query_input_rows"].labels(name).inc(max(0, progress.get("numInputRows") or 0))
        for phase, ms in (progress.get("durationMs") or {}).items():
            made["query_phase_seconds"].labels(name, phase).inc(max(0, ms) / 1000)
        operators = progress.get("stateOperators") or []
        made["query_state_rows"].labels(name).set(sum(o["numRowsTotal"] for o in operators))
        made["query_state_bytes"].labels(name).set(sum(o["memoryUsedBytes"] for o in operators))
        behind = _behind(progress)
        made["query_lag_records"].labels(name).set(behind)
        self._lag(name, progress, behind)
        made["query_last_batch_time_seconds"].labels(name).set_to_current_time()

    def _lag(self, name: str, progress: dict[str, Any], behind: int) -> None:
        """A table query's lag: the age of the last record that it wrote. Records that it left
        behind age from the first batch that left them."""
        if name not in _TABLES or "timestamp" not in progress:
            return
        begun = datetime.fromisoformat(str(progress["timestamp"])).timestamp()
        since = self._behind_since.setdefault(name, begun)
        self._made["table_lag_seconds"].labels(name).set(max(0.0, time.time() - since))
        if not behind:
            del self._behind_since[name]

    def table(self, name: str, size: int, files: int) -> None:
        """Set a Delta table's use of the disk."""
        self._made["table_bytes"].labels(name).set(size)
        self._made["table_files"].labels(name).set(files)

    def tidied(self, at: float) -> None:
        """Set the time of the last upkeep of the tables, epoch s."""
        self._made["upkeep_time_seconds"].set(at)

    def tables_stopped(self, query: str, stopped: bool) -> None:
        """Whether a query cannot write its tables."""
        self._made["tables_stopped"].labels(query).set(int(stopped))

    def malformed(self, vpn: str, count: int) -> None:
        """Records of a batch went to ``<vpn>.rejected``. A batch that runs again counts again."""
        self._made["malformed_records"].labels(vpn).inc(count)

    def lost(self, topic: str, count: int) -> None:
        """Count records that were deleted before they were read: retention was shorter than the
        engine was down."""
        self._made["lost_records"].labels(topic).inc(count)

    def stuck(self, broker: str) -> None:
        """Count a broker that took no more steps and is restarted."""
        self._made["stuck_brokers"].labels(broker).inc()

    def serve(self, port: int) -> str:
        """Serve on 127.0.0.1; port 0 takes a free one. Returns the address."""
        server, _ = start_http_server(port, addr="127.0.0.1", registry=self.registry)
        self._server = server
        return f"http://127.0.0.1:{server.server_port}/metrics"

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server = None


class _QueueCollector(Collector):
    """A collector of queues' figures, asked at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Family]:
        """Return nothing at registration; the table has no name twice."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """The families."""
        self._metrics.wanted()
        yield from self._metrics.queues.families()
        yield from self._metrics.times.families()


def _make(metric: table.Metric, registry: CollectorRegistry) -> Any:
    if metric.kind == table.HISTOGRAM:
        return Histogram(
            metric.family, metric.text, metric.labels, buckets=metric.buckets, registry=registry
        )
    kind = Counter if metric.kind == table.COUNTER else Gauge
    return kind(metric.family, metric.text, metric.labels, registry=registry)


def _behind(progress: Mapping[str, Any]) -> int:
    """How many records the sources of a query are behind, as Spark's Kafka source reports."""
    total = 0
    for source in progress.get("sources") or ():
        latest, ends = source.get("latestOffset"), source.get("endOffset")
        if not isinstance(latest, dict) or not isinstance(ends, dict):
            continue
        for topic, partitions in latest.items():
            done = ends.get(topic) or {}
            total += sum(max(0, at - done.get(p, 0)) for p, at in partitions.items())
    return total
