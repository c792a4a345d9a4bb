"""The metrics: what they say of queues, queries and messages, and how many there are."""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lakequeue
import pyarrow as pa
import pytest
from client.threaded import wait_for
from lakequeue.protocol import journal_encoding
from lakequeue.sinks.message_times import QUEUES_MAX, ROOM
from lakequeue.sinks.metric_table import BRIDGE, LANES, PHASES, SAMPLES, TABLE
from lakequeue.sinks.metrics import Metrics
from lakequeue.sinks.queue_figures import OTHER, Look, bridge_families
from lakequeue.streaming.loop.figures import NAMES
from lakequeue.streaming.watch.queue_watch import QueueWatch
from prometheus_client.parser import text_string_to_metric_families

_names = itertools.count()
_SECOND = timedelta(seconds=1)
BROKER = "broker-0"
QUEUE = {"message_type": "json", "max_per_subscription_backlog": 100}


class Engine:
    """An engine in memory with some queues, and the metrics of it."""

    def __init__(self, *queues: dict[str, Any], most: int = 50) -> None:
        self.url = f"memory://metrics-{next(_names)}"
        config = {"queues": [QUEUE | queue for queue in queues]}
        self.connection = lakequeue.connect(self.url, config=config)
        self.producer = self.connection.producer()
        self.admin = self.connection.admin()
        self.metrics = Metrics(most)
        self._heard = 0

    def send(self, queue: str, count: int = 1, **options: Any) -> None:
        for _ in range(count):
            self.producer.send(queue, b"{}", **options)

    def look(self) -> None:
        """What the engine's watch does, and what it hears of the journal."""
        rows = self.connection.engine.journal()
        for row in rows[self._heard :]:
            row = row | {"message_id": int(row["message_id"] or 0) or None, "until": None}
            events = pa.Table.from_pylist([row], schema=journal_encoding.SCHEMA)
            self.metrics.times.journal(BROKER, events)
        self._heard = len(rows)
        self.metrics.queues.seen(Look(self.admin.queues(), [self.admin.usage()], 0.1))

    def value(self, name: str, queue: str, **labels: str) -> float | None:
        known = {"broker": BROKER, "vpn": "default", "queue": queue}
        return self.metrics.registry.get_sample_value(f"lakequeue_{name}", known | labels)


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(
        {"name": "orders", "dead_message_queue": "dead", "max_spool_messages": 5,
         "reject_msg_to_sender_on_discard": "never"},
        {"name": "dead"},
    )  # fmt: skip
    yield one
    one.connection.close()


def test_what_a_queue_holds(engine: Engine) -> None:
    engine.send("orders", 3)
    engine.send("orders", deliver_at=engine.connection.now() + _SECOND * 60)
    with engine.connection.consumer("orders", max_backlog=1, ack_mode="individual") as consumer:
        consumer.receive(timeout=0)
        engine.connection.advance("10s")
        engine.look()
        levels = {name: engine.value(f"queue_{name}", "orders")
                  for name in ("depth", "ready", "leased", "delayed", "consumers", "bytes",
                               "oldest_seconds", "dead")}  # fmt: skip
        assert levels == {"depth": 4, "ready": 2, "leased": 1, "delayed": 1, "consumers": 1,
                          "bytes": 8, "oldest_seconds": 10, "dead": 0}  # fmt: skip
        full = "every consumer's backlog is full"
        assert engine.value("queue_blocked", "orders", reason=full) == 1
    with engine.connection.consumer("orders", filter="/n = 99"):
        engine.look()
        no_filter = "no consumer's filter matches"
        assert engine.value("queue_blocked", "orders", reason=no_filter) == 1
    assert engine.value("queue_max_bytes", "orders") == 5_000_000_000


