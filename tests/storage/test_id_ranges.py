"""Ranges of ids against one entry an id."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.limits import Limits
from lakequeue.state.storage import (
    NEVER,
    CountingStore,
    DictStore,
    IdRange,
    IdRanges,
    IdRangesTop,
)
from storage.tiny import TINY

IDS = 60
ids, times, mosts = st.integers(0, IDS), st.integers(0, 9), st.integers(0, 12)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.tuples(ids, st.integers(0, 20), times, mosts | st.just(99))),
        st.tuples(st.just("take out"), ids),
        st.tuples(st.just("forget"), st.tuples(times, mosts)),
        st.tuples(st.just("reload"), st.none()),
        st.tuples(st.just("drop"), st.none()),
    ),
    max_size=40,
)


def check(ranges: IdRanges, model: dict[int, int]) -> None:
    seen = ranges.overview()
    assert {n: until for a, b, until in seen for n in range(a, b + 1)} == model
    assert all(a <= b for a, b, _ in seen)
    assert all(one[1] < other[0] for one, other in pairwise(seen))
    assert (len(ranges), bool(ranges)) == (len(seen), bool(seen))
    assert ranges.next_end() == min(model.values(), default=NEVER)
    by_end = ranges.over(NEVER, 1_000)
    assert sorted([one.first, one.last, one.until] for one in by_end) == seen
    assert [one.until for one in by_end] == sorted(one.until for one in by_end)
    for n in range(-1, IDS + 25, 7):
        found = ranges.find(max(n, 0))
        assert (found is None) == (max(n, 0) not in model)
        assert found is None or (found.first <= max(n, 0) <= found.last)
        assert found is None or found.until == model[max(n, 0)]


def run(ops: list[Any], always_reload: bool) -> tuple[DictStore, IdRangesTop, dict[int, int]]:
    store, top, model = DictStore(), IdRangesTop(), {}
    ranges = IdRanges(store, "early/1/", top, TINY)
    for op, what in ops:
        if op == "put":
            first, more, until, most = what
            before = ranges.overview()
            if ranges.put(first, first + more, until, most):
                model |= dict.fromkeys(range(first, first + more + 1), until)
                assert len(ranges) <= max(most, len(before))
            else:
                assert ranges.overview() == before
                assert len(before) + 2 > most
        elif op == "take out":
            found = ranges.find(what)
            if found is not None:
                ranges.exchange([found], [])
                for n in range(found.first, found.last + 1):
                    del model[n]
        elif op == "forget":
            now, most = what
            over = ranges.over(now, most)
            assert all(one.until <= now for one in over)
            assert len(over) == most or not set(range(now + 1)) & {
                u for a, _, u in ranges.overview() if a not in {one.first for one in over}
            }
            ranges.exchange(over, [])
            for one in over:
                for n in range(one.first, one.last + 1):
                    del model[n]
        elif op == "drop":
            ranges.drop()
            model = {}
        if op == "reload" or always_reload:
            ranges.flush()
            ranges = IdRanges(store, "early/1/", top, TINY)
        check(ranges, model)
    ranges.flush()
    return store, top, model


@given(OPS)
def test_each_id_has_the_time_that_was_said_last(ops: list[Any]) -> None:
    store, top, model = run(ops, always_reload=False)
    check(IdRanges(store, "early/1/", top, TINY), model)
    ranges = IdRanges(store, "early/1/", top, TINY)
    ranges.drop()
    ranges.flush()
    assert store.pages == {}, "pages nobody names"


@given(OPS)
def test_saved_and_loaded_anywhere_it_is_the_same_bytes(ops: list[Any]) -> None:
    once, top, _ = run(ops, always_reload=False)
    often, again, _ = run(ops, always_reload=True)
    assert (once.dump(), top) == (often.dump(), again)


def test_ids_and_times_may_be_as_large_as_they_are() -> None:
    top, store = IdRangesTop(), DictStore()
    ranges = IdRanges(store, "early/1/", top, Limits())
    widest = [[0, 0, 0], [1, (1 << 64) - 2, NEVER - 1], [(1 << 64) - 1, (1 << 64) - 1, NEVER]]
    for first, last, until in widest:
        assert ranges.put(first, last, until, 3)
    ranges.flush()
    ranges = IdRanges(store, "early/1/", top, Limits())
    assert ranges.overview() == widest
    assert ranges.find((1 << 64) - 2) == IdRange(*widest[1])
    assert ranges.over(NEVER - 1, 9) == [IdRange(*widest[0]), IdRange(*widest[1])]


@pytest.mark.parametrize("held", [100, 10_000])
def test_a_step_costs_a_few_pages_however_many_are_held(held: int) -> None:
    counting, top, limits = CountingStore(DictStore()), IdRangesTop(), Limits()
    ranges = IdRanges(counting, "early/1/", top, limits)
    for n in range(held):
        ranges.put(10 * n, 10 * n + 3, 5_000 + n * 7 % held, held)
    ranges.flush()
    for n in range(0, held, max(held // 20, 1)):
        counting.reset()
        ranges = IdRanges(counting, "early/1/", top, limits)
        assert ranges.find(10 * n + 7) is None
        assert ranges.put(10 * n + 6, 10 * n + 6, 9, held + 1)
        found = ranges.find(10 * n + 6)
        assert found is not None
        ranges.exchange([found], [])
        ranges.flush()
        # A leaf of each index, and a neighbour to join it with; branches where there are many.
        assert len(counting.reads) <= 8
        assert len(counting.writes) <= 8
        assert len(top.by_id) + len(top.by_end) <= 2 * limits.root_entries


def test_where_there_is_none_nothing_is_read_or_written() -> None:
    counting = CountingStore(DictStore())
    ranges = IdRanges(counting, "early/1/", IdRangesTop(), Limits())
    assert (len(ranges), ranges.next_end(), ranges.find(7)) == (0, NEVER, None)
    ranges.flush()
    assert (counting.reads, counting.writes) == ([], [])
