"""Every metric that the engine serves, in one table for the code and the reference page.

`source` names the origin of a metric's number: a batch's figures (`streaming.loop.figures`),
Spark's progress of a query, `describe` of a queue, `usage` of a VPN or broker, or the journal.
`figure` is the number's key there. Names end in their unit.

The number of series is bounded: brokers, queries and VPNs are few, only some queues have series of
their own (`queue_figures`), and all other labels have values from fixed lists.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
ENGINE, BATCH, QUERY, QUEUE, BRIDGE = "engine", "batch", "query", "queue", "bridge"
USAGE_BROKER, USAGE_VPN, ALERT, TIMES = "broker usage", "vpn usage", "alert", "journal"
LANES = "lanes"

BATCH_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30)
MESSAGE_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 3600)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. name: without `lakequeue_` and `_total`; scale: factor from figure to value."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    source: str
    figure: str = ""
    scale: float = 1.0
    buckets: tuple[float, ...] = ()

    @property
    def family(self) -> str:
        """The name for `prometheus_client`, which appends `_total` to a counter."""
        return f"lakequeue_{self.name}"

    @property
    def shown(self) -> str:
        """The name in the scrape and in queries."""
        return f"{self.family}_total" if self.kind == COUNTER else self.family

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which its samples are stored."""
        if self.kind == HISTOGRAM:
            return tuple(f"{self.family}_{end}" for end in ("bucket", "count", "sum"))
        return (self.shown,)


_BROKER, _QUERY, _QUEUE = ("broker",), ("query",), ("broker", "vpn", "queue")
_MS = 0.001


PHASES = {
    "busy_ms": "busy", "step_ms": "decide", "gap_ms": "boundary", "save_ms": "save",
    "replay_ms": "replay",
}  # fmt: skip


def _level(name: str, figure: str, text: str, scale: float = 1.0) -> Metric:
    return Metric(name, GAUGE, _BROKER, text, BATCH, figure, scale)


def _count(name: str, figure: str, text: str) -> Metric:
    return Metric(name, COUNTER, _BROKER, text, BATCH, figure)


_OF_BATCHES = (
    Metric("batches", COUNTER, _BROKER, "Batches run", ENGINE),
    Metric("input_records", COUNTER, _BROKER, "Records read", ENGINE),
    Metric("batch_seconds", HISTOGRAM, _BROKER, "Time of a batch", ENGINE, buckets=BATCH_BUCKETS),
    Metric("state_pages", GAUGE, _BROKER, "Pages in Spark's state", ENGINE),
    Metric("state_memory_bytes", GAUGE, _BROKER, "Memory of Spark's state store", ENGINE),
    Metric("malformed_records", COUNTER, ("vpn",), "Records that cannot be decoded", ENGINE),
    Metric(
        "lost_records", COUNTER, ("topic",),
        "Records that Kafka deleted before they were read", ENGINE,
    ),
    Metric("stuck_brokers", COUNTER, _BROKER, "Restarts of brokers that hung", ENGINE),
    _count("steps", "steps", "Steps taken"),
    _count("input_bytes", "bytes_in", "Bytes read"),
    _count("output_records", "records_out", "Records written to Kafka"),
    _count("refused_records", "refused", "Records that Kafka refused permanently"),
    _count("replayed_steps", "replayed", "Logged steps repeated after a failure"),
    _count("state_written_bytes", "state_bytes", "Bytes of pages written to Spark's state"),
    _count("state_written_pages", "state_pages", "Pages written to Spark's state"),
    _count("page_cache_misses", "cache_pages_read", "Pages read from Spark's state"),
    Metric(
        "step_seconds", COUNTER, (*_BROKER, "phase"),
        "Time by phase. `busy`: in steps; `decide`: the part of `busy` in the core; `boundary`: "
        "between batches; `save`: saving state; `replay`: repeating logged steps",
        BATCH, "busy_ms", _MS,
    ),
    _level("lag_records", "lag_records", "Records in Kafka that no step has read yet"),
    _level(
        "slow_partitions", "slow_partitions",
        "Commands partitions that are slowed down because most of their commands have no effect",
    ),
    _level("wait_p50_seconds", "wait_p50_ms", "From publish to step, median of a batch", _MS),
    _level("wait_p99_seconds", "wait_p99_ms", "From publish to step, 99th percentile", _MS),
    _level("step_max_seconds", "step_max_ms", "Longest step of the last batch", _MS),
    _level("boundary_seconds", "gap_ms", "Pause between the last two batches", _MS),
    _level("save_seconds", "save_ms", "Time to save pages at the end of the last batch", _MS),
    _level("page_cache_bytes", "cache_bytes", "Memory of the page cache"),
)  # fmt: skip