def test_what_went_through_a_queue(engine: Engine) -> None:
    engine.send("orders", 6)  # one too many
    consumer = engine.connection.consumer("orders", max_backlog=10, ack_mode="individual")
    first, second, third = (consumer.receive(timeout=0) for _ in range(3))
    first.ack()
    second.cancel()
    third.reject("bad")
    engine.connection.advance("1s")
    engine.look()
    counts = {name: engine.value(f"queue_{name}_messages_total", "orders")
              for name in ("spooled", "delivered", "redelivered", "acknowledged", "canceled",
                           "consumer_rejected", "dead_lettered")}  # fmt: skip
    assert counts == {"spooled": 5, "delivered": 6, "redelivered": 1, "acknowledged": 1,
                      "canceled": 1, "consumer_rejected": 1, "dead_lettered": 1}  # fmt: skip
    assert engine.value("queue_refused_messages_total", "orders", reason="queue_quota") == 1
    assert engine.value("queue_dead", "dead") == 1
    consumer.close()


def test_waiting_and_processing_times(engine: Engine) -> None:
    engine.send("orders", 3)
    engine.connection.advance("2s")
    with engine.connection.consumer("orders", max_backlog=3, ack_mode="individual") as consumer:
        held = [consumer.receive(timeout=0) for _ in range(3)]
        engine.connection.advance("20s")
        held[0].ack()
        held[1].cancel()
        engine.look()
    assert engine.value("queue_waiting_seconds_count", "orders") == 3
    assert engine.value("queue_waiting_seconds_sum", "orders") == pytest.approx(6)
    assert engine.value("queue_waiting_seconds_bucket", "orders", le="1.0") == 0
    assert engine.value("queue_waiting_seconds_bucket", "orders", le="5.0") == 3
    assert engine.value("queue_processing_seconds_count", "orders") == 1
    assert engine.value("queue_processing_seconds_sum", "orders") == pytest.approx(20)


def test_a_delayed_message_waits_from_when_it_is_due(engine: Engine) -> None:
    engine.send("orders", deliver_at=engine.connection.now() + _SECOND * 60)
    engine.connection.advance("61s")
    with engine.connection.consumer("orders", ack_mode="individual") as consumer:
        assert consumer.receive(timeout=0) is not None
        engine.look()
    assert engine.value("queue_waiting_seconds_sum", "orders") == pytest.approx(1)


def rows(event: str, ids: range, time_ms: int, queue: str = "orders") -> pa.Table:
    row = {"vpn": "default", "queue": queue, "event": event, "subscription": "", "reason": "",
           "deliveries": 0, "topic": "", "step": 1, "time": time_ms}  # fmt: skip
    return pa.Table.from_pylist(
        [row | {"message_id": i} for i in ids], schema=journal_encoding.SCHEMA
    )


def test_of_many_messages_a_sample_stands_for_all() -> None:
    """The number is right within the sample's error, and what is followed is bounded."""
    metrics, total = Metrics(), 40_000
    for start in range(1, total, 1_000):
        metrics.times.journal(BROKER, rows("spooled", range(start, start + 1_000), 1_000))
    (followed,) = metrics.times._followed.values()
    assert 0 < len(followed.messages) <= ROOM
    metrics.times.journal(BROKER, rows("delivered", range(1, total + 1), 3_000))
    labels = {"broker": BROKER, "vpn": "default", "queue": "orders"}
    count = metrics.registry.get_sample_value("lakequeue_queue_waiting_seconds_count", labels)
    seconds = metrics.registry.get_sample_value("lakequeue_queue_waiting_seconds_sum", labels)
    assert count == pytest.approx(total, rel=0.25)
    assert seconds == pytest.approx(2 * count)


def test_however_many_queues_there_are_the_memory_is_bounded() -> None:
    """Also while nobody has asked for the metrics."""
    metrics = Metrics()
    for n in range(QUEUES_MAX + 20):
        for event, time_ms in (("spooled", 1_000), ("delivered", 2_000), ("acknowledged", 3_000)):
            metrics.times.journal(BROKER, rows(event, range(n + 1, n + 2), time_ms, f"q{n}"))
    assert len(metrics.times._followed) == QUEUES_MAX
    assert len(metrics.times._histograms) == 2 * QUEUES_MAX + 2
    labels = {"broker": BROKER, "vpn": "default", "queue": OTHER}
    value = metrics.registry.get_sample_value
    assert value("lakequeue_queue_waiting_seconds_count", labels) == 20


