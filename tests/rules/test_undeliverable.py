"""X5: what Kafka refuses for its size does not come round for ever, and what only travels with it
goes on."""

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
from lakequeue.protocol.record_splitting import delivered, halves, size_of
from lakequeue.sinks.record_limits import within_limits
from rules.steps import REPLY, Steps, define, described, replies, subscribe

WHY = "70,123 bytes for topic 'default.deliveries': too large; its max.message.bytes is 50,000"


def refused(ids: str, queue: str = "orders") -> c.Undeliverable:
    return c.Undeliverable(
        queue=queue, ids=ids, topic="default.deliveries", reason="message_too_large", why=WHY
    )


def of(kind: type, out: list[Any]) -> list[Any]:
    return [o for o in out if isinstance(o, kind)]


def events(steps: Steps, name: str = "message_undeliverable") -> list[dict[str, Any]]:
    (reply,) = replies(steps.run([c.Events(reply=REPLY)]))
    return [e for e in reply.result if e["event"] == name]


def sent(steps: Steps, **keys: Any) -> str:
    """One message, delivered to a consumer; its id."""
    out = steps.run(
        [define("dead"), define(dead_message_queue="dead", **keys), subscribe("s")],
        [("orders", b"1")],
    )
    return str(of(Deliveries, out)[0].ids[0])


@pytest.mark.parametrize("state", ["leased", "delayed", "ready"])
def test_X5_a_message_whose_delivery_kafka_refuses_dies(state: str) -> None:
    steps = Steps()
    number = sent(steps)
    if state == "delayed":
        steps.run([c.Cancel(queue="orders", subscription="s", ids=number, delay_ms=60_000)])
    if state == "ready":
        steps.run([c.Unsubscribe(queue="orders", subscription="s")])
    assert described(steps)["depth"] == 1
    steps.run([refused(number)])
    assert described(steps)["depth"] == 0
    (reply,) = replies(steps.run([c.Browse(queue="dead", reply=REPLY)]))
    (dead,) = reply.result
    assert dead["id"] == number
    assert dead["dead"]["reason"] == "message_too_large"
    assert dead["dead"]["detail"] == WHY
    (event,) = events(steps)
    assert (event["queue"], event["messages"], event["gone"]) == ("orders", 1, 0)
    assert event["why"] == WHY


def test_X5_without_a_dead_message_queue_it_is_discarded_and_told() -> None:
    steps = Steps()
    steps.run([define(), subscribe("s")], [("orders", b"1")])
    steps.run([c.Unsubscribe(queue="orders", subscription="s")])
    (reply,) = replies(steps.run([c.Browse(queue="orders", reply=REPLY)]))
    steps.run([refused(reply.result[0]["id"])])
    assert described(steps)["counters"]["discarded"] == 1
    assert events(steps)[0]["messages"] == 1


def test_L2_what_left_the_queue_as_it_was_sent_is_told() -> None:
    steps = Steps()
    number = sent(steps, semantics="at-most-once")
    steps.run([refused(number)])
    (event,) = events(steps)
    assert (event["messages"], event["gone"], event["first"]) == (0, 1, number)


def test_X5_a_queue_that_is_gone_stops_nothing() -> None:
    steps = Steps()
    steps.run([refused("1-9", "nobody"), define()])
    assert described(steps)["depth"] == 0


def test_another_record_that_kafka_refused_is_an_event() -> None:
    steps = Steps()
    steps.run([c.RecordRefused(topic="default.receipts", why=WHY)])
    assert events(steps, "record_refused")[0]["topic"] == "default.receipts"


# ---------------------------------------------------------------- halves


def all_parts(record: wire.WireRecord, most: int) -> list[wire.WireRecord]:
    parts = halves(record) if size_of(record) > most else []
    return [small for part in parts for small in all_parts(part, most)] or [record]


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60), st.integers(0, 20_000))
def test_X5_a_delivery_is_cut_until_it_fits(sizes: list[int], most: int) -> None:
    n = len(sizes)
    delivery = Deliveries(
        "q", "s", "default.deliveries", 3, "batch", 0, ids=list(range(7, n + 7)),
        numbers=list(range(n)), counts=[1] * n, priorities=[4] * n, expires=[0] * n,
        times=[0] * n, payloads=[b"x" * size for size in sizes], keys=[None] * n,
        headers=[None] * n, flow=(5, 100),
    )  # fmt: skip
    (whole,) = wire.encode([delivery])
    parts = all_parts(whole, most)
    told = [wire.decode_batch(part.value or b"") for part in parts]
    assert [i for d in told for i in d.ids] == delivery.ids
    assert [p for d in told for p in d.payloads] == delivery.payloads
    # type: ignore[index]
    assert [f for d in told for f in range(d.flow[1], d.flow[1] + len(d.ids))] == list(
        range(100, 100 + n)
    )
    assert {(p.topic, p.partition, p.key) for p in parts} == {("default.deliveries", 3, b"s")}
    for part, d in zip(parts, told, strict=True):
        assert size_of(part) <= most or len(d.ids) == 1
        assert delivered(part) == ("q", "s", d.ids, True)


def test_X5_a_single_delivery_says_what_it_is_about() -> None:
    delivery = Deliveries(
        "q", "s", "default.deliveries", 0, "single", 0, ids=[9], numbers=[1], counts=[1],
        priorities=[4], expires=[0], times=[0], payloads=[b"x"], keys=[None], headers=[None],
    )  # fmt: skip
    (record,) = wire.encode([delivery])
    assert delivered(record) == ("q", "s", [9], True)
    assert not halves(record)


def test_P3_a_receipt_is_cut_and_settles_nothing_that_a_later_part_refuses() -> None:
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


def test_X5_in_micro_batches_a_record_is_cut_before_kafka_refuses_the_whole_batch() -> None:
    """What cannot be cut is not sent: the broker is told, once of each message."""

    def delivery(first: int, *sizes: int) -> Deliveries:
        n = len(sizes)
        return Deliveries(
            "q", "s", "far.deliveries", 3, "batch", 0, ids=list(range(first, n + first)),
            numbers=list(range(n)), counts=[1] * n, priorities=[4] * n, expires=[0] * n,
            times=[0] * n, payloads=[b"x" * size for size in sizes], keys=[None] * n,
            headers=[None] * n,
        )  # fmt: skip

    said = [delivery(1, 900, 900), delivery(3, 900, 9_000, 900), delivery(6, 9_000)]
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


def test_a_reply_that_does_not_fit_says_so() -> None:
    (whole,) = wire.encode([Reply("default.deliveries", 0, "r", ["x" * 5_000])])
    (part,) = all_parts(whole, 1_000)
    told = json.loads(part.value or b"")
    assert (told["request"], told["result"]) == ("r", None)
    assert "more than topic 'default.deliveries' allows" in told["error"]


def test_a_rejected_record_is_cut_and_says_how_long_it_was() -> None:
    (whole,) = wire.encode([RejectedRecord("default", "t", 0, 0, None, b"v" * 5_000, "why")])
    (part,) = all_parts(whole, 2_000)
    assert size_of(part) <= 2_000
    assert dict(wire.headers_list(part.headers))["lq-truncated"] == b"5000"