_OF_QUERIES = (
    Metric("query_batches", COUNTER, _QUERY, "Batches of a streaming query", QUERY),
    Metric("query_input_rows", COUNTER, _QUERY, "Rows that the query read", QUERY),
    Metric(
        "query_phase_seconds", COUNTER, (*_QUERY, "phase"),
        "Time of the query's batches by Spark's phase; `triggerExecution` is the sum", QUERY,
    ),
    Metric("query_state_rows", GAUGE, _QUERY, "Rows in the query's state", QUERY),
    Metric("query_state_bytes", GAUGE, _QUERY, "Memory of the query's state", QUERY),
    Metric(
        "query_lag_records", GAUGE, _QUERY,
        "Records in Kafka that the query had not read at the end of its last batch", QUERY,
    ),
    Metric(
        "table_bytes", GAUGE, ("table",),
        "Size of a Delta table on disk, including files that VACUUM has not removed yet", QUERY,
    ),
    Metric("table_files", GAUGE, ("table",), "Files of a Delta table on disk", QUERY),
    Metric(
        "table_lag_seconds", GAUGE, _QUERY,
        "Age of the newest rows when the query wrote them", QUERY,
    ),
    Metric("tables_stopped", GAUGE, _QUERY, "1 while the query cannot write its tables", QUERY),
    Metric("upkeep_time_seconds", GAUGE, (), "When the last upkeep of the tables ended", QUERY),
    Metric(
        "query_last_batch_time_seconds", GAUGE, _QUERY, "When the query's last batch ended", QUERY
    ),
)  # fmt: skip


def _queue(name: str, figure: str, text: str, kind: str = GAUGE) -> Metric:
    return Metric(f"queue_{name}", kind, _QUEUE, text, QUEUE, figure)


def _queue_count(figure: str, text: str) -> Metric:
    return _queue(f"{figure}_messages", figure, text, COUNTER)


_OF_QUEUES = (
    _queue("depth", "depth", "Messages stored"),
    _queue("ready", "ready", "Messages that are ready for a consumer"),
    _queue("leased", "leased", "Messages that are leased"),
    _queue("delayed", "delayed", "Messages that are delayed"),
    _queue("dead", "dead", "Messages in this queue if it is the dead message queue of another"),
    _queue("bytes", "spool_bytes", "Bytes stored"),
    _queue("max_bytes", "max_spool_usage", "Quota of the queue"),
    _queue("consumers", "consumers", "Consumers subscribed"),
    _queue("oldest_seconds", "oldest_age_s", "Age of the oldest message; `_other`: the highest"),
    Metric(
        "queue_blocked", GAUGE, (*_QUEUE, "reason"),
        "1 while this reason stops all deliveries of ready messages; `_other`: how many queues",
        QUEUE, "blocked",
    ),
    _queue_count("spooled", "Messages that entered"),
    _queue_count("delivered", "Messages sent to consumers, redeliveries included"),
    _queue_count("redelivered", "Messages redelivered"),
    _queue_count("acknowledged", "Messages acknowledged"),
    _queue_count("canceled", "Messages that consumers canceled"),
    _queue_count("consumer_rejected", "Messages that consumers rejected"),
    _queue_count("lease_ended", "Leases that ended without an ack"),
    _queue_count("expired", "Messages that expired"),
    _queue_count("dead_lettered", "Messages moved to the dead message queue"),
    _queue_count("discarded", "Dead messages dropped for lack of a usable dead message queue"),
    Metric(
        "queue_refused_messages", COUNTER, (*_QUEUE, "reason"),
        "Messages refused, with or without a nack", QUEUE, "refused",
    ),
    Metric(
        "queue_waiting_seconds", HISTOGRAM, _QUEUE,
        "Time from entering the queue, or from its due time, to the first delivery", TIMES,
        buckets=MESSAGE_BUCKETS,
    ),
    Metric(
        "queue_processing_seconds", HISTOGRAM, _QUEUE,
        "Time from the last delivery to the ack", TIMES, buckets=MESSAGE_BUCKETS,
    ),
)  # fmt: skip

_BRIDGE = ("broker", "vpn", "bridge")