def test_only_so_many_queues_have_series_of_their_own() -> None:
    engine = Engine(*({"name": f"q{n:02}"} for n in range(12)), {"name": OTHER}, most=4)
    engine.send("q03", 5)
    engine.send("q07", 4)
    engine.send("q11")
    engine.send(OTHER, 2)
    engine.look()
    named = {s.labels["queue"] for f in engine.metrics.queues.families()
             if f.name == "lakequeue_queue_depth" for s in f.samples}  # fmt: skip
    assert named == {"q03", "q07", "q11", "q00", OTHER}
    assert engine.value("queue_depth", OTHER) == 2  # a queue of that name is one of the others
    assert engine.metrics.registry.get_sample_value(
        "lakequeue_queues", {"broker": BROKER, "vpn": "default"}
    ) == 13  # fmt: skip
    engine.connection.close()


def test_a_counter_of_the_others_never_falls() -> None:
    """Also when one of them gets series of its own, or is deleted."""
    engine = Engine(*({"name": f"q{n}"} for n in range(4)), most=1)
    name = "queue_spooled_messages_total"
    engine.send("q0", 9)
    engine.send("q1", 3)
    engine.look()
    assert (engine.value(name, "q0"), engine.value(name, OTHER)) == (9, 3)
    engine.send("q1", 20)  # the deepest now
    engine.look()
    assert (engine.value(name, "q1"), engine.value(name, OTHER)) == (23, 3)
    engine.send("q0", 2)
    engine.admin.delete("q2")
    engine.look()
    assert engine.value(name, OTHER) == 3 + 2
    engine.connection.close()


def test_limits_and_alerts(engine: Engine) -> None:
    engine.admin.define(QUEUE | {"name": "small", "max_spool_usage": 10})
    engine.send("small", 5)
    engine.look()
    assert engine.value("alert", "small", alert="spool_usage") == 1
    sample = engine.metrics.registry.get_sample_value
    assert sample("lakequeue_spool_bytes", {"broker": BROKER}) == 10
    assert sample("lakequeue_spool_files", {"broker": BROKER}) == 1
    with pytest.raises(lakequeue.Rejected):
        engine.send("nobody")
    engine.look()
    labels = {"broker": BROKER, "vpn": "default", "reason": "no_matching_destination"}
    assert sample("lakequeue_vpn_refused_messages_total", labels) == 1


PROGRESS = {
    "name": "lakequeue-tables", "timestamp": "2026-01-01T00:00:00.000Z", "numInputRows": 7,
    "durationMs": {"triggerExecution": 500, "addBatch": 400},
    "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 4}],
    "sources": [
        {"endOffset": {"t": {"0": 10}}, "latestOffset": {"t": {"0": 13}}}, {"endOffset": 1},
    ],
}  # fmt: skip


