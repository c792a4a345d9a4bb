"""The engine's input and log while it runs: alerts (S9, B4) and the outcomes of single messages,
from the journal; the reports of steps to the driver; heartbeats; and the threads that read a topic,
on librdkafka's mock of Kafka."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from client.threaded import wait_for
from confluent_kafka import OFFSET_END, Message, Producer, TopicPartition
from lakequeue.definitions import Configuration, parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import NotConnected, journal_encoding, wire
from lakequeue.protocol.journal import Journal, JournalSegment
from lakequeue.protocol.messages import Records
from lakequeue.protocol.wire import WireRecord, headers_list
from lakequeue.replica.replica import Replica, sort_outputs
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, step
from lakequeue.streaming import Engine
from lakequeue.streaming.watch.heartbeat import EngineHeartbeat
from lakequeue.streaming.watch.journal_watch import (
    LINES_MAX,
    AlertWatch,
    EventLines,
    alerts_in,
    decoded,
)
from lakequeue.streaming.watch_thread import TopicReader

CONFIG = {
    "vpns": {"east": {"max_spool_usage": 10}},
    "queues": [
        {"name": "small", "vpn": "east", "message_type": "binary", "max_spool_usage": 9},
        {"name": "large", "vpn": "east", "message_type": "binary"},
    ],
}  # fmt: skip
KINDS = ("journal", "receipts", "rejected", "deliveries")
SIZES = {f"{vpn}.{kind}": 1 for vpn in ("default", "east") for kind in KINDS}


def records(topic: str, start: int, *values: bytes, keys: list[bytes] | None = None) -> Records:
    n = len(values)
    return Records(
        [topic] * n, [0] * n, [*range(start, start + n)], [0] * n, keys or [b"k"] * n, [*values],
        [None] * n, [None] * n,
    )  # fmt: skip


@pytest.fixture
def journals() -> list[WireRecord]:
    """The journal of steps: definitions; 3 bytes; 9 bytes in all, at the queue's limit and near the
    VPN's."""
    broker = Broker.load(DictStore(), Home("broker-0", 0), Limits())
    given = configure_commands(parse_configuration(CONFIG))
    told = [
        records("broker-0.instructions", 0, *own, keys=[vpn.encode()] * len(own))
        for vpn in ("default", "east")
        if (own := [c for v, c in given if v == vpn])
    ]
    steps = [
        *(Batch(commands=those) for those in told),
        Batch(publishes=records("large", 0, b"123")),
        Batch(publishes=records("small", 0, b"123456")),
    ]
    found: list[WireRecord] = []
    for number, batch in enumerate(steps):
        outputs = step(broker, batch, 1_000 * (number + 1))
        found += [r for r in wire.encode(outputs, SIZES) if r.topic == "east.journal"]
    return found


@pytest.fixture
def reader() -> AlertWatch:
    return AlertWatch("127.0.0.1:1", [])


def read(reader: AlertWatch, records: Iterable[WireRecord]) -> None:
    for record in records:
        reader.read(record.topic, record.key, record.value, headers_list(record.headers or ""))


def test_S9_each_alert_is_one_sentence(
    journals: list[WireRecord], reader: AlertWatch, caplog: pytest.LogCaptureFixture
) -> None:
    read(reader, journals)
    assert caplog.messages == [
        "broker-0: spool_usage_high: queue 'small' of VPN 'east' at 66.7 % of 9, "
        "full in 0.02 min at the current rate",
        "broker-0: spool_usage_high: VPN 'east' at 90.0 % of 10, "
        "full in 0.01 min at the current rate",
    ]
    read(reader, journals)
    assert len(caplog.messages) == 2, "a record written twice is logged once"


