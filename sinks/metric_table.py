"""Every metric that the engine serves, in one table for the code and the reference page.

`figure` is the key of the number at its `source`: a batch's figures (`streaming.loop.figures`),
Spark's progress of a query, `describe` of a queue, `usage` of a VPN or broker, or the journal.
Names end in their unit.

The number of series is bounded. Brokers, queries and VPNs are few, only some queues have series of
their own (`queue_figures`), and other labels have values from fixed lists.
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
    """One row. name: without `lakequeue_` and `_total`; scale: what a figure is multiplied by."""

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
        """Its name as Prometheus' clients want it."""
        return f"lakequeue_{self.name}"

    @property
    def shown(self) -> str:
        """Its name as Prometheus shows it."""
        return f"{self.family}_total" if self.kind == COUNTER else self.family

    @property
    def samples(self) -> tuple[str, ...]:
        """The names under which its samples are stored."""
        if self.kind == HISTOGRAM:
            return tuple(f"{self.family}_{end}" for end in ("bucket", "count", "sum"))
        return (self.shown,)


_BROKER, _QUERY, _QUEUE = ("broker",), ("query",), ("broker", "vpn", "queue")
_MS = 0.001


def _step_phase(figure: str) -> Metric:
    return Metric(
        "step_seconds", COUNTER, (*_BROKER, "phase"),
        "Time of the steps: `busy` not waiting for input, of it `decide` in the core; `boundary` "
        "without steps for the sake of a snapshot; `save` to save it; `replay` steps taken again",
        BATCH, figure, _MS,
    )  # fmt: skip


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
    Metric("malformed_records", COUNTER, ("vpn",), "Records that cannot be understood", ENGINE),
    Metric(
        "lost_records", COUNTER, ("topic",),
        "Records that Kafka deleted before they were read", ENGINE,
    ),
    Metric(
        "stuck_brokers", COUNTER, _BROKER,
        "How often a broker that hung was started again", ENGINE,
    ),
    _count("steps", "steps", "Steps taken"),
    _count("input_bytes", "bytes_in", "Bytes read"),
    _count("output_records", "records_out", "Records written to Kafka"),
    _count("refused_records", "refused", "Records that Kafka will never take"),
    _count("replayed_steps", "replayed", "Logged steps taken again after a failure"),
    _count("state_written_bytes", "state_bytes", "Bytes of pages given to Spark's state"),
    _count("state_written_pages", "state_pages", "Pages given to Spark's state"),
    _count("page_cache_misses", "cache_pages_read", "Pages that were read from Spark's state"),
    _step_phase("busy_ms"),
    _level("lag_records", "lag_records", "Records in Kafka that no step has taken yet"),
    _level(
        "slow_partitions", "slow_partitions",
        "Partitions of commands that wait while others send, since most of theirs achieve nothing",
    ),
    _level("wait_p50_seconds", "wait_p50_ms", "From publish to step, the median of a batch", _MS),
    _level("wait_p99_seconds", "wait_p99_ms", "From publish to step, the 99th percentile", _MS),
    _level("step_max_seconds", "step_max_ms", "The longest step of the last batch", _MS),
    _level(
        "boundary_seconds", "gap_ms",
        "Without steps, for the sake of a snapshot, since the last one", _MS,
    ),
    _level("save_seconds", "save_ms", "To save pages at the end of the last batch", _MS),
    _level("page_cache_bytes", "cache_bytes", "Memory of the page cache"),
)  # fmt: skip