def test_what_the_table_names_is_served_and_nothing_else(engine: Engine) -> None:
    figures = {metric.figure for metric in TABLE if metric.source == "batch"} | PHASES.keys()
    assert figures <= set(NAMES)
    observed = {"engine": dict.fromkeys(figures, 1) | {"broker": BROKER}}
    engine.metrics.batch(PROGRESS | {"observedMetrics": observed})
    engine.metrics.query(PROGRESS)
    engine.metrics.malformed("default", 1)
    engine.metrics.lost("t", 1)
    engine.metrics.table("journal", 10, 1)
    engine.metrics.tidied(1.0)
    engine.metrics.stuck("broker-0")
    engine.metrics.tables_stopped("lakequeue-tables", False)
    engine.send("orders", 7)  # two are refused
    with pytest.raises(lakequeue.Rejected):
        engine.send("nobody")
    engine.admin.define(QUEUE | {"name": "small", "max_spool_usage": 10})
    engine.send("small", 4)
    consumer = engine.connection.consumer("orders", ack_mode="individual")
    consumer.receive(timeout=0).ack()
    consumer.close()
    engine.look()
    with urllib.request.urlopen(engine.metrics.serve(0)) as answer:
        text = answer.read().decode()
    engine.metrics.stop()
    families = list(text_string_to_metric_families(text))
    served = {sample.name for family in families for sample in family.samples}
    created = {name for name in served if name.endswith("_created")}
    absent = {"lakequeue_vpn_spool_max_bytes"}  # it has none; nor bridges, nor neighbours
    assert served - created == SAMPLES - absent - {
        m.shown for m in TABLE if m.source in (BRIDGE, LANES)
    }
    labels = {name: set(metric.labels) for metric in TABLE for name in metric.samples}
    for one in (sample for family in families for sample in family.samples):
        if not one.name.endswith("_created"):
            assert set(one.labels) - {"le"} == labels[one.name], one.name
    tables = {"query": "lakequeue-tables"}
    sample = engine.metrics.registry.get_sample_value
    assert sample("lakequeue_query_lag_records", tables) == 3
    assert sample("lakequeue_table_lag_seconds", tables) > 0
    assert sample("lakequeue_query_phase_seconds_total", tables | {"phase": "addBatch"}) == 0.4
    assert sample("lakequeue_step_seconds_total", {"broker": BROKER, "phase": "decide"}) == 0.001


# ------------------------------------------------------------ who asks, and when


def test_the_engine_is_asked_only_while_somebody_reads(engine: Engine) -> None:
    asked: list[str] = []

    def connect(vpn: str) -> Any:
        asked.append(vpn)
        return lakequeue.connect(engine.url, vpn=vpn)

    watch = QueueWatch("", ["default"], engine.metrics.queues, connect, every_s=0.01)
    engine.metrics.wanted = watch.wanted
    engine.send("orders", 2)
    time.sleep(0.05)
    assert not asked
    assert engine.value("queue_depth", "orders") == 2  # the first scrape waits for the first look
    engine.send("orders")
    wait_for(lambda: engine.value("queue_depth", "orders") == 3)
    assert asked == ["default"]  # one connection for all looks
    _end(watch)


def test_every_broker_is_looked_at() -> None:
    """With series of its own, also where a queue has the same name."""
    url = f"memory://metrics-{next(_names)}"
    queue = QUEUE | {"name": "orders", "type": "Queue", "max_spool_usage": 10}
    config = {"brokers": ["b-0", "b-1"], "queues": [queue]}
    first = lakequeue.connect(url, config=config)
    second = lakequeue.connect(url, broker="b-1")
    first.producer().send("orders", b"{}")
    for _ in range(2):
        second.producer().send("orders", b"{}")
    metrics = Metrics()
    watch = QueueWatch(
        "", ["default"], metrics.queues,
        lambda vpn: lakequeue.connect(url, vpn=vpn), every_s=0.01,
    )  # fmt: skip
    metrics.wanted = watch.wanted

    def value(name: str, broker: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"lakequeue_{name}", {"broker": broker} | labels)

    places = {"vpn": "default", "queue": "orders"}
    assert [value("queue_depth", b, **places) for b in ("b-0", "b-1")] == [1, 2]
    assert [value("spool_bytes", b) for b in ("b-0", "b-1")] == [2, 4]
    alert = places | {"alert": "spool_usage"}
    assert [value("alert", b, **alert) for b in ("b-0", "b-1")] == [None, 1]
    _end(watch)
    second.close()
    first.close()


