"""The messages that a job takes and acknowledges, batch by batch, on an engine in memory (L1, L8,
C3).

`tests/job/test_spark_jobs.py` has the same with Spark, Kafka and kills.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from lakequeue.client.message import Message
from lakequeue.dataframes import taken_batch
from lakequeue.dataframes.job_options import read_options, write_options
from lakequeue.dataframes.taken_batch import TakenBatch
from lakequeue.dataframes.taking import RENEW_LIMIT, QueueTaker
from lakequeue.protocol import ConfigError, LakequeueError, Timeout
from lakequeue.protocol.ids import parse_ranges
from lakequeue.protocol.outputs import Deliveries
from rules.harness import Bench

OPTIONS = {"connection": "kafka://x:1", "queue": "orders"}
START = TakenBatch("orders")


class Taker(QueueTaker):
    """A taker on an engine in memory."""

    def __init__(self, bench: Bench, **options: str) -> None:
        super().__init__(read_options(OPTIONS | options))
        self._connection = bench.connection


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.define(max_per_subscription_backlog=100, lease_period="1m")
    return bench


@pytest.fixture
def taken(bench: Bench) -> tuple[Taker, TakenBatch]:
    """A job that has taken its first batch, of one message."""
    bench.send()
    taker = Taker(bench)
    return taker, taker.take(START, None)


def logged(batch: TakenBatch) -> TakenBatch:
    """As it comes out of Spark's log."""
    return TakenBatch.of(json.loads(json.dumps(batch.as_offset())), "orders")


def test_a_batch_is_acknowledged_before_the_next_is_taken(bench: Bench) -> None:
    sent = [bench.send({"n": n}) for n in range(3)]
    taker = Taker(bench)
    first = taker.take(START, None)
    assert (first.number, first.ids) == (1, f"{sent[0]}-{sent[2]}")
    assert bench.seen()["leased"] == 3
    last = bench.send({"n": 3})
    second = taker.take(first, None)
    assert (second.number, second.ids) == (2, last)
    assert bench.seen()["counters"]["acknowledged"] == 3
    taker.settle(second)
    assert bench.seen()["depth"] == 0
    assert taker.take(second, None) is second


def test_L8_a_start_acknowledges_before_it_binds(bench: Bench, taken: Any) -> None:
    """Messages that returned during the downtime are not delivered again."""
    taker, batch = taken
    taker._consumer.close()
    assert bench.seen()["ready"] == 1
    again = Taker(bench)
    assert again.take(logged(batch), None).number == 1
    counters = bench.seen()["counters"]
    assert (bench.seen()["depth"], counters["delivered"], counters["acknowledged"]) == (0, 1, 1)


def test_L4_a_repeated_delivery_is_in_no_other_batch(bench: Bench, taken: Any) -> None:
    """Its lease ended, because the batch took longer than leases are renewed."""
    taker, batch = taken
    assert RENEW_LIMIT == "1h"
    bench.advance("2h")
    assert bench.seen()["redelivered"] >= 1
    other = bench.send()
    assert taker.take(batch, None).ids == other
    assert bench.seen()["counters"]["acknowledged"] == 1


def test_L10_leases_are_renewed_while_a_batch_runs(bench: Bench, taken: Any) -> None:
    taker, batch = taken
    bench.advance("30m")
    assert (bench.seen()["leased"], bench.seen()["redelivered"]) == (1, 0)
    taker.settle(batch)


def test_a_batch_has_a_maximum_size(bench: Bench) -> None:
    for _ in range(5):
        bench.send()
    taker = Taker(bench, maxMessagesPerBatch="3")
    first = taker.take(START, None)
    second = taker.take(first, 1)
    third = taker.take(second, None)
    assert [sum(p.count for p in b.parts) for b in (first, second, third)] == [3, 1, 1]


def test_the_source_waits_for_an_engine_that_does_not_answer(
    bench: Bench, taken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taker, batch = taken

    def away(*_: Any, **__: Any) -> None:
        raise Timeout("the engine did not answer within 30 s")

    with monkeypatch.context() as patch:
        patch.setattr(bench.connection, "request", away)
        assert taker.take(batch, None) is batch
    assert bench.seen()["depth"] == 1
    taker.take(batch, None)
    assert bench.seen()["depth"] == 0


def test_available_now_ends(bench: Bench) -> None:
    for _ in range(4):
        bench.send()
    taker = Taker(bench, maxMessagesPerBatch="3")
    taker.take_what_is_there()
    first = taker.take(START, None)
    later = [bench.send() for _ in range(2)]
    second = taker.take(first, None)
    assert sum(p.count for p in second.parts) == 1
    assert taker.take(second, None) is second
    assert bench.seen()["depth"] == len(later)


def test_ids_of_another_home_are_not_acknowledged(bench: Bench, taken: Any) -> None:
    """A new home on the same Kafka assigns the same ids to other messages."""
    taker, batch = taken
    with pytest.raises(LakequeueError, match="epoch: 4711 – the messages of this command"):
        taker.take(dataclasses.replace(batch, epoch=4711), None)
    assert bench.seen()["depth"] == 1


def test_another_queues_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="checkpoint of this query belongs to the queue 'orders'"):
        TakenBatch.of(START.as_offset(), "bills")


def test_C2_no_delivery_is_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends between two records, and has few messages or few bytes."""
    monkeypatch.setattr(taken_batch, "PART_MESSAGES", 3)
    monkeypatch.setattr(taken_batch, "PART_BYTES", 100)
    sizes = [(0, 1), (0, 1), (0, 1), (0, 1), (4, 1), (5, 99), (6, 1), (7, 1)]  # offset, bytes
    count = len(sizes)
    record = Deliveries(
        "orders", "s", "default.deliveries", 2, "batch", 0, ids=[*range(1, count + 1)],
        numbers=[*range(11, count + 11)], payloads=[b"x" * size for _, size in sizes],
        keys=[None] * count, headers=[None] * count, counts=[1] * count, priorities=[4] * count,
        expires=[0] * count, times=[0] * count,
    )  # fmt: skip
    holder: Any = None
    messages = [Message(holder, record, i, offset) for i, (offset, _) in enumerate(sizes)]
    batch = logged(START.next(messages, 7, "default.deliveries", 2))
    assert [(p.first, p.last, p.count) for p in batch.parts] == [(0, 0, 4), (4, 5, 2), (6, 7, 2)]
    assert [parse_ranges(p.numbers) for p in batch.parts] == [[(11, 14)], [(15, 16)], [(17, 18)]]
    assert (batch.ids, batch.epoch, batch.partition) == ("1-8", 7, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "connection: '' – is required"),
        ({"connection": "memory://x"}, "connection: 'memory://x' – is required"),
        ({**OPTIONS, "queue": ""}, "queue: '' – is required"),
        ({**OPTIONS, "maxMessagesPerBatch": "0"}, "'0' – allowed are 1 to 100000"),
        ({**OPTIONS, "maxmessages": "1"}, "no such option here; allowed are connection, vpn"),
    ],
)
def test_Q7_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_options(options)
    assert said in str(refused.value)


def test_names_of_options_ignore_case() -> None:
    given = {"CONNECTION": "kafka://x:1", "orderby": "a, b", "WriteID": "w", "path": "/x"}
    found = write_options(given)
    assert (found.order, found.write_id, found.queue) == (("a", "b"), "w", None)
