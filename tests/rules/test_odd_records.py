"""S5, P3, L12, X4, X5: records of producers that write anything. A sender that can be identified
gets an answer; no time and no size affects later records. See also
scenarios/engine/plain_records.txt."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from lakequeue.dataframes.data_source import _row
from lakequeue.protocol.bounds import YEAR_9999_ENDS_MS, datetime_of
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.messages import Records
from lakequeue.protocol.outputs import Deliveries, Receipts, RejectedRecord
from lakequeue.state import Limits
from rules.harness import Bench, drain
from rules.steps import Steps, define, described, of, started, subscribe

# ---------------------------------------------------------------- P3: malformed messages

GOOD = {"to": "orders", "producer": "p", "seq": 1}
WRONG: dict[str, dict[str, Any]] = {
    "ttl of another system's never": {"ttl_ms": 10_675_199 * 86_400_000},
    "a ttl that is nothing": {"ttl_ms": 0},
    "a long destination": {"to": "x" * 1_001},
    "a destination that is a list": {"to": ["orders"]},
    "none": {"to": ""},
    "a priority": {"priority": 256},
    "a field that nobody knows": {"colour": "red"},
    "a number of messages": {"count": 9},
    "a count that is a text": {"count": "2"},
    "a float": {"deliver_at": 1e20},
    "a time in words": {"deliver_at": "tomorrow"},
    "durability": {"durability": "paper"},
}


class RawSteps(Steps):
    """The headers `lq` of its publishes are raw bytes."""

    def publish_records(self, publishes: Any) -> Records:
        records = Records()
        for meta, value in publishes:
            self._add(records, "default.publish", value, meta=meta)
        return records


def raw(steps: Steps, *headers: dict[str, Any], value: bytes = b"x") -> list[Any]:
    return steps.run(publishes=[(msgspec.json.encode(header), value) for header in headers])


@pytest.fixture
def steps() -> RawSteps:
    found = RawSteps()
    found.run([define(message_type="binary"), subscribe("s")])
    return found


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_P3_the_sender_of_a_malformed_message_gets_a_nack(
    steps: Steps, wrong: dict[str, Any]
) -> None:
    good = {**GOOD, "reply": 2}
    out = raw(steps, good, {**good, "seq": 2, **wrong}, {**good, "seq": 3})
    (receipt,) = of(Receipts, out)
    assert (receipt.producer, receipt.partition, receipt.up_to) == ("p", 2, 3)
    (record,) = of(RejectedRecord, out)
    assert receipt.nacks == [(2, "malformed", "", record.error[:500])]
    (again,) = of(Receipts, raw(steps, {**good, "seq": 2}))  # sent again, valid
    assert (again.nacks, [run[0] for run in again.runs]) == ([], [2])


@pytest.mark.parametrize(("wrong", "allowed"), [
    ({"ttl_ms": 1 << 63}, "1 to 3153600000000 ms"), ({"delay_ms": -1}, "0 to 3153600000000 ms"),
    ({"durability": "paper"}, "checkpoint|delta"),
])  # fmt: skip
def test_P3_a_refusal_names_the_allowed_values(
    steps: Steps, wrong: dict[str, Any], allowed: str
) -> None:
    (receipt,) = of(Receipts, raw(steps, {**GOOD, **wrong}))
    assert allowed in receipt.nacks[0][3]


STARTS = [7, 1.5, True, None, [], {}, "s" * 251, "s" * 10_001]


def test_P3_each_message_of_a_malformed_run_is_refused(steps: Steps) -> None:
    (receipt,) = of(Receipts, raw(steps, {**GOOD, "count": 3}))
    assert [nack[:2] for nack in receipt.nacks] == [(n, "malformed") for n in (1, 2, 3)]
    assert receipt.up_to == 3


@pytest.mark.parametrize(
    "wrong",
    [{"producer": "p" * 251}, *[{"start": start} for start in STARTS]],
    ids=lambda wrong: f"{wrong}"[:30],
)
def test_P3_a_producer_with_an_invalid_name_or_start_gets_a_nack(
    steps: Steps, wrong: dict[str, Any]
) -> None:
    """It enters no history: the sequence is free for a producer with a valid name."""
    sent = {**GOOD, **wrong}
    (receipt,) = of(Receipts, raw(steps, sent))
    assert receipt.producer == sent["producer"]
    assert [nack[:2] for nack in receipt.nacks] == [(1, "malformed")]
    (receipt,) = of(Receipts, raw(steps, GOOD))
    assert (receipt.up_to, receipt.nacks) == (1, [])


@pytest.mark.parametrize("value", [
    b"", b"{", b"\xff", b"[]", b"17", b'{"producer":7,"seq":1}', b'{"producer":"p","seq":"1"}',
    b'{"producer":"p","seq":0}', b'{"producer":"p","seq":-1}', b'{"producer":"p","seq":1e400}',
    b'{"producer":"p","seq":99999999999999999999}', b'{"producer":"p","seq":1,"reply":-1}',
    b"[" * 100_000,
])  # fmt: skip
def test_P3_an_unreadable_sender_is_not_answered(steps: Steps, value: bytes) -> None:
    out = steps.run(publishes=[(value, b"x")])
    assert (len(of(RejectedRecord, out)), of(Receipts, out)) == (1, [])


# ---------------------------------------------------------------- times

NOW = 1_795_700_000  # the same in every process that collects the tests
ODD = [0, -1, -(1 << 63), NOW * 10**6, NOW * 10**9, (1 << 63) - 1, 1_795_000_000_000_000,
       YEAR_9999_ENDS_MS, YEAR_9999_ENDS_MS + 1]  # fmt: skip


@pytest.mark.parametrize("ms", ODD)
def test_L12_a_record_with_any_timestamp_is_stored_shown_and_delivered(
    empty: Bench, ms: int
) -> None:
    empty.define("q", message_type="text", expiration="1d", underlying_topic="flights")
    empty.plain("flights", b"x", timestamp=ms)
    assert len(empty.browsed("q")) == 1
    (message,) = drain(empty.consumer("q"))
    assert _row(message)[2] == b"x"
    assert message.published_at is None or 1970 <= message.published_at.year <= 9999
    if not 0 <= ms < YEAR_9999_ENDS_MS:  # in the tables, the last one stands for all later ones
        assert message.published_at == empty.connection.now()


@pytest.mark.parametrize("ms", ODD)
def test_L12_a_delivery_time_is_clamped_to_the_calendar(steps: Steps, ms: int) -> None:
    out = raw(steps, {**GOOD, "deliver_at": ms})
    assert not of(RejectedRecord, out)
    past = ms <= 0
    assert [len(d.ids) for d in of(Deliveries, out)] == ([1] if past else [])


def test_X4_an_expiry_is_clamped_to_the_calendar(empty: Bench) -> None:
    empty.define("q", message_type="text", underlying_topic="flights")
    header = {"lq": msgspec.json.encode({"ttl_ms": 86_400_000})}
    empty.plain("flights", b"x", timestamp=YEAR_9999_ENDS_MS - 1, headers=header)
    (seen,) = empty.admin.browse("q")
    assert seen.expires_at == datetime_of(YEAR_9999_ENDS_MS)


def test_any_number_is_accepted_as_a_time() -> None:
    assert datetime_of(-5) == datetime(1970, 1, 1, tzinfo=UTC)
    assert datetime_of(1 << 70).year == 9999


# ---------------------------------------------------------------- sizes and numbers


def test_S3_headers_count_as_they_are_delivered(empty: Bench) -> None:
    """9.5 MB are 12.7 MB in a delivery: nobody could ever receive it."""
    empty.define(message_type="binary")
    assert empty.refused(b"x", headers={"stack": b"s" * 9_500_000}) == "message_too_large"
    empty.send(b"x", headers={"stack": b"s" * 8_500_000})
    assert len(drain(empty.consumer())) == 1


def test_X5_an_oversized_message_dies_and_later_ones_continue() -> None:
    """Its state was written when the limit was higher."""
    steps = started(
        define("dead", message_type="binary"),
        define("heavy", message_type="binary", dead_message_queue="dead"),
    )
    steps.run(publishes=[("heavy", b"x" * 2_000), ("heavy", b"small")])
    steps.limits = Limits(message_bytes=1_000)
    steps.restart()

    def undeliverable() -> list[str]:
        return [e["queue"] for e in steps.events("message_undeliverable")]

    out = steps.run([subscribe("s", queue="heavy")])
    assert [d.payloads for d in of(Deliveries, out)] == [[b"small"]]
    assert described(steps, "dead")["depth"] == 1
    assert described(steps, "heavy")["counters"]["dead_lettered"] == 1
    assert undeliverable() == ["heavy"]
    assert not of(Deliveries, steps.run([subscribe("d", queue="dead")]))
    assert undeliverable() == ["heavy", "dead"]
    assert described(steps, "dead")["depth"] == 0


def test_S5_a_captured_record_with_a_destination_header_stays_a_captured_record(
    empty: Bench,
) -> None:
    taken = {"message_type": "text", "underlying_topic": "flights"}
    empty.define("live", **taken)
    empty.define("other", **taken, max_spool_messages=1)
    header = {"lq": msgspec.json.encode({"to": "elsewhere"})}
    empty.plain("flights", b"1", b"2", headers=header)
    assert empty.depths("live", "other") == [2, 1]


@pytest.mark.parametrize("odd", [1 << 64, 10**40, -(10**400)], ids=["2^64", "10^40", "-10^400"])
def test_Q9_an_extreme_number_in_a_redefinition_is_named(empty: Bench, odd: int) -> None:
    empty.define(max_deliveries=3)
    with pytest.raises(ConfigError, match=r"max_deliveries: .+ must be a whole number"):
        empty.define(max_deliveries=odd)
    assert empty.seen()["definition"]["max_deliveries"] == 3