_OF_QUERIES = (
    Metric("query_batches", COUNTER, _QUERY, "Batches of a streaming query", QUERY),
    Metric("query_input_rows", COUNTER, _QUERY, "Rows that it read", QUERY),
    Metric(
        "query_phase_seconds", COUNTER, (*_QUERY, "phase"),
        "Time of its batches by Spark's phase; `triggerExecution` is all of it", QUERY,
    ),
    Metric("query_state_rows", GAUGE, _QUERY, "Rows in its state", QUERY),
    Metric("query_state_bytes", GAUGE, _QUERY, "Memory of its state", QUERY),
    Metric(
        "query_lag_records", GAUGE, _QUERY,
        "Records that its Kafka partitions are behind, at the end of a batch", QUERY,
    ),
    Metric(
        "table_bytes", GAUGE, ("table",),
        "Bytes of a Delta table on the disk, with files that wait for VACUUM", QUERY,
    ),
    Metric("table_files", GAUGE, ("table",), "Its files on the disk", QUERY),
    Metric(
        "table_lag_seconds", GAUGE, _QUERY,
        "How old the newest rows of the tables were when they were written", QUERY,
    ),
    Metric("tables_stopped", GAUGE, _QUERY, "1 while a query cannot write the tables", QUERY),
    Metric("upkeep_time_seconds", GAUGE, (), "When the tables were tidied last", QUERY),
    Metric("query_last_batch_time_seconds", GAUGE, _QUERY, "When its last batch ended", QUERY),
)  # fmt: skip


def _queue(name: str, figure: str, text: str, kind: str = GAUGE) -> Metric:
    return Metric(f"queue_{name}", kind, _QUEUE, text, QUEUE, figure)


def _queue_count(figure: str, text: str) -> Metric:
    return _queue(f"{figure}_messages", figure, text, COUNTER)


_OF_QUEUES = (
    _queue("depth", "depth", "Messages stored"),
    _queue("ready", "ready", "Messages that wait for a consumer"),
    _queue("leased", "leased", "Messages that consumers hold"),
    _queue("delayed", "delayed", "Messages that are due later"),
    _queue("dead", "dead", "Messages stored in a queue that is the dead message queue of others"),
    _queue("bytes", "spool_bytes", "Bytes stored"),
    _queue("max_bytes", "max_spool_usage", "Its quota"),
    _queue("consumers", "consumers", "Consumers subscribed"),
    _queue("oldest_seconds", "oldest_age_s", "Age of its oldest message; of `_other` the highest"),
    Metric(
        "queue_blocked", GAUGE, (*_QUEUE, "reason"),
        "1 while messages are ready and none moves, for this reason; of `_other` how many queues",
        QUEUE, "blocked",
    ),
    _queue_count("spooled", "Messages that came in"),
    _queue_count("delivered", "Messages sent to consumers, again or for the first time"),
    _queue_count("redelivered", "Messages sent again"),
    _queue_count("acknowledged", "Messages that left by an ack"),
    _queue_count("canceled", "Messages that consumers gave back"),
    _queue_count("consumer_rejected", "Messages that consumers rejected"),
    _queue_count("lease_ended", "Leases that ended without an ack"),
    _queue_count("expired", "Messages that expired"),
    _queue_count("dead_lettered", "Messages moved to the dead message queue"),
    _queue_count("discarded", "Messages lost for want of a dead message queue that takes them"),
    Metric(
        "queue_refused_messages", COUNTER, (*_QUEUE, "reason"),
        "Messages that it refused, whether the publisher was told or not", QUEUE, "refused",
    ),
    Metric(
        "queue_waiting_seconds", HISTOGRAM, _QUEUE,
        "From entering the queue, or being due, to the first delivery", TIMES,
        buckets=MESSAGE_BUCKETS,
    ),
    Metric(
        "queue_processing_seconds", HISTOGRAM, _QUEUE,
        "From the last delivery to the ack", TIMES, buckets=MESSAGE_BUCKETS,
    ),
)  # fmt: skip

_BRIDGE = ("broker", "vpn", "bridge")


def _bridge(name: str, figure: str, text: str, kind: str = GAUGE) -> Metric:
    return Metric(f"bridge_{name}", kind, _BRIDGE, text, BRIDGE, figure)


