"""The ready index against a sorted list."""

from bisect import bisect_left
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.limits import Limits
from lakequeue.state.storage import CountingStore, DictStore, ReadyIndex
from storage.tiny import TINY

small = st.integers(0, 60)
wide = st.builds(lambda g, p, s: (g << 128) - (p << 64) + s, st.integers(0, 2),
                 st.sampled_from([0, 1, 2**64 - 1]), st.integers(0, 20))  # fmt: skip
NARROW, WIDE = small, st.one_of(small, wide)


def ops(keys: Any) -> Any:
    several = st.lists(keys, max_size=25, unique=True).map(sorted)
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), several),
            st.tuples(st.just("discard"), several),
            st.tuples(st.just("take"), st.tuples(st.integers(0, 9), st.none() | keys)),
            st.tuples(st.just("reload"), st.none()),
        ),
        max_size=30,
    )


def take(index: ReadyIndex, most: int, below: int | None = None) -> list[int]:
    """The first keys go out, as delivery does it."""
    keys = index.peek(most, below)
    index.discard(keys)
    return keys


def check(index: ReadyIndex, model: list[int]) -> None:
    assert list(index.scan()) == model
    assert (len(index), bool(index)) == (len(model), bool(model))
    assert index.first() == (model[0] if model else None)
    for key in (*model[::5], -1, 7, 1 << 70):
        at = bisect_left(model, key)
        assert index.count_before(key) == at
        assert list(index.scan(key)) == model[at:]
        assert list(index.scan(stop=key)) == model[:at]
        assert index.peek(4, key) == model[: min(at, 4)]
        assert (key in index) == (key in model)
    seen = index.overview()
    assert [key for leaf in seen["leaves"] for key in leaf] == model
    assert all(0 < len(leaf) <= TINY.leaf_keys for leaf in seen["leaves"])
    assert len(index.directory()) == seen["header_entries"] <= TINY.root_entries


def run(given_ops: list[Any], always_reload: bool) -> tuple[DictStore, ReadyIndex, list[int]]:
    store, model = DictStore(), []
    index = ReadyIndex(store, "o/", [], 0, TINY)
    for op, what in given_ops:
        if op == "add":
            new = [key for key in what if key not in model]
            index.add(new)
            model = sorted(model + new)
        elif op == "discard":
            index.discard(what)
            model = [key for key in model if key not in what]
        elif op == "take":
            most, below = what
            n = min(most, len(model) if below is None else bisect_left(model, below))
            assert take(index, most, below) == model[:n]
            model = model[n:]
        if op == "reload" or always_reload:
            index.flush()
            index = ReadyIndex(store, "o/", index.directory(), index.pages, TINY)
        check(index, model)
    index.flush()
    return store, index, model


@pytest.mark.parametrize("keys", [NARROW, WIDE])
def test_it_is_a_sorted_list(keys: Any) -> None:
    @given(ops(keys))
    def walk(given_ops: list[Any]) -> None:
        store, index, model = run(given_ops, always_reload=False)
        seen = index.overview()
        assert len(store.pages) == len(seen["leaves"]) + seen["branches"], "pages nobody names"
        check(ReadyIndex(store, "o/", index.directory(), index.pages, TINY), model)

    walk()


@given(ops(WIDE))
def test_saved_and_loaded_anywhere_it_is_the_same_bytes(given_ops: list[Any]) -> None:
    once, index, _ = run(given_ops, always_reload=False)
    often, again, _ = run(given_ops, always_reload=True)
    assert once.dump() == often.dump()
    assert (index.directory(), index.pages) == (again.directory(), again.pages)


@given(st.lists(small, unique=True, min_size=4), st.data())
def test_holes_do_not_leave_small_pages_beside_each_other(keys: list[int], data: Any) -> None:
    """All leaves stand in one branch here: of two neighbours that fit into one, one shrank last
    and was more than half full still."""
    index = ReadyIndex(DictStore(), "o/", [], 0, Limits(leaf_keys=4))
    index.add(sorted(keys))
    for key in data.draw(st.permutations(keys)):
        index.discard([key])
        sizes = [len(leaf) for leaf in index.overview()["leaves"]]
        for one, two in pairwise(sizes):
            assert one + two > 4 or max(one, two) > 2, sizes


@given(st.permutations(range(40)))
def test_pages_are_at_least_half_full_in_whatever_order_keys_come(keys: list[int]) -> None:
    for order in (keys, range(40, 0, -1)):
        index = ReadyIndex(DictStore(), "o/", [], 0, Limits(leaf_keys=4))
        for key in order:
            index.add([key])
        leaves = index.overview()["leaves"]
        # Appended at the end of a leaf, one key may stand alone until the next.
        assert len([leaf for leaf in leaves if len(leaf) < 2]) * 2 <= len(leaves) + 1, leaves


def test_levels_come_and_go() -> None:
    limits = Limits(leaf_keys=3, branch_entries=4, root_entries=4)
    index = ReadyIndex(DictStore(), "o/", [], 0, limits)
    index.add(list(range(600)))
    seen = index.overview()
    assert (seen["levels"], len(seen["leaves"])) == (4, 200)
    take(index, 599)
    assert index.overview()["levels"] == 1
    take(index, 1)
    index.add(list(range(12)))
    assert index.overview()["levels"] == 1


def test_dropped_it_leaves_no_page_and_can_be_filled_again() -> None:
    store = DictStore()
    index = ReadyIndex(store, "o/", [], 0, TINY)
    index.add(list(range(100)))
    index.flush()
    index = ReadyIndex(store, "o/", index.directory(), index.pages, TINY)
    index.drop()
    index.add([3])
    index.flush()
    assert len(store.pages) == 1
    assert list(ReadyIndex(store, "o/", index.directory(), index.pages, TINY).scan()) == [3]


@pytest.mark.parametrize("depth", [2_000, 60_000, 1_000_000])
def test_a_step_costs_a_few_pages_at_any_depth(depth: int) -> None:
    limits = Limits()
    counting = CountingStore(DictStore())
    index = ReadyIndex(counting, "o/", [], 0, limits)
    index.add(list(range(depth)))
    index.flush()
    for start in range(0, 20_000, 500):
        counting.reset()
        index = ReadyIndex(counting, "o/", index.directory(), index.pages, limits)
        assert take(index, 500) == list(range(start, start + 500))
        index.add(list(range(depth + start, depth + start + 500)))
        index.flush()
        # The first leaf, the next where it ends, the last, and as many branches.
        assert len(counting.reads) <= 6
        assert len(counting.writes) <= 8
        assert len(index.directory()) <= limits.root_entries


@given(st.integers(2, 60))
def test_it_empties_without_a_page_left(n: int) -> None:
    store = DictStore()
    index = ReadyIndex(store, "o/", [], 0, TINY)
    index.add(list(range(n)))
    index.flush()
    while index:
        take(index, 2)
        index.flush()
    assert (store.pages, index.directory()) == ({}, [])
