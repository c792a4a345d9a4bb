"""Random lives of a job, in memory: whatever is lost at whatever point, table and queue agree.

The same protocol as Spark's: the offset of a batch is logged, the source learns that the previous
batch is done, the batch runs, its commit is logged. A job may die at each of these points and in
between; leases end while a batch runs; other sessions' deliveries are in the same topic.
LAKEQUEUE_JOB_WALKS: the number of walks (10).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from lakequeue.client.session.transport import Record
from lakequeue.dataframes import delivered, taken_batch, taking
from lakequeue.dataframes.job_options import read_options
from lakequeue.dataframes.taken_batch import TakenBatch
from lakequeue.dataframes.taking import QueueTaker
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import LakequeueError
from rules.harness import Bench

WALKS = int(os.environ.get("LAKEQUEUE_JOB_WALKS", "10"))
MOVES = 60
OPTIONS = {"connection": "kafka://x:1", "queue": "orders", "maxMessagesPerBatch": "7"}


class Died(Exception):
    """The job is killed."""


class Checkpoint:
    """The remains of a job that died: Spark's two logs and the table, batch by batch."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.commits = 0
        self.table: dict[int, list[str]] = {}

    def ids(self) -> Counter[str]:
        """How often each message is in the table."""
        return Counter(one for rows in self.table.values() for one in rows)


class Life:
    """One process of the job, from its start to its death."""

    def __init__(self, bench: Bench, log: list[Record], kept: Checkpoint, chance: Any) -> None:
        self._kept, self._log, self._chance = kept, log, chance
        self._taker = QueueTaker(read_options(OPTIONS))
        self._taker._connection = MemoryConnection(bench.engine, "default", "job")
        number = len(kept.offsets) - 1
        self._again = number >= kept.commits
        self.deadly = 0.0

    def _may_die(self) -> None:
        if self._chance.random() < self.deadly:
            raise Died

    def _offset(self, number: int) -> TakenBatch:
        logged = self._kept.offsets[number] if number >= 0 else json.dumps(
            TakenBatch("orders").as_offset()
        )  # fmt: skip
        return TakenBatch.of(json.loads(logged), "orders")

    def batch(self, meanwhile: Any = None) -> bool:
        """One batch; returns whether there was any. meanwhile: called while it runs."""
        kept, number = self._kept, self._kept.commits
        if not self._again:
            start = self._offset(number - 1)
            end = self._taker.take(start, None)
            self._may_die()
            if end is start:
                return False
            kept.offsets.append(json.dumps(end.as_offset()))
            self._may_die()
            if number:
                self._taker.settle(start)
        self._may_die()
        if meanwhile is not None:
            meanwhile()
        rows = [m.id for part in self._offset(number).parts for m in self._read(part)]
        self._may_die()
        kept.table.setdefault(number, rows)  # the sink skips a batch that it has
        self._may_die()
        kept.commits += 1
        self._again = False
        self._may_die()
        return True

    def _read(self, part: Any) -> Iterator[Any]:
        for messages in delivered.read_part("", "orders", "default.deliveries", 0, part):
            yield from messages

    def die(self, in_order: bool) -> None:
        """End like a killed process, or like a stopped one."""
        if in_order:
            self._taker.close()
        elif self._taker._consumer is not None:
            self._taker._consumer.kill()


@pytest.fixture
def log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The topic of deliveries, as Kafka keeps it."""
    box = bench.engine.open_inbox("default.deliveries")

    def records(_: str, start: Any, last: int) -> Iterator[tuple[bytes, int]]:
        for record in list(box):
            if start.offset <= record.offset <= last and (record.value or b"")[:1] == b"\0":
                yield record.value or b"", record.offset

    monkeypatch.setattr(delivered, "_records", records)
    return box


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(taking, "RENEW_LIMIT", "30s")
    monkeypatch.setattr(taken_batch, "PART_MESSAGES", 3)
    bench = Bench()
    bench.define(max_per_subscription_backlog=10, lease_period="20s")
    return bench


@pytest.mark.parametrize("seed", range(WALKS))
def test_L1_L8_each_message_is_once_in_the_table(
    bench: Bench, log: list[Record], seed: int
) -> None:
    chance = random.Random(seed)
    kept, sent = Checkpoint(), []
    life = Life(bench, log, kept, chance)
    for _ in range(MOVES):
        life.deadly = 0.05
        move = chance.random()
        if move < 0.4:
            sent += [bench.send() for _ in range(chance.randrange(1, 6))]
        elif move < 0.5:
            bench.advance(f"{chance.choice([1, 15, 60, 300])}s")
        else:
            pause = chance.choice([None, None, "5s", "2m"])
            try:
                life.batch(None if pause is None else lambda p=pause: bench.advance(p))
            except Died:
                life.die(in_order=chance.random() < 0.3)
                bench.advance(f"{chance.choice([0.1, 10, 100])}s")
                life = Life(bench, log, kept, chance)
        counted = kept.ids()
        assert not counted or max(counted.values()) == 1
        gone = bench.seen()["counters"]["acknowledged"]
        assert gone <= len(counted), "acknowledged, and not in the table"
    life.deadly = 0.0
    for _ in range(200):
        if not life.batch() and not bench.seen()["depth"]:
            break
        bench.advance("5s")
    assert kept.ids() == Counter(sent)
    assert bench.seen()["depth"] == 0


def test_a_batch_with_missing_deliveries_is_an_error(bench: Bench, log: list[Record]) -> None:
    """Kafka keeps them too short a time: the batch is not written without them."""
    kept = Checkpoint()
    bench.send()
    life = Life(bench, log, kept, random.Random(0))
    with pytest.raises(LakequeueError, match="1 of 1 deliveries of queue 'orders' are no longer"):
        life.batch(log.clear)
    assert kept.table == {}
    assert bench.seen()["depth"] == 1
