"""The metrics of queues, queries and messages: their values, and their number."""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

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
from lakequeue.streaming.watch import queue_watch
from lakequeue.streaming.watch.queue_watch import QueueWatch
from prometheus_client.parser import text_string_to_metric_families

_names = itertools.count()
MINUTE = timedelta(minutes=1)
BROKER = "broker-0"
VPN = {"broker": BROKER, "vpn": "default"}
QUEUE = {"message_type": "json", "max_per_subscription_backlog": 100}
ONE = {"max_backlog": 1, "ack_mode": "individual"}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"lakequeue_{name}", labels)


class Engine:
    """An engine in memory with some queues, and its metrics."""

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
        """Act like the engine's watch: inspect, and read the journal."""
        rows = self.connection.engine.journal()
        for row in rows[self._heard :]:
            row = row | {"message_id": int(row["message_id"] or 0) or None, "until": None}
            events = pa.Table.from_pylist([row], schema=journal_encoding.SCHEMA)
            self.metrics.times.journal(BROKER, events)
        self._heard = len(rows)
        self.metrics.queues.seen(Look(self.admin.queues(), [self.admin.usage()], 0.1))

    def value(self, name: str, queue: str = "orders", **labels: str) -> float | None:
        return value(self.metrics, name, queue=queue, **VPN, **labels)

    def check(self, queue: str, /, **wanted: Any) -> None:
        """The metrics of a queue have these values."""
        assert {name: self.value(f"queue_{name}", queue) for name in wanted} == wanted


@pytest.fixture
def engine() -> Iterator[Engine]:
    one = Engine(
        {"name": "orders", "dead_message_queue": "dead", "max_spool_messages": 5,
         "reject_msg_to_sender_on_discard": "never"},
        {"name": "dead"},
    )  # fmt: skip
    yield one
    one.connection.close()


def test_gauges_of_a_queue(engine: Engine) -> None:
    engine.send("orders", 3)
    engine.send("orders", deliver_at=engine.connection.now() + MINUTE)
    with engine.connection.consumer("orders", **ONE) as consumer:
        consumer.receive(timeout=0)
        engine.connection.advance("10s")
        engine.look()
        engine.check(
            "orders", depth=4, ready=2, leased=1, delayed=1, consumers=1, bytes=8,
            oldest_seconds=10, dead=0, max_bytes=5_000_000_000,
        )  # fmt: skip
        assert engine.value("queue_blocked", reason="every consumer's backlog is full") == 1
    with engine.connection.consumer("orders", filter="/n = 99"):
        engine.look()
        assert engine.value("queue_blocked", reason="no consumer's filter matches") == 1


def test_counters_of_a_queue(engine: Engine) -> None:
    engine.send("orders", 6)  # one too many
    with engine.connection.consumer("orders", max_backlog=10, ack_mode="individual") as consumer:
        first, second, third = (consumer.receive(timeout=0) for _ in range(3))
        first.ack()
        second.cancel()
        third.reject("bad")
        engine.connection.advance("1s")
        engine.look()
        counts = {"spooled": 5, "delivered": 6, "redelivered": 1, "acknowledged": 1,
                  "canceled": 1, "consumer_rejected": 1, "dead_lettered": 1}  # fmt: skip
        engine.check("orders", **{f"{name}_messages_total": n for name, n in counts.items()})
        engine.check("dead", dead=1)
        assert engine.value("queue_refused_messages_total", reason="queue_quota") == 1


def test_waiting_and_processing_times(engine: Engine) -> None:
    engine.send("orders", 3)
    engine.connection.advance("2s")
    with engine.connection.consumer("orders", max_backlog=3, ack_mode="individual") as consumer:
        held = [consumer.receive(timeout=0) for _ in range(3)]
        engine.connection.advance("20s")
        held[0].ack()
        held[1].cancel()
        engine.look()
    engine.check(
        "orders", waiting_seconds_count=3, waiting_seconds_sum=pytest.approx(6),
        processing_seconds_count=1, processing_seconds_sum=pytest.approx(20),
    )  # fmt: skip
    assert engine.value("queue_waiting_seconds_bucket", le="1.0") == 0
    assert engine.value("queue_waiting_seconds_bucket", le="5.0") == 3


def test_a_delayed_message_waits_from_when_it_is_due(engine: Engine) -> None:
    engine.send("orders", deliver_at=engine.connection.now() + MINUTE)
    engine.connection.advance("61s")
    with engine.connection.consumer("orders", **ONE) as consumer:
        assert consumer.receive(timeout=0) is not None
        engine.look()
    engine.check("orders", waiting_seconds_sum=pytest.approx(1))


