"""S9, B4: what the engine says of alerts, from the journal that its steps write."""

from __future__ import annotations

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.configuration import configure_commands
from lakequeue.protocol import wire
from lakequeue.protocol.journal import JournalSegment
from lakequeue.protocol.messages import Records
from lakequeue.protocol.wire import WireRecord, headers_list
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, step
from lakequeue.streaming.watch.journal_watch import AlertReader, alerts_in, decoded

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
    """The journal of steps: definitions; 3 bytes; 9 bytes in all, at the queue's limit and near
    the VPN's."""
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


def read(reader: AlertReader, record: WireRecord) -> None:
    reader.read(record.topic, record.key, record.value, headers_list(record.headers or ""))


def test_S9_each_alert_is_one_sentence(journals: list[WireRecord]) -> None:
    said: list[str] = []
    reader = AlertReader(lambda text, broker, alert: said.append(text))
    for record in journals:
        read(reader, record)
    assert said == [
        "broker-0: spool_usage_high: queue 'small' of VPN 'east' at 66.7 % of 9, "
        "full in 0.02 min at the current rate",
        "broker-0: spool_usage_high: VPN 'east' at 90.0 % of 10, "
        "full in 0.01 min at the current rate",
    ]


def test_a_record_that_was_written_twice_is_said_once(journals: list[WireRecord]) -> None:
    said: list[str] = []
    reader = AlertReader(lambda text, broker, alert: said.append(text))
    for record in [*journals, *journals]:
        read(reader, record)
    assert len(said) == 2


@pytest.mark.parametrize("headers", [[], [("lq-step", b"x")], [("lq-step", None)]])
def test_what_others_wrote_to_the_journal_is_passed_over(
    journals: list[WireRecord], headers: list[tuple[str, bytes]]
) -> None:
    said: list[str] = []
    reader = AlertReader(lambda text, broker, alert: said.append(text))
    reader.read("east.journal", b"broker-0", journals[-1].value, headers)
    reader.read("east.journal", b"broker-0", b"no Arrow", [("lq-step", b"1.0")])
    assert said == []


def test_a_flow_has_its_consumers_name() -> None:
    row = (
        "scope=flow, subscription=s-1, consumer=a, b=c, level=8, limit=10, percent=80.0, "
        "threshold_percent=80, per_second=None, time_to_react_s=None"
    )
    segment = JournalSegment("delivered_unacked_high", "east", "small", reason=row)
    journal = wire.Journal("broker-0", 5, 1_000, [segment])
    (record,) = wire.encode([journal], SIZES)
    (alert,) = alerts_in(decoded(record.value or b""))
    assert alert.text() == (
        "delivered_unacked_high: consumer 'a' of queue 'small' of VPN 'east' at 80.0 % of 10"
    )


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("bridge_cleared", "bridge=b, to=far, after_s=1.0"),  # H3: of a bridge, and no alert
        ("spool_usage_high", ""),
        ("spool_usage_high", "scope=queue, limit=1"),
        ("spool_usage_high", "scope=queue, limit=1, percent=90, time_to_react_s=soon"),
    ],
)
def test_what_only_looks_like_an_alert_is_none(event: str, reason: str) -> None:
    journal = wire.Journal(
        "broker-0", 5, 1_000, [JournalSegment(event, "east", "q", reason=reason)]
    )
    (record,) = wire.encode([journal], SIZES)
    assert alerts_in(decoded(record.value or b"")) == []