_OF_BRIDGES = (
    _bridge("waiting", "waiting", "Messages that wait for a bridge"),
    _bridge("on_its_way", "on_its_way", "Messages sent and not answered yet"),
    _bridge("bytes", "spool_bytes", "Bytes of both"),
    _bridge("max_bytes", "max_spool_usage", "The quota of what waits"),
    _bridge("unanswered_seconds", "unanswered_s", "For how long the far end has not answered"),
    _bridge("away", "state", "1 while the other home is not reached, or never came"),
    _bridge("sent_messages", "sent", "Messages sent, again or for the first time", COUNTER),
    _bridge("taken_messages", "taken", "Messages that the far end took", COUNTER),
    _bridge("refusals", "refused", "Refusals of a lane by the far end", COUNTER),
    Metric(
        "bridge_blocked_seconds", GAUGE, (*_BRIDGE, "endpoint"),
        "For how long an endpoint of the far end has held messages of a bridge", BRIDGE, "for_s",
    ),
    Metric(
        "bridge_blocked_messages", GAUGE, (*_BRIDGE, "endpoint"),
        "How many messages wait for it", BRIDGE, "waiting",
    ),
)  # fmt: skip

_LANE = ("broker", "vpn", "queue", "to")

_OF_LANES = (
    Metric(
        "lane_waiting", GAUGE, _LANE,
        "Messages that wait for a queue of the broker `to`", LANES,
        "waiting",
    ),
    Metric("lane_bytes", GAUGE, _LANE, "Bytes of these", LANES, "bytes"),
    Metric(
        "lane_refused_seconds", GAUGE, _LANE, "For how long the queue has not taken them", LANES,
        "for_s",
    ),
)  # fmt: skip

_OF_LIMITS = (
    *(Metric(name, GAUGE, _BROKER, text, USAGE_BROKER, figure)
    for name, figure, text in (
        ("spool_bytes", "spool_bytes", "Bytes stored"),
        ("spool_max_bytes", "max_spool_usage", "The broker's quota"),
        ("spool_files", "spool_files", "Spool files in use"),
        ("spool_max_files", "max_spool_files", "The most spool files"),
        ("delivered_unacked", "delivered_unacked", "Messages delivered and not acknowledged"),
        ("max_delivered_unacked", "max_delivered_unacked", "The most of these"),
    )),
    Metric("vpn_spool_bytes", GAUGE, ("broker", "vpn"), "Bytes stored", USAGE_VPN, "spool_bytes"),
    Metric(
        "vpn_spool_max_bytes", GAUGE, ("broker", "vpn"), "The VPN's quota, where it has one",
        USAGE_VPN, "max_spool_usage",
    ),
    Metric(
        "vpn_refused_messages", COUNTER, ("broker", "vpn", "reason"),
        "Messages that were refused without a queue", USAGE_VPN, "refused",
    ),
    Metric(
        "alert", GAUGE, ("broker", "vpn", "queue", "alert"),
        "1 while an alert is set; without queue it is the VPN's, without VPN the broker's; of "
        "`_other` how many queues", ALERT,
    ),
    Metric("queue_series", GAUGE, (), "Queues that have series of their own", ALERT),
    Metric("queues", GAUGE, ("broker", "vpn"), "Queues defined", ALERT),
    Metric("look_seconds", GAUGE, (), "What the last look at all queues took", ALERT),
    Metric("look_time_seconds", GAUGE, (), "When that was: queues are shown as of then", ALERT),
)  # fmt: skip

TABLE = (*_OF_BATCHES, *_OF_QUERIES, *_OF_QUEUES, *_OF_BRIDGES, *_OF_LANES, *_OF_LIMITS)
BY_NAME = {metric.name: metric for metric in TABLE}
SAMPLES = frozenset(name for metric in TABLE for name in metric.samples)


def of(source: str) -> list[Metric]:
    """The rows that show figures of this source."""
    return [metric for metric in TABLE if metric.source == source]