def _bridge(name: str, figure: str, text: str, kind: str = GAUGE) -> Metric:
    return Metric(f"bridge_{name}", kind, _BRIDGE, text, BRIDGE, figure)


_OF_BRIDGES = (
    _bridge("waiting", "waiting", "Messages that wait for a bridge"),
    _bridge("on_its_way", "on_its_way", "Messages sent over a bridge and not yet answered"),
    _bridge("bytes", "spool_bytes", "Bytes of a bridge's waiting and unanswered messages"),
    _bridge("max_bytes", "max_spool_usage", "Quota of a bridge's waiting messages"),
    _bridge("unanswered_seconds", "unanswered_s", "Age of the oldest send without an answer"),
    _bridge("away", "state", "1 while the bridge is not connected to the other home"),
    _bridge("sent_messages", "sent", "Messages sent, repetitions included", COUNTER),
    _bridge("taken_messages", "taken", "Messages that the far end stored", COUNTER),
    _bridge("refusals", "refused", "Refusals of a lane by the far end", COUNTER),
    Metric(
        "bridge_blocked_seconds", GAUGE, (*_BRIDGE, "endpoint"),
        "How long this endpoint at the far end has refused a bridge's messages", BRIDGE, "for_s",
    ),
    Metric(
        "bridge_blocked_messages", GAUGE, (*_BRIDGE, "endpoint"),
        "Messages of a bridge that wait for this endpoint", BRIDGE, "waiting",
    ),
)  # fmt: skip

_LANE = ("broker", "vpn", "queue", "to")

_OF_LANES = (
    Metric(
        "lane_waiting", GAUGE, _LANE,
        "Messages that wait to be sent to this queue at the broker `to`", LANES, "waiting",
    ),
    Metric(
        "lane_bytes", GAUGE, _LANE, "Bytes of the messages in `lakequeue_lane_waiting`", LANES,
        "bytes",
    ),
    Metric(
        "lane_refused_seconds", GAUGE, _LANE,
        "How long the queue at the broker `to` has refused messages", LANES, "for_s",
    ),
)  # fmt: skip

_OF_LIMITS = (
    *(Metric(name, GAUGE, _BROKER, text, USAGE_BROKER, figure)
    for name, figure, text in (
        ("spool_bytes", "spool_bytes", "Bytes stored"),
        ("spool_max_bytes", "max_spool_usage", "Quota of the broker"),
        ("spool_files", "spool_files", "Spool files in use"),
        ("spool_max_files", "max_spool_files", "Maximum number of spool files"),
        ("delivered_unacked", "delivered_unacked", "Deliveries not acknowledged yet"),
        ("max_delivered_unacked", "max_delivered_unacked", "Limit of unacknowledged deliveries"),
    )),
    Metric("vpn_spool_bytes", GAUGE, ("broker", "vpn"), "Bytes stored", USAGE_VPN, "spool_bytes"),
    Metric(
        "vpn_spool_max_bytes", GAUGE, ("broker", "vpn"), "Quota of the VPN, if it has one",
        USAGE_VPN, "max_spool_usage",
    ),
    Metric(
        "vpn_refused_messages", COUNTER, ("broker", "vpn", "reason"),
        "Messages refused for a reason that names no queue", USAGE_VPN, "refused",
    ),
    Metric(
        "alert", GAUGE, ("broker", "vpn", "queue", "alert"),
        "1 while an alert is set. Without the label `queue` it is for the VPN, without `vpn` for "
        "the broker; `_other`: the number of queues", ALERT,
    ),
    Metric("queue_series", GAUGE, (), "Queues that have series of their own", ALERT),
    Metric("queues", GAUGE, ("broker", "vpn"), "Queues defined", ALERT),
    Metric("look_seconds", GAUGE, (), "Duration of the last collection of queue metrics", ALERT),
    Metric("look_time_seconds", GAUGE, (), "When queue metrics were last collected", ALERT),
)  # fmt: skip

TABLE = (*_OF_BATCHES, *_OF_QUERIES, *_OF_QUEUES, *_OF_BRIDGES, *_OF_LANES, *_OF_LIMITS)
BY_NAME = {metric.name: metric for metric in TABLE}
SAMPLES = frozenset(name for metric in TABLE for name in metric.samples)


def of(source: str) -> list[Metric]:
    """The rows for figures of this source."""
    return [metric for metric in TABLE if metric.source == source]
