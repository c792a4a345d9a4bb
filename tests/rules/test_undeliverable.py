"""X5: a message that Kafka refuses for its size is not repeated for ever, and others in its record
go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.protocol import commands as c
from lakequeue.protocol import wire
from lakequeue.protocol.commands import decode_command
from lakequeue.protocol.outputs import Deliveries, Receipts, RejectedRecord, Reply
from lakequeue.protocol.record_splitting import delivered, fitting, halves, size_of
from lakequeue.sinks.record_limits import within_limits
from rules.steps import Steps, define, delivery, described, of, started, subscribe

WHY = "70,123 bytes for topic 'default.deliveries': too large; its max.message.bytes is 50,000"


def refused(ids: str, queue: str = "orders") -> c.Undeliverable:
    return c.Undeliverable(
        queue=queue, ids=ids, topic="default.deliveries", reason="message_too_large", why=WHY
    )


def sent(steps: Steps, **keys: Any) -> str:
    """One message, delivered to a consumer; returns its id."""
    dying = define(dead_message_queue="dead", **keys)
    out = steps.run([define("dead"), dying, subscribe("s")], [("orders", b"1")])
    return str(of(Deliveries, out)[0].ids[0])


@pytest.mark.parametrize("state", ["leased", "delayed", "ready"])
def test_X5_a_message_refused_by_kafka_becomes_a_dead_message(state: str) -> None:
    steps = Steps()
    number = sent(steps)
    if state == "delayed":
        steps.run([c.Cancel(queue="orders", subscription="s", ids=number, delay_ms=60_000)])
    if state == "ready":
        steps.run([c.Unsubscribe(queue="orders", subscription="s")])
    assert described(steps)["depth"] == 1
    steps.run([refused(number)])
    assert described(steps)["depth"] == 0
    (dead,) = steps.ask(c.Browse(queue="dead"))
    assert dead["id"] == number
    assert (dead["dead"]["reason"], dead["dead"]["detail"]) == ("message_too_large", WHY)
    (event,) = steps.events("message_undeliverable")
    expected = {"queue": "orders", "messages": 1, "gone": 0, "why": WHY}
    assert expected.items() <= event.items()


def test_X5_without_a_dead_message_queue_it_is_discarded_and_reported() -> None:
    steps = started(define())
    steps.run(publishes=[("orders", b"1")])
    steps.run([refused("1")])
    assert described(steps)["counters"]["discarded"] == 1
    assert steps.events("message_undeliverable")[0]["messages"] == 1


def test_L2_a_refused_delivery_without_a_lease_is_reported() -> None:
    steps = Steps()
    number = sent(steps, semantics="at-most-once")
    steps.run([refused(number)])
    (event,) = steps.events("message_undeliverable")
    assert (event["messages"], event["gone"], event["first"]) == (0, 1, number)


def test_X5_refused_deliveries_of_a_deleted_queue_are_ignored() -> None:
    steps = started(refused("1-9", "nobody"), define())
    assert described(steps)["depth"] == 0


def test_any_other_refused_record_is_an_event() -> None:
    steps = started(c.RecordRefused(topic="default.receipts", why=WHY))
    assert steps.events("record_refused")[0]["topic"] == "default.receipts"


# ---------------------------------------------------------------- halves


def all_parts(record: wire.WireRecord, most: int) -> list[wire.WireRecord]:
    parts = halves(record) if size_of(record) > most else []
    return [small for part in parts for small in all_parts(part, most)] or [record]


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60), st.integers(0, 20_000))
def test_X5_a_delivery_is_split_until_it_fits(sizes: list[int], most: int) -> None:
    ids = [*range(7, len(sizes) + 7)]
    payloads = [b"x" * size for size in sizes]
    (whole,) = wire.encode([delivery(ids, payloads=payloads, flow=(5, 100))])
    parts = all_parts(whole, most)
    told = [wire.decode_batch(part.value or b"") for part in parts]
    assert [i for d in told for i in d.ids] == ids
    assert [p for d in told for p in d.payloads] == payloads
    flows = [f for d in told for f in range(d.flow[1], d.flow[1] + len(d.ids))]
    assert flows == [*range(100, 100 + len(ids))]
    assert {(p.topic, p.partition, p.key) for p in parts} == {("default.deliveries", 3, b"s")}
    for part, d in zip(parts, told, strict=True):
        assert size_of(part) <= most or len(d.ids) == 1
        assert delivered(part) == ("q", "s", d.ids, True)


def test_X5_a_single_refused_delivery_names_its_message() -> None:
    (record,) = wire.encode([delivery([9], "single")])
    assert delivered(record) == ("q", "s", [9], True)
    assert not halves(record)


def test_P3_a_split_receipt_confirms_nothing_that_a_later_part_refuses() -> None:
    nacks = [(seq, "queue_quota", "q", "x" * 100) for seq in range(1, 300, 2)]
    (whole,) = wire.encode(
        [Receipts("default", "p", 300, 0, [[2, 1, 7]], nacks, repeated=[[1, 1]])]
    )
    parts = [json.loads(part.value or b"") for part in all_parts(whole, 2_000)]
    told: set[int] = set()
    for part in parts:
        told |= {nack["seq"] for nack in part["nacks"]}
        assert set(range(1, part["up_to"] + 1, 2)) <= told
    assert len(told) == len(nacks)
    assert parts[-1]["up_to"] == 300
    assert sum(len(part["runs"]) for part in parts) == 1
    assert sum("repeated" in part for part in parts) == 1


def test_X5_micro_batches_split_records_before_kafka_refuses_the_batch() -> None:
    """A record that cannot be split is not sent: the broker learns of it, once for each message."""

    def message(first: int, *sizes: int) -> Deliveries:
        ids = [*range(first, first + len(sizes))]
        payloads = [b"x" * size for size in sizes]
        return delivery(ids, topic="far.deliveries", payloads=payloads)

    said = [message(1, 900, 900), message(3, 900, 9_000, 900), message(6, 9_000)]
    other = wire.WireRecord("far.journal", 0, None, b"x" * 9_000)
    records = [*wire.encode(said), other, other, wire.WireRecord("far.journal", 0, None, b"small")]
    notes: list[str] = []
    limits = {"far.deliveries": 2_000, "far.journal": 500}
    out = list(within_limits(records, limits, "b.instructions", notes))
    assert all(size_of(r) <= limits.get(r.topic, 2_000) for r in out)
    sent = [d for r in out if (d := delivered(r)) is not None]
    assert [number for one in sent for number in one.ids] == [1, 2, 3, 5]
    told = [decode_command(r.value or b"") for r in out if r.topic == "b.instructions"]
    assert [t.ids for t in told if isinstance(t, c.Undeliverable)] == ["4", "6"]
    assert {t.reason for t in told if isinstance(t, c.Undeliverable)} == {"message_too_large"}
    (refused,) = [t for t in told if isinstance(t, c.RecordRefused)]
    assert "for topic 'far.journal': too large; its max.message.bytes is 500" in refused.why
    assert {r.key for r in out if r.topic == "b.instructions"} == {b"far"}
    assert [note.split(":")[1] for note in notes] == ["far.deliveries", "far.journal"]
    assert out[-1].value == b"small"
    assert list(within_limits(records, {}, "b.instructions", [])) == records


def test_an_oversized_reply_becomes_an_error() -> None:
    (whole,) = wire.encode([Reply("default.deliveries", 0, "r", ["x" * 5_000])])
    (part,) = all_parts(whole, 1_000)
    told = json.loads(part.value or b"")
    assert (told["request"], told["result"]) == ("r", None)
    assert "more than topic 'default.deliveries' allows" in told["error"]


def test_a_long_rejected_record_is_cut_with_its_length() -> None:
    (whole,) = wire.encode([RejectedRecord("default", "t", 0, 0, None, b"v" * 5_000, "why")])
    (part,) = all_parts(whole, 2_000)
    assert size_of(part) <= 2_000
    assert dict(wire.headers_list(part.headers))["lq-truncated"] == b"5000"


@pytest.mark.parametrize(
    "output",
    [
        Receipts("default", "p", 1, nacks=[(1, "queue_quota", "q", "x" * 5_000)]),
        Reply("default.deliveries", 0, "r", error="x" * 5_000),
        RejectedRecord("default", "t", 0, 0, None, b"", "x" * 5_000),
    ],
    ids=["one nack", "an error", "no value"],
)
def test_a_record_without_parts_stays_whole(output: Any) -> None:
    (whole,) = wire.encode([output])
    assert fitting(whole, 1_000) == [whole]