def rows(event: str, ids: range, time_ms: int, queue: str = "orders") -> pa.Table:
    row = {"vpn": "default", "queue": queue, "event": event, "subscription": "", "reason": "",
           "deliveries": 0, "topic": "", "step": 1, "time": time_ms}  # fmt: skip
    return pa.Table.from_pylist(
        [row | {"message_id": i} for i in ids], schema=journal_encoding.SCHEMA
    )


def test_times_of_many_messages_are_sampled() -> None:
    """The count is right within the sample's error, and memory is bounded."""
    metrics, total = Metrics(), 40_000
    for start in range(1, total, 1_000):
        metrics.times.journal(BROKER, rows("spooled", range(start, start + 1_000), 1_000))
    (followed,) = metrics.times._followed.values()
    assert 0 < len(followed.messages) <= ROOM
    metrics.times.journal(BROKER, rows("delivered", range(1, total + 1), 3_000))
    count, seconds = (
        value(metrics, f"queue_waiting_seconds_{end}", queue="orders", **VPN)
        for end in ("count", "sum")
    )
    assert count == pytest.approx(total, rel=0.25)
    assert seconds == pytest.approx(2 * count)


def test_the_memory_is_bounded_whatever_the_number_of_queues() -> None:
    """Also while nobody scrapes."""
    metrics = Metrics()
    for n in range(QUEUES_MAX + 20):
        for event, time_ms in (("spooled", 1_000), ("delivered", 2_000), ("acknowledged", 3_000)):
            metrics.times.journal(BROKER, rows(event, range(n + 1, n + 2), time_ms, f"q{n}"))
    assert len(metrics.times._followed) == QUEUES_MAX
    assert len(metrics.times._histograms) == 2 * QUEUES_MAX + 2
    assert value(metrics, "queue_waiting_seconds_count", queue=OTHER, **VPN) == 20


def test_a_limited_number_of_queues_have_their_own_series() -> None:
    engine = Engine(*({"name": f"q{n:02}"} for n in range(12)), {"name": OTHER}, most=4)
    for name, count in (("q03", 5), ("q07", 4), ("q11", 1), (OTHER, 2)):
        engine.send(name, count)
    engine.look()
    named = {s.labels["queue"] for f in engine.metrics.queues.families()
             if f.name == "lakequeue_queue_depth" for s in f.samples}  # fmt: skip
    assert named == {"q03", "q07", "q11", "q00", OTHER}
    engine.check(OTHER, depth=2)  # a queue of that name is one of the others
    assert value(engine.metrics, "queues", **VPN) == 13
    engine.connection.close()


def test_a_counter_of_the_others_never_falls() -> None:
    """Also when one of them gets its own series, or is deleted."""
    engine = Engine(*({"name": f"q{n}"} for n in range(4)), most=1)

    def spooled(*queues: str) -> list[float | None]:
        engine.look()
        return [engine.value("queue_spooled_messages_total", queue) for queue in queues]

    engine.send("q0", 9)
    engine.send("q1", 3)
    assert spooled("q0", OTHER) == [9, 3]
    engine.send("q1", 20)  # the deepest now
    assert spooled("q1", OTHER) == [23, 3]
    engine.send("q0", 2)
    engine.admin.delete("q2")
    assert spooled(OTHER) == [3 + 2]
    engine.connection.close()


PROGRESS = {
    "name": "lakequeue-tables", "timestamp": "2026-01-01T00:00:00.000Z", "numInputRows": 7,
    "durationMs": {"triggerExecution": 500, "addBatch": 400},
    "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 4}],
    "sources": [
        {"endOffset": {"t": {"0": 10}}, "latestOffset": {"t": {"0": 13}}}, {"endOffset": 1},
    ],
}  # fmt: skip