def test_a_broker_or_a_vpn_that_does_not_answer_costs_nobody_else_its_figures() -> None:
    """And who needs the oldest message of all is told that one is missing."""
    url = f"memory://metrics-{next(_names)}"
    queue = QUEUE | {"name": "orders", "type": "Queue"}
    config = {
        "brokers": ["b-0", "b-1", "b-2"], "vpns": {"default": None, "other": None},
        "queues": [queue, queue | {"vpn": "other"}],
    }  # fmt: skip
    fails: set[tuple[str, int]] = set()

    def connect(vpn: str) -> Any:
        connection: Any = lakequeue.connect(url, vpn=vpn)
        answer_to = connection._answer_to

        def answer(command: Any, timeout: float, broker: int, *rest: Any) -> Any:
            if (vpn, broker) in fails:
                raise lakequeue.Timeout("busy")
            return answer_to(command, timeout, broker, *rest)

        connection._answer_to = answer
        return connection

    first = lakequeue.connect(url, config=config)
    for name in ("b-0", "b-1", "b-2"):
        with lakequeue.connect(url, broker=name) as connection:
            connection.producer().send("orders", b"{}")
    metrics = Metrics(queues=1)
    watch = QueueWatch("", ["default", "other"], metrics.queues, connect)
    everywhere = {(f"b-{n}", vpn) for n in range(3) for vpn in ("default", "other")}

    def look() -> set[tuple[str, str]]:
        found = watch._look({})
        metrics.queues.seen(found)
        return {(usage["broker"]["name"], usage["vpn"]["name"]) for usage in found.usage}

    def counted() -> dict[str, float]:
        families = [f for f in metrics.queues.families() if f.type == "counter"]
        return {f.name: sum(s.value for s in f.samples) for f in families}

    assert look() == everywhere
    assert any(counted().values())
    before = counted()
    fails |= {("default", 1), ("other", 0)}
    assert look() == everywhere - {("b-1", "default"), ("b-0", "other")}
    with pytest.raises(lakequeue.LakequeueError, match="broker 'b-1' in VPN 'default': busy"):
        watch.look()
    fails.clear()
    assert look() == everywhere
    assert len(watch.look().queues) == 6
    assert counted() == before, "nothing was counted twice"
    fails |= {(vpn, number) for vpn in ("default", "other") for number in range(3)}
    with pytest.raises(lakequeue.Timeout, match="busy"):
        look()
    first.close()


def test_an_engine_that_does_not_answer_is_asked_again(engine: Engine) -> None:
    failures = [lakequeue.NotConnected("away"), lakequeue.Timeout("busy")]

    def connect(vpn: str) -> Any:
        if failures:
            raise failures.pop()
        return lakequeue.connect(engine.url, vpn=vpn)

    watch = QueueWatch("", ["default"], engine.metrics.queues, connect, every_s=0.01)
    watch.wanted()
    wait_for(lambda: engine.value("queue_depth", "orders") is not None)
    assert not failures
    _end(watch)


def _end(watch: QueueWatch) -> None:
    thread = watch._thread
    assert thread is not None
    watch.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_h2_what_holds_a_bridge(engine: Engine) -> None:
    bridge = {"name": "out", "subscriptions": ["a/>"]}
    with lakequeue.connect("memory://metrics-far") as far:
        far.admin().bridge({**bridge, "from": engine.url, "to": BROKER})
        queue = {**QUEUE, "type": "LocalQueue", "subscriptions": ["a/>"]}
        far.admin().define({"name": "small", "max_spool_messages": 1, **queue})
        engine.admin.bridge({**bridge, "to": "memory://metrics-far"})
        engine.send("a/b", 4)
        engine.connection.advance("3s")
        seen = [*engine.admin.bridges(), *far.admin().bridges()]
    engine.metrics.queues.seen(
        Look(engine.admin.queues(), [engine.admin.usage()], 0.1, bridges=seen[:1])
    )

    def value(name: str, **labels: str) -> float | None:
        known = {"broker": BROKER, "vpn": "default", "bridge": "out", **labels}
        return engine.metrics.registry.get_sample_value(f"lakequeue_bridge_{name}", known)

    assert value("waiting") == 3
    assert (value("taken_messages_total"), value("away")) == (1, 0)
    assert value("blocked_messages", endpoint="small") == 3
    assert value("blocked_seconds", endpoint="small") == 3
    named = {f.name: f.samples for f in bridge_families(seen[1:])}
    assert [s.value for s in named["lakequeue_bridge_taken_messages"]] == [1]
    assert named["lakequeue_bridge_waiting"] == []  # an end where nothing waits has no such figure
