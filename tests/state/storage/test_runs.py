"""The cold part of a queue against a plain sorted list, in random walks at tiny limits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from lakequeue.state.limits import Limits
from lakequeue.state.storage.row import NEVER, Row, by_key, by_until
from lakequeue.state.storage.runs import Runs
from lakequeue.state.storage.segments import RunsState
from lakequeue.state.storage.store import DictStore
from model.batches import TIMES
from state.counting_store import CountingStore

TINY = replace(Limits(), segment_rows=4)
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.Decoder(RunsState).decode


def settle(rows: Sequence[Row]) -> None:
    """As if their contents were written to a block."""
    for row in rows:
        row.block = 1


def check(runs: Runs) -> None:
    """The invariants between two calls; reads everything."""
    ids: set[int] = set()
    by, segments = runs.by, list(runs._segments.values())
    for segment in segments:
        rows = runs.read(segment)
        if segment.number not in runs._pages.unwritten:
            assert all(row.block for row in runs._pages.read(segment))
        keys = [by(row) for row in rows]
        assert all(a < b for a, b in pairwise(keys)), "a segment is out of order"
        assert (keys[0], keys[-1], len(keys)) == (segment.first, segment.last, segment.rows)
        assert segment.bytes == sum(row.size for row in rows)
        assert segment.due == min(row.due for row in rows)
        assert all(segment.id_first <= row.id <= segment.id_last for row in rows)
        ids |= {row.id for row in rows}
    assert len(ids) == runs.rows == sum(s.rows for s in segments) == len(runs._ids)
    assert all(runs.has(number) for number in ids)
    for group in runs._all_groups():
        assert group.rows == sum(segment.rows for segment in group.segments)
        assert all(a.last < b.first for a, b in pairwise(group.segments)), "a group overlaps itself"
    assert runs.segments() == sorted(segments, key=lambda s: s.first)


class Walk:
    """Random calls on runs, beside a list of their rows."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.by = by_until if kind == "delayed" else by_key
        self.store = DictStore()
        self.runs = Runs(self.store, "r/", RunsState(), TINY, self.by, settle)
        self.model: list[Row] = []
        self.seq = 0
        self.looked: set[tuple[int, int]] = set()  # filter, id: it wanted none of these

    def row(self) -> Row:
        self.seq += 1
        rnd = self.random
        row = Row(self.seq, self.seq * 7 + 2**40 * rnd.randrange(3), rnd.randrange(100), 0, 0)
        if self.kind == "priority":
            row.level = rnd.choice([0, 1, 2**64 - 1, rnd.randrange(2**64)])
            row.generation = rnd.randrange(3)
        if self.kind == "delayed":
            row.until = rnd.randrange(1000)
        row.expires = rnd.choice([NEVER, NEVER, rnd.randrange(1000)])
        return row

    def add(self) -> None:
        rows = sorted((self.row() for _ in range(self.random.randrange(1, 30))), key=self.by)
        self.model = sorted(self.model + rows, key=self.by)
        looked = self.random.sample(range(-5, 0), 2)
        self.looked |= {(number, row.id) for number in looked for row in rows}
        self.runs.add(rows, looked)

    def extend(self) -> None:
        """A few rows, after all others; nothing is written before a page of them is full."""
        last = self.runs.last()
        assert last == (self.by(self.model[-1]) if self.model else None)
        rows = [self.row() for _ in range(self.random.randrange(1, 6))]
        for row in rows:
            row.level, row.generation = 0, 2
            row.until = 1000 if self.kind == "delayed" else NEVER
        self.model += rows
        self.runs.extend(rows)

    def take(self) -> None:
        first = self.runs.first()
        assert first == (self.by(self.model[0]) if self.model else None)
        taken = self.runs.take()
        assert bool(taken) is bool(self.model)
        assert not taken or self.by(taken[0]) == first
        self.forget(taken)

    def forget(self, rows: list[Row]) -> None:
        ids = {row.id for row in rows}
        assert rows == [row for row in self.model if row.id in ids]
        self.model = [row for row in self.model if row.id not in ids]

    def replace(self) -> None:
        segments = self.runs.segments()
        if not segments:
            return
        segment = self.random.choice(segments)
        rows = self.runs.read(segment)
        share = self.random.choice([0, 0.5, 0.9])
        rest = [row for row in rows if self.random.random() < share]
        gone = [row for row in rows if row not in rest]
        self.forget(gone)
        for row in rest:
            row.cancels += 1
        changed = {row.id: row for row in rest}
        self.model = [changed.get(row.id, row) for row in self.model]
        self.runs.replace(segment, rest, gone)

    def expire(self) -> None:
        now = self.random.randrange(1000)
        while segment := self.runs.first_due(now):
            assert segment.due == self.runs.due() <= now
            rows = self.runs.read(segment)
            rest = [row for row in rows if row.due > now]
            assert len(rest) < len(rows)
            over = [row for row in rows if row.due <= now]
            self.forget(over)
            self.runs.replace(segment, rest, over)
        assert all(row.due > now for row in self.model)

    def look(self) -> None:
        """A filter examines a segment, once, as `looked` allows."""
        segments = self.runs.segments()
        if segments:
            segment = self.random.choice(segments)
            segment.looked.append(self.seq)
            self.looked |= {(self.seq, row.id) for row in self.runs.read(segment)}

    def find(self) -> None:
        known = [row.id for row in self.model]
        ids = sorted({self.random.choice([*known, 5]) + self.random.randrange(2) for _ in "123"})
        found = {
            row.id for s in self.runs.with_ids((i, i) for i in ids) for row in self.runs.read(s)
        }
        assert set(ids) & set(known) <= found
        assert [self.runs.has(i) for i in ids] == [i in known for i in ids]
        low, high = ids[0], ids[-1]
        found = {row.id for s in self.runs.with_ids([(low, high)]) for row in self.runs.read(s)}
        assert {i for i in known if low <= i <= high} <= found

    def reload(self) -> None:
        """Continue from a mark, as a replay does."""
        state = decode(encode(self.runs.state()))
        self.store = DictStore(self.store.pages)
        self.runs = Runs(self.store, "r/", state, TINY, self.by, settle)

    def check(self) -> None:
        check(self.runs)
        assert self.runs.rows == len(self.model)
        assert self.runs.bytes == sum(row.size for row in self.model)
        assert self.runs.due() == min((row.due for row in self.model), default=NEVER)
        for segment in self.runs.segments():
            for row in self.runs.read(segment) if segment.looked else ():
                assert {(number, row.id) for number in segment.looked} <= self.looked

    def run(self, steps: int, reloads: bool = True) -> None:
        calls = [self.add, self.extend, self.take, self.replace, self.expire, self.look, self.find]
        calls += [self.reload] if reloads else []
        for _ in range(steps):
            self.random.choice(calls)()
            if self.random.random() < 0.6:
                self.runs.merge(self.random.randrange(1, 20))
            self.check()


