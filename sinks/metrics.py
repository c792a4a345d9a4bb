"""Prometheus metrics of the job, from each batch's progress."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)


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
        self._server: Any = None
        self.batches: list[tuple[int, int]] = []  # (rows, ms) of the newest batches

    def batch(self, progress: dict[str, Any]) -> None:
        """One batch is done. ``progress``: Spark's StreamingQueryProgress, as in its JSON."""
        ms = int(progress["durationMs"].get("triggerExecution", 0))
        seen = progress.get("observedMetrics", {}).get("engine") or {}
        rows = int(seen.get("records_in", progress["numInputRows"]))
        self._batches.inc()
        self._rows.inc(rows)
        self._seconds.observe(ms / 1000)
        self.batches = [*self.batches[-9_999:], (rows, ms)]
        for operator in progress["stateOperators"]:
            self._state.set(operator["numRowsTotal"])
            self._memory.set(operator["memoryUsedBytes"])

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