@pytest.mark.parametrize("headers", [[], [("lq-step", b"x")], [("lq-step", None)]])
def test_foreign_records_in_the_journal_are_skipped(
    journals: list[WireRecord], headers: list[tuple[str, bytes]], reader: AlertWatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    reader.read("east.journal", b"broker-0", journals[-1].value, headers)
    reader.read("east.journal", b"broker-0", b"no Arrow", [("lq-step", b"1.0")])
    assert caplog.messages == []


def alerts_of(event: str, queue: str, reason: str) -> list[str]:
    """The alerts in a journal of one event."""
    segment = JournalSegment(event, "east", queue, reason=reason)
    (record,) = wire.encode([wire.Journal("broker-0", 5, 1_000, [segment])], SIZES)
    return [alert.text() for alert in alerts_in(decoded(record.value or b""))]


def test_a_flow_has_its_consumers_name() -> None:
    row = (
        "scope=flow, subscription=s-1, consumer=a, b=c, level=8, limit=10, percent=80.0, "
        "threshold_percent=80, per_second=None, time_to_react_s=None"
    )
    assert alerts_of("delivered_unacked_high", "small", row) == [
        "delivered_unacked_high: consumer 'a' of queue 'small' of VPN 'east' at 80.0 % of 10"
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("bridge_cleared", "bridge=b, to=far, after_s=1.0"),  # H3: of a bridge, and no alert
        ("spool_usage_high", ""),
        ("spool_usage_high", "scope=queue, limit=1"),
        ("spool_usage_high", "scope=queue, limit=1, percent=90, time_to_react_s=soon"),
    ],
)
def test_an_event_that_only_resembles_an_alert_is_not_one(event: str, reason: str) -> None:
    assert alerts_of(event, "q", reason) == []


class Lines:
    """The event lines that were logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog
        self.now = 1.0
        self.lines = EventLines(lambda: self.now)

    @property
    def said(self) -> list[tuple[str, dict[str, Any]]]:
        """Lines with their fields."""
        return [(one.getMessage(), one.fields) for one in self._caplog.records]

    def hear(self, *segments: JournalSegment) -> None:
        journal = journal_encoding.encode(Journal("east", 1, 1_000, [*segments]))
        self.lines.heard("east", journal_encoding.decode(journal))


def segment(event: str, *ids: int, **options: Any) -> JournalSegment:
    return JournalSegment(event, "default", "orders", [*ids], **options)


def test_events_of_single_messages_are_logged_with_their_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Lines(caplog)
    log.hear(
        segment("delivered", 1, 2), segment("dead_lettered", 7, reason="orders-dmq"),
        segment("acknowledged", 2), segment("discarded", 9, reason="queue_quota"),
    )  # fmt: skip
    assert [text for text, _ in log.said] == [
        "east: dead_lettered: message 7 of queue 'orders': to orders-dmq",
        "east: discarded: message 9 of queue 'orders': queue_quota",
    ]
    fields = log.said[0][1]
    assert (fields["message_id"], fields["queue"], fields["broker"]) == ("7", "orders", "east")
    assert fields["record"] == ""  # its origin is unknown


def test_a_flood_has_few_lines_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = Lines(caplog)
    log.hear(segment("dead_lettered", *range(1, 501)))
    log.hear(segment("dead_lettered", *range(501, 601)))
    assert len(log.said) == LINES_MAX
    log.now += 1.5
    log.hear(segment("delivered", 1))
    text, fields = log.said[-1]
    more = 600 - LINES_MAX
    assert text == f"dead_lettered: {more} more messages of queue 'orders'; the journal has each"
    assert (len(log.said), fields["count"]) == (LINES_MAX + 1, more)
    log.hear(segment("dead_lettered", 601))
    assert "message 601" in log.said[-1][0]


def test_lines_left_out_in_a_flood_are_counted_although_nothing_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Lines(caplog)
    log.hear(segment("dead_lettered", *range(1, LINES_MAX + 4)))
    log.lines.idle()
    assert len(log.said) == LINES_MAX
    log.now += 1.5
    reader = AlertWatch("127.0.0.1:1", [], idle=log.lines.idle)
    reader.idle()
    assert log.said[-1][1]["count"] == 3


@pytest.mark.parametrize("ids", [[], [0]])
def test_a_message_without_an_id_is_named_by_its_record(
    ids: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    log = Lines(caplog)
    place: dict[str, Any] = {"topic": "plain", "partitions": [2], "offsets": [7]}
    log.hear(segment("rejected", *ids, reason="malformed", **place))
    said = "east: rejected: the record plain 2/7 of queue 'orders': malformed"
    assert [text for text, _ in log.said] == [said]


def test_malformed_records_are_counted_by_vpn(tmp_path: Path) -> None:
    """Also those of a VPN that the engine does not know, or no longer knows."""
    broken = records("default.commands", 0, b"{", b"{", b"{")
    broken.topics[1] = "gone.commands"
    broker = Replica(Home(), DictStore(), Limits())
    notes = sort_outputs(broker.take(Batch(commands=broken), 1)).notes
    assert notes == ["malformed:default:2", "malformed:gone:1"]
    engine = Engine("127.0.0.1:1", tmp_path, Configuration())
    for note in [*notes, *notes]:
        engine._notes("broker-0", note)
    sample = engine.metrics.registry.get_sample_value
    assert sample("lakequeue_malformed_records_total", {"vpn": "default"}) == 4
    assert sample("lakequeue_malformed_records_total", {"vpn": "gone"}) == 2


def test_the_heartbeat_continues_until_its_end_whatever_kafka_does(tmp_path: Path) -> None:
    send = Mock(side_effect=[NotConnected("Kafka is away"), *[None] * 1_000])
    heartbeat = EngineHeartbeat(send, tmp_path, every_s=0.01)
    heartbeat.start()
    wait_for(lambda: send.call_count >= 3)
    heartbeat.stop()
    count = send.call_count
    time.sleep(0.1)
    assert count == send.call_count
    said = json.loads(send.call_args.args[0])
    assert (said["process"], said["home"]) == (os.getpid(), str(tmp_path))


def test_a_heartbeat_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    sent: list[bytes] = []
    heartbeat = EngineHeartbeat(sent.append, tmp_path)
    heartbeat.stop()
    assert (sent, heartbeat.is_alive()) == ([], False)


class Hearing(TopicReader):
    """Keeps its records, and counts idle polls."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.values: list[bytes | None] = []
        self.idled = 0

    def take(self, message: Message) -> None:
        self.values.append(message.value())

    def idle(self) -> None:
        self.idled += 1