@pytest.mark.parametrize("kind", ["fifo", "priority", "delayed"])
@pytest.mark.parametrize("seed", range(3 * TIMES))
def test_runs_agree_with_a_sorted_list(kind: str, seed: int) -> None:
    walk = Walk(seed, kind)
    walk.run(150)
    while walk.model:
        walk.take()
    walk.check()
    state = walk.runs.state()
    assert (state.groups, state.ids) == ([], []) or not walk.runs.rows
    walk.runs.drop()
    assert not walk.store.pages, "an empty queue keeps no page"


@pytest.mark.parametrize("kind", ["fifo", "priority", "delayed"])
@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_a_replay_from_a_mark_writes_the_same_pages(kind: str, seed: int) -> None:
    """Two continue from one mark: the live one, and one that was loaded."""
    first = Walk(seed, kind)
    first.run(40, reloads=False)
    for mark in range(5):
        state = encode(first.runs.state())
        second = Walk(seed, kind)
        second.store = DictStore(first.store.pages)
        second.runs = Runs(second.store, "r/", decode(state), TINY, second.by, settle)
        second.model, second.seq = (
            msgspec.convert(msgspec.to_builtins(first.model), list[Row]),
            first.seq,
        )
        second.looked = set(first.looked)
        first.random.seed(mark)
        second.random.seed(mark)
        first.run(25, reloads=False)
        second.run(25, reloads=False)
        assert encode(first.runs.state()) == encode(second.runs.state())
        assert first.store.dump() == second.store.dump()


def test_a_fifo_queue_is_never_rewritten() -> None:
    store = CountingStore(DictStore())
    runs = Runs(store, "r/", RunsState(), TINY, by_key, settle)
    for at in range(0, 400, 8):
        runs.add([Row(seq, seq, 1, 0, 0) for seq in range(at, at + 8)])
        assert not runs.merge(1000)
    assert len(store.writes) == 100
    assert not store.reads
    for at in range(0, 400, 4):
        assert [row.seq for row in runs.take()] == list(range(at, at + 4))


