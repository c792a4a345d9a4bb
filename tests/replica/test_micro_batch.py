"""Micro-batches on the core: each continues from the state alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from lake.all_kinds import lived, looked_at, seen_in
from lakequeue.protocol.outputs import Deliveries, RejectedRecord
from lakequeue.replica.micro_batch import MicroBatch
from lakequeue.sources.step_batch import to_batch
from lakequeue.state import Batch, DictStore
from lakequeue.state.phases import admission
from loop.memory import HOME, LIMITS, PLACES, World


class Query:
    """A query in micro-batches. most: records of a step; batches of several steps."""

    def __init__(self, world: World, most: int) -> None:
        self.world, self.most = world, most
        self.store = DictStore()
        self.read = dict.fromkeys(PLACES, 0)
        self.said: list[Any] = []

    def batch(self) -> None:
        """Everything there is, in steps; fails nowhere."""
        work = MicroBatch(HOME, self.store, LIMITS)
        before = dict(self.store.pages)
        while found := {p: m for p in PLACES if (m := self._next(p))}:
            taken = to_batch(found).batch
            decided = work.take(Batch(taken.commands, taken.publishes), self.world.now)
            self.said += decided.said
            for place, messages in found.items():
                self.read[place] += len(messages)
        assert self.store.pages == before, "nothing is written before the end"
        work.end()

    def _next(self, place: Any) -> list[Any]:
        at = self.read[place]
        return self.world.topics[place][at : at + self.most]

    def delivered(self) -> list[int]:
        return [n for o in self.said if isinstance(o, Deliveries) for n in o.ids]


def begun() -> World:
    world = World()
    world.command(command="begin", epoch=HOME.epoch)
    queue = {"name": "orders", "message_type": "json", "filter": "/n >= 0"}
    world.command(command="define", definition=queue)
    inbox = {"topic": "default.deliveries", "partition": 0}
    world.command(command="subscribe", queue="orders", subscription="s", inbox=inbox)
    return world


def test_a_batch_continues_where_the_previous_one_ended() -> None:
    world = begun()
    query = Query(world, most=1)
    query.batch()
    for n in range(20):
        world.write(PLACES[1], b'{"n": %d}' % n, to="orders", producer="p", seq=n + 1)
        if n % 3 == 0:
            query.batch()
    query.batch()
    ids = query.delivered()
    assert ids == sorted(set(ids))
    assert ids


def test_a_failing_record_is_skipped_and_earlier_steps_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = begun()
    query = Query(world, most=1)
    query.batch()
    for n in range(6):
        world.write(PLACES[1], b'{"n": %d}' % n, to="orders", producer="p", seq=n + 1)
    failed = fail_at(monkeypatch, b'{"n": 3}')
    query.batch()
    rejected = [o for o in query.said if isinstance(o, RejectedRecord)]
    assert [o.offset for o in rejected] == [3]
    assert len(failed) == 1, "it never fails twice"
    query.batch()


def fail_at(monkeypatch: pytest.MonkeyPatch, value: bytes) -> list[int]:
    """Make one record fail in the middle of its admission. Returns the failures."""
    failed: list[int] = []
    real = admission.match

    def match(queue: Any, payload: bytes, *rest: Any) -> Any:
        if payload == value:
            failed.append(1)
            raise RuntimeError("planted")
        return real(queue, payload, *rest)

    monkeypatch.setattr(admission, "match", match)
    return failed


@pytest.mark.parametrize("seed", range(2))
def test_batches_treat_all_kinds_of_queues_like_single_steps(seed: int) -> None:
    """A batch that begins with the stored state continues where the previous one ended, with all
    that is due, leased, delayed or dead."""
    walk, rng, store = lived(seed), random.Random(seed), DictStore()
    steps = [record for _, record in walk.world.logged()]
    while steps:
        work = MicroBatch(HOME, store, LIMITS)
        for record in steps[: (some := rng.randint(1, 9))]:
            work.take(walk.world.take(record.ranges), record.now)
        work.end()
        del steps[:some]
    assert seen_in(store, walk) == looked_at(walk)