def test_an_unreadable_record_ends_no_reader(caplog: pytest.LogCaptureFixture) -> None:
    """Anybody may write to the topic. The consumer is closed in the end all the same."""
    polled = [Mock(error=lambda: None, value=lambda n=n: n) for n in (b"1", b"bad", b"2")]
    consumer = Mock(poll=Mock(side_effect=lambda seconds: polled.pop(0) if polled else None))

    class Picky(Hearing):
        def take(self, message: Message) -> None:
            if message.value() == b"bad":
                raise TypeError("nobody thought of this")
            super().take(message)

    reader = Picky("127.0.0.1:1", "picky", [])
    vars(reader)["_consumer"] = consumer
    reader.start()
    wait_for(lambda: reader.idled > 0)
    reader.stop()
    reader.join(20)
    assert reader.values == [b"1", b"2"]
    assert "nobody thought of this" in caplog.text
    consumer.close.assert_called_once()


def test_a_reader_starts_at_its_offsets_and_ends_soon() -> None:
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()

    def write(value: bytes) -> None:
        producer.produce("v.directory", value, b"key", 0)
        assert producer.flush(10) == 0

    write(b"1")
    write(b"2")
    address = f"{broker.host}:{broker.port}"
    all_of_it, later = (
        Hearing(address, f"from-{at}", [TopicPartition("v.directory", 0, at)])
        for at in (1, OFFSET_END)
    )
    all_of_it.start()
    later.start()
    wait_for(lambda: all_of_it.values == [b"2"] and all_of_it.idled > 0)

    def is_heard() -> bool:
        write(b"3")  # again, since a reader may only now learn the end's offset
        return bool(later.values)

    wait_for(is_heard)
    assert set(later.values) == {b"3"}
    wait_for(lambda: all_of_it.values[:2] == [b"2", b"3"])
    for reader in (all_of_it, later):
        reader.stop()
        reader.join(20)
        assert not reader.is_alive()
