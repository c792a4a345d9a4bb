"""Prometheus metrics of the job, from each batch's progress."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)

# Of the loop, by broker: figure of a batch (`streaming.figures`), metric, meaning.
_LOOP_COUNTERS = (
    ("steps", "steps", "Steps taken, by broker"),
    ("records_out", "output_records", "Records written to Kafka, by broker"),
    ("refused", "refused_records", "Records that Kafka will never take, by broker"),
    ("replayed", "replayed_steps", "Logged steps taken again after a failure, by broker"),
    ("state_bytes", "state_written_bytes", "Bytes of pages given to Spark's state, by broker"),
)
_LOOP_GAUGES = (
    ("wait_p50_ms", "wait_p50_seconds", "From publish to step, the median of the last batch"),
    ("wait_p99_ms", "wait_p99_seconds", "From publish to step, the 99th percentile"),
    ("gap_ms", "boundary_seconds", "Without steps, for the sake of a snapshot, since the last one"),
    ("save_ms", "save_seconds", "To save pages at the end of the last batch"),
    ("cache_bytes", "page_cache_bytes", "Memory of the page cache"),
)


class Metrics:
    """Counters and times of the engine's query; `serve` shows them over HTTP."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._batches = Counter("lakequeue_batches", "Batches run", registry=self.registry)
        self._rows = Counter("lakequeue_input_records", "Records read", registry=self.registry)
        self._seconds = Histogram(
            "lakequeue_batch_seconds", "Time of a batch", buckets=BUCKETS, registry=self.registry
        )
        self._state = Gauge("lakequeue_state_pages", "Pages in the state", registry=self.registry)
        self._memory = Gauge(
            "lakequeue_state_memory_bytes", "Memory of the state store", registry=self.registry
        )
        self._malformed = Counter(
            "lakequeue_malformed_records", "Records that cannot be understood, by VPN", ["vpn"],
            registry=self.registry,
        )  # fmt: skip
        self._lost = Counter(
            "lakequeue_lost_records", "Records that Kafka deleted before they were read, by topic",
            ["topic"], registry=self.registry,
        )  # fmt: skip
        self._counts = {
            key: Counter(f"lakequeue_{name}", text, ["broker"], registry=self.registry)
            for key, name, text in _LOOP_COUNTERS
        }
        self._levels = {
            key: Gauge(f"lakequeue_{name}", text, ["broker"], registry=self.registry)
            for key, name, text in _LOOP_GAUGES
        }
        self._server: Any = None
        self.batches: list[tuple[int, int]] = []  # (rows, ms) of the newest batches

    def batch(self, progress: dict[str, Any]) -> None:
        """One batch is done. ``progress``: Spark's StreamingQueryProgress, as in its JSON."""
        ms = int(progress["durationMs"].get("triggerExecution", 0))
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        rows = int(seen.get("records_in", progress["numInputRows"]))
        if "steps" in seen:
            self._loop(seen)
        self._batches.inc()
        self._rows.inc(rows)
        self._seconds.observe(ms / 1000)
        self.batches = [*self.batches[-9_999:], (rows, ms)]
        for operator in progress["stateOperators"]:
            self._state.set(operator["numRowsTotal"])
            self._memory.set(operator["memoryUsedBytes"])

    def _loop(self, seen: dict[str, Any]) -> None:
        """What a batch in real time said of itself."""
        broker = str(seen.get("broker") or "")
        for key, counter in self._counts.items():
            counter.labels(broker).inc(seen.get(key) or 0)
        for key, gauge in self._levels.items():
            value = seen.get(key) or 0
            gauge.labels(broker).set(value / 1000 if key.endswith("_ms") else value)

    def malformed(self, vpn: str, count: int) -> None:
        """Records of a batch went to ``<vpn>.rejected``. A batch that runs again counts again."""
        self._malformed.labels(vpn).inc(count)

    def lost(self, topic: str, count: int) -> None:
        """Records are gone before they were read: retention was shorter than the engine's rest."""
        self._lost.labels(topic).inc(count)

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