def test_exactly_the_documented_metrics_are_served(engine: Engine) -> None:
    figures = {metric.figure for metric in TABLE if metric.source == "batch"} | PHASES.keys()
    assert figures <= set(NAMES)
    observed = {"engine": dict.fromkeys(figures, 1) | {"broker": BROKER}}
    metrics = engine.metrics
    metrics.batch(PROGRESS | {"observedMetrics": observed})
    metrics.query(PROGRESS)
    metrics.count("malformed_records", "default")
    metrics.count("lost_records", "t")
    metrics.level("table_bytes", 10, "journal")
    metrics.level("table_files", 1, "journal")
    metrics.level("upkeep_time_seconds", 1.0)
    metrics.count("stuck_brokers", "broker-0")
    metrics.level("tables_stopped", 0, "lakequeue-tables")
    engine.send("orders", 7)  # two are refused
    with pytest.raises(lakequeue.Rejected):
        engine.send("nobody")
    engine.admin.define(QUEUE | {"name": "small", "max_spool_usage": 10})
    engine.send("small", 5)
    with engine.connection.consumer("orders", ack_mode="individual") as consumer:
        consumer.receive(timeout=0).ack()
    engine.look()
    with urllib.request.urlopen(metrics.serve(0)) as answer:
        text = answer.read().decode()
    metrics.stop()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    samples = [one for one in samples if not one.name.endswith("_created")]
    absent = {"lakequeue_vpn_spool_max_bytes"}  # it has none; nor bridges, nor neighbours
    absent |= {m.shown for m in TABLE if m.source in (BRIDGE, LANES)}
    assert {one.name for one in samples} == SAMPLES - absent
    labels = {name: set(metric.labels) for metric in TABLE for name in metric.samples}
    for one in samples:
        assert set(one.labels) - {"le"} == labels[one.name], one.name
    tables, broker = {"query": "lakequeue-tables"}, {"broker": BROKER}
    assert value(metrics, "query_lag_records", **tables) == 3
    assert value(metrics, "table_lag_seconds", **tables) > 0
    assert value(metrics, "query_phase_seconds_total", phase="addBatch", **tables) == 0.4
    assert value(metrics, "step_seconds_total", phase="decide", **broker) == 0.001
    assert engine.value("alert", "small", alert="spool_usage") == 1
    assert [value(metrics, f"spool_{of}", **broker) for of in ("bytes", "files")] == [18, 1]
    refused = {"reason": "no_matching_destination", **VPN}
    assert value(metrics, "vpn_refused_messages_total", **refused) == 1


# ------------------------------------------------------------ scrapes and inspections


@pytest.fixture
def watched() -> Iterator[Any]:
    """Watches that inspect every 10 ms; their threads end in time."""
    watches: list[QueueWatch] = []

    def watch(metrics: Metrics, connect: Any) -> QueueWatch:
        watches.append(QueueWatch("", ["default"], metrics.queues, connect, every_s=0.01))
        metrics.wanted = watches[-1].wanted
        return watches[-1]

    yield watch
    for one in watches:
        one.stop()
        assert one._thread is not None
        one._thread.join(30)
        assert not one._thread.is_alive()


def test_the_engine_is_inspected_only_while_metrics_are_scraped(
    engine: Engine, watched: Any
) -> None:
    asked: list[str] = []

    def connect(vpn: str) -> Any:
        asked.append(vpn)
        time.sleep(0.1)
        return lakequeue.connect(engine.url, vpn=vpn)

    watched(engine.metrics, connect)
    engine.send("orders", 2)
    time.sleep(0.05)
    assert not asked
    engine.check("orders", depth=2)  # the first scrape waits for the first inspection
    engine.send("orders")
    wait_for(lambda: engine.value("queue_depth") == 3)
    assert asked == ["default"]  # one connection for all inspections


@pytest.mark.parametrize(("look_s", "rest_s"), [(0.01, 5.0), (0.2, 10.0), (60.0, 300.0)])
def test_inspections_take_at_most_a_fiftieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, look_s: float, rest_s: float
) -> None:
    watch, rests = QueueWatch("", [], Mock()), list[float]()
    monkeypatch.setattr(watch, "_look", lambda _: Look(seconds=look_s))
    watch._stopping = Mock(wait=lambda seconds: rests.append(seconds) or True)
    watch._run()
    assert rests == [rest_s]


def test_inspections_continue_after_an_unexpected_error(watched: Any, engine: Engine) -> None:
    """A client may write anything into the directory, which lists the brokers."""
    connections = iter([Mock(brokers=Mock(side_effect=KeyError("number")))])
    watch = watched(engine.metrics, lambda vpn: next(connections, None) or connect(engine, vpn))
    engine.send("orders", 2)
    watch.wanted()
    wait_for(lambda: value(engine.metrics, "queue_depth", **VPN, queue="orders") == 2)


def connect(engine: Engine, vpn: str) -> Any:
    return lakequeue.connect(engine.url, vpn=vpn)


