"""`durability: delta`: receipts wait until the Delta tables have the messages (S1, P1, P3)."""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Receipts, RejectedRecord
from lakequeue.state import Batch, Limits
from rules.steps import Steps, define, delivered, of, started, subscribe

QUEUE = [c.Tables(), define(max_per_subscription_backlog=9), subscribe("s")]
DELTA = {"producer": "p", "durability": "delta"}


def durable(seq: int, **more: Any) -> tuple[str, bytes, dict[str, Any]]:
    return "orders", b"{}", {**DELTA, "seq": seq, **more}


def tables(end: int, partition: int = 0) -> c.Tables:
    return c.Tables(up_to={f"default.publish/{partition}": end})


def told(outputs: list[Any]) -> list[tuple[str, int]]:
    """Producer and sequence of each message that was confirmed."""
    return [
        (r.producer, seq) for r in of(Receipts, outputs) for first, count, _ in r.runs
        for seq in range(first, first + count)
    ]  # fmt: skip


@pytest.fixture
def steps() -> Steps:
    return started(*QUEUE)


def test_the_receipt_comes_with_the_tables_and_the_message_at_once(steps: Steps) -> None:
    out = steps.run(publishes=[durable(1), durable(2)])
    assert told(out) == []
    assert delivered(out) == [1, 2]
    end = steps.offsets + 1
    assert told(steps.run([tables(end - 1)])) == [], "the second one is not in the tables"
    assert told(steps.run([tables(end)])) == [("p", 1), ("p", 2)]
    assert told(steps.run([tables(end)])) == [], "more than once"


def test_other_producers_do_not_wait_and_other_partitions_do_not_count(steps: Steps) -> None:
    plain = ("orders", b"{}", {"producer": "q", "seq": 1})
    assert told(steps.run(publishes=[durable(1), plain])) == [("q", 1)]
    assert told(steps.run([tables(1_000, partition=1)])) == []
    assert told(steps.run([tables(1_000)])) == [("p", 1)]


def test_tables_that_are_ahead_of_the_broker_are_not_waited_for(steps: Steps) -> None:
    steps.run([tables(1_000)])
    assert told(steps.run(publishes=[durable(1)])) == [("p", 1)]


def test_without_reports_of_tables_no_receipt_waits_for_them() -> None:
    steps = started(define())
    assert told(steps.run(publishes=[durable(1)])) == [("p", 1)]


def test_durability_delta_is_refused_without_tables() -> None:
    steps = started(c.Tables(written=False), define())
    (receipt,) = of(Receipts, steps.run(publishes=[durable(1)]))
    ((seq, reason, _, detail),) = receipt.nacks
    assert (seq, reason) == (1, "no_tables")
    assert "lakequeue.tables_interval_s" in detail
    steps.run([c.Tables(written=True)])
    steps.run(publishes=[durable(1)])  # it was not stored, so it may be sent again
    assert told(steps.run([tables(1_000)])) == [("p", 1)]


def test_a_refusal_does_not_wait_for_tables(steps: Steps) -> None:
    out = steps.run(publishes=[durable(1), ("nowhere", b"{}", {**DELTA, "seq": 2})])
    (receipt,) = of(Receipts, out)
    assert [n[0] for n in receipt.nacks] == [2]
    assert (receipt.up_to, receipt.runs) == (0, []), "the first one is not settled"
    assert told(steps.run([tables(1_000)])) == [("p", 1)]


def test_P3_a_receipt_covers_no_earlier_message_that_waits_for_tables(steps: Steps) -> None:
    """Everything up to `up_to` has its answer."""
    steps.run(publishes=[durable(1)])
    later = [("orders", b"{}", {"producer": "p", "seq": 2}),
             ("nowhere", b"{}", {"producer": "p", "seq": 3})]  # fmt: skip
    for one, answers in zip(later, (([[2, 1, 2]], 0), ([], 1)), strict=True):
        (receipt,) = of(Receipts, steps.run(publishes=[one]))
        assert (receipt.runs, len(receipt.nacks), receipt.up_to) == (*answers, 0)
        steps.restart()
    assert told(steps.run([tables(1_000)])) == [("p", 1)]
    (last,) = of(Receipts, steps.run(publishes=[("orders", b"{}", {"producer": "p", "seq": 4})]))
    assert (last.up_to, last.runs) == (4, [[4, 1, 3]])


def test_P1_a_repetition_waits_for_the_tables_as_what_followed_it_does(steps: Steps) -> None:
    """Its answer covers that, too."""
    plain = ("orders", b"{}", {"producer": "p", "seq": 1})
    steps.run(publishes=[plain])
    steps.run(publishes=[durable(2)])
    assert told(steps.run(publishes=[plain])) == []
    assert told(steps.run([tables(1_000)])) == [("p", 2), ("p", 1), ("p", 2)]


def test_P1_a_repeated_message_is_stored_once_and_confirmed_with_the_tables(
    steps: Steps,
) -> None:
    steps.run(publishes=[durable(1)])
    first_end = steps.offsets + 1
    assert told(steps.run(publishes=[durable(1)])) == []
    again = tables(steps.offsets + 1)  # before commands raise the offset
    assert told(steps.run([tables(first_end)])) == [("p", 1)]
    assert told(steps.run([again])) == [("p", 1)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_long_list_of_receipts_is_sent_in_parts_in_order(restart: bool) -> None:
    """R3: the list is part of the state, so it survives a restart."""
    steps = started(*QUEUE, limits=Limits(due_names=7))
    for seq in range(1, 121):  # a page has 50
        assert told(steps.run(publishes=[durable(seq)])) == []
    if restart:
        steps.restart()
    parts: list[int] = []
    steps.watch = lambda said: parts.append(len(told(said)))
    out = steps.run([tables(1_000_000)])
    assert told(out) == [("p", seq) for seq in range(1, 121)]
    assert max(parts) == 7
    assert [r.up_to for r in of(Receipts, out)] == list(range(1, 121))


def test_a_full_list_of_waiting_receipts_refuses_more() -> None:
    steps = started(*QUEUE, limits=Limits(held_receipts=2))
    steps.run(publishes=[durable(1)])
    steps.run(publishes=[durable(2)])
    (receipt,) = of(Receipts, steps.run(publishes=[durable(3)]))
    assert [n[:2] for n in receipt.nacks] == [(3, "no_tables")]


def test_records_of_plain_topics_cannot_request_durability(steps: Steps) -> None:
    records = steps.publish_records([durable(1)])
    records.topics[:] = ["orders"]
    out = steps.step(Batch(publishes=records))
    assert of(RejectedRecord, out)