def test_single_rows_are_written_once_a_page() -> None:
    store = CountingStore(DictStore())
    runs = Runs(store, "r/", RunsState(), TINY, by_key, settle)
    for seq in range(42):
        runs.extend([Row(seq, seq, 1, 0, 0)])
    assert len(store.writes) == 10
    assert not store.reads
    taken = [runs.take() for _ in range(11)]
    assert [row.seq for rows in taken for row in rows] == list(range(42))
    assert [row.block for row in taken[-1]] == [0, 0], "their contents need no block"


def test_a_merge_that_stops_among_unwritten_rows_loses_none() -> None:
    store, limits = DictStore(), replace(Limits(), segment_rows=8)
    runs = Runs(store, "r/", RunsState(), limits, by_key, settle)
    for first in (30, 20, 10):
        runs.add([Row(seq, seq, 1, 0, 0) for seq in range(first, first + 3)])
    runs.extend([Row(seq, seq, 1, 0, 0) for seq in (40, 41, 42)])
    runs.add([Row(seq, seq, 1, 0, 0) for seq in (1, 2, 3)])
    assert runs.is_merging
    assert runs.merge(11), "two of six rows are merged"
    runs = Runs(store, "r/", decode(encode(runs.state())), limits, by_key, settle)
    check(runs)
    assert runs.rows == 15


def test_random_priorities_are_rewritten_a_few_times() -> None:
    rnd = random.Random(1)
    store = CountingStore(DictStore())
    runs = Runs(store, "r/", RunsState(), TINY, by_key, settle)
    for at in range(0, 4096, 16):
        rows = [Row(seq, seq, 1, 0, 0, level=rnd.randrange(2**64)) for seq in range(at, at + 16)]
        runs.add(sorted(rows, key=by_key))
        runs.merge(64)
    while runs.merge(64):
        pass
    writes = [key for key in store.writes if not key.startswith("r/i/")]
    assert len(writes) <= 2 * 1024 * 6  # each put has its delete
    groups = runs.state().groups
    assert len(groups) <= 3 * 6
    check(runs)


def test_unknown_ids_cost_no_page_read() -> None:
    """L8: late acks, in a priority queue, whose segments have ids of all ages."""
    rnd = random.Random(1)
    store = CountingStore(DictStore())
    runs = Runs(store, "r/", RunsState(), TINY, by_key, settle)
    rows = [Row(seq, 2 * seq, 1, 0, 0, level=rnd.randrange(2**64)) for seq in range(20_000)]
    runs.add(sorted(rows, key=by_key))
    store.reset()
    assert not any(runs.with_ids([(2 * seq + 1, 2 * seq + 1)]) for seq in range(20_000))
    assert not store.reads


def test_nearly_empty_segments_are_joined() -> None:
    runs = Runs(DictStore(), "r/", RunsState(), TINY, by_key, settle)
    runs.add([Row(seq, seq, 1, 0, 0) for seq in range(400)])
    for at, segment in enumerate(runs.segments()):
        rows, kept = runs.read(segment), 1 if at % 10 == 0 else 0
        runs.replace(segment, rows[:kept], rows[kept:])
    runs.add([Row(seq, seq, 1, 0, 0) for seq in range(400, 440)])
    for segment in runs.segments():
        rows = runs.read(segment)
        runs.replace(segment, rows[:1], rows[1:])
    while runs.merge(4):
        pass
    assert len(runs.segments()) <= 6
    check(runs)


def test_a_merge_keeps_its_budget() -> None:
    rnd = random.Random(1)
    limits = replace(Limits(), segment_rows=64)
    runs = Runs(DictStore(), "r/", RunsState(), limits, by_key, settle)
    for at in range(0, 4096, 1024):
        rows = [Row(seq, seq, 1, 0, 0, level=rnd.randrange(2**64)) for seq in range(at, at + 1024)]
        runs.add(sorted(rows, key=by_key))
    slices = 1
    while runs.merge(100):
        slices += 1
    assert 4096 / 100 <= slices <= 4096 / 100 + 2
    check(runs)


def test_F5_rows_a_filter_has_examined_share_no_page_with_others() -> None:
    """Otherwise it would examine them again, in every step that spills the same few rows."""
    runs = Runs(DictStore(), "r/", RunsState(), TINY, by_key, settle)
    runs.add([Row(1, 1, 0, 0, 0)], looked=[7])
    runs.add([Row(2, 2, 0, 0, 0)])
    assert [segment.looked for segment in runs.segments()] == [[7], []]
    runs.add([Row(3, 3, 0, 0, 0)], looked=[7])
    assert [(segment.rows, segment.looked) for segment in runs.segments()] == [(1, [7]), (2, [])]