def test_a_scrape_after_a_pause_gets_fresh_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without scrapes there are no inspections."""
    looks: list[Look] = []
    watch = QueueWatch("", [], Mock(seen=looks.append), every_s=0.01)
    monkeypatch.setattr(watch, "_look", lambda _: (time.sleep(0.1), Look())[1])
    monkeypatch.setattr(queue_watch, "UNWANTED_S", 0.05)
    for number in (1, 2):
        watch.wanted()
        assert len(looks) == number
        wait_for(lambda: watch._thread is None)
    time.sleep(0.2)
    assert len(looks) == 2


def test_every_broker_is_inspected(watched: Any) -> None:
    """With its own series, also where queues have the same name."""
    url = f"memory://metrics-{next(_names)}"
    queue = QUEUE | {"name": "orders", "type": "Queue", "max_spool_usage": 10}
    config = {"brokers": ["b-0", "b-1"], "queues": [queue]}
    first = lakequeue.connect(url, config=config)
    second = lakequeue.connect(url, broker="b-1")
    for connection in (first, second, second):
        connection.producer().send("orders", b"{}")
    metrics = Metrics()
    watched(metrics, lambda vpn: lakequeue.connect(url, vpn=vpn))

    def both(name: str, **labels: str) -> list[float | None]:
        return [value(metrics, name, broker=broker, **labels) for broker in ("b-0", "b-1")]

    orders = {"vpn": "default", "queue": "orders"}
    assert both("queue_depth", **orders) == [1, 2]
    assert both("spool_bytes") == [2, 4]
    assert both("alert", alert="spool_usage", **orders) == [None, 1]
    second.close()
    first.close()


def test_an_engine_that_does_not_answer_is_asked_again(engine: Engine, watched: Any) -> None:
    failures = [lakequeue.NotConnected("away"), lakequeue.Timeout("busy")]

    def connect(vpn: str) -> Any:
        if failures:
            raise failures.pop()
        return lakequeue.connect(engine.url, vpn=vpn)

    watched(engine.metrics, connect).wanted()
    wait_for(lambda: engine.value("queue_depth") is not None)
    assert not failures


def test_a_silent_broker_or_vpn_does_not_affect_other_figures() -> None:
    """A caller that needs the oldest message of all learns that one broker is missing."""
    url = f"memory://metrics-{next(_names)}"
    queue = QUEUE | {"name": "orders", "type": "Queue"}
    config = {
        "brokers": ["b-0", "b-1", "b-2"], "vpns": {"default": None, "other": None},
        "queues": [queue, queue | {"vpn": "other"}],
    }  # fmt: skip
    fails: set[tuple[str, int]] = set()

    def connect(vpn: str) -> Any:
        connection: Any = lakequeue.connect(url, vpn=vpn)
        answer_to = connection.answer_to

        def answer(command: Any, timeout: float, broker: int, *rest: Any) -> Any:
            if (vpn, broker) in fails:
                raise lakequeue.Timeout("busy")
            return answer_to(command, timeout, broker, *rest)

        connection.answer_to = answer
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
    assert counted() == before, "a message was counted twice"
    fails |= {(vpn, number) for vpn in ("default", "other") for number in range(3)}
    with pytest.raises(lakequeue.Timeout, match="busy"):
        look()
    first.close()


def test_H2_metrics_name_the_endpoint_that_blocks_a_bridge(engine: Engine) -> None:
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

    known = {"bridge": "out", **VPN}
    blocked = {"endpoint": "small", **known}
    shown = [("waiting", known, 3), ("taken_messages_total", known, 1), ("away", known, 0),
             ("blocked_messages", blocked, 3), ("blocked_seconds", blocked, 3)]  # fmt: skip
    for name, labels, wanted in shown:
        assert value(engine.metrics, f"bridge_{name}", **labels) == wanted, name
    named = {f.name: f.samples for f in bridge_families(seen[1:])}
    assert [s.value for s in named["lakequeue_bridge_taken_messages"]] == [1]
    # an end without waiting messages has no such figure
    assert named["lakequeue_bridge_waiting"] == []


def test_a_stopped_engine_frees_the_metrics_port() -> None:
    metrics = Metrics()
    port = int(metrics.serve(0).rpartition(":")[2].partition("/")[0])
    server = metrics._server
    metrics.stop()
    assert server.socket.fileno() == -1
    assert metrics.serve(port).endswith(f":{port}/metrics")
    metrics.stop()
