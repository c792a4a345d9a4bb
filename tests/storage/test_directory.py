"""The page directory against a dict that is searched from end to end."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.storage import NEVER, NO_ID, CountingStore, DictStore, Directory
from storage.tiny import TINY

ABSENT = (0, 0, NEVER, NO_ID, 0)

pages = st.one_of(st.integers(0, 20), st.integers(0, 300))


@st.composite
def lines(draw: Any) -> tuple[int, int, int, int, int]:
    live = draw(st.integers(0, 4))
    if not live:
        return ABSENT
    low = draw(st.integers(1, 30))
    deadline = draw(st.one_of(st.integers(1, 20), st.just(NEVER)))
    return live, draw(st.integers(0, live)), deadline, low, low + draw(st.integers(0, 10))


ops = st.lists(
    st.one_of(
        st.tuples(st.just("update"), pages, lines()),
        st.tuples(st.just("reload"), st.none(), st.none()),
        st.tuples(st.just("ask"), st.none(), st.none()),
    ),
    max_size=40,
)


def directory(store: DictStore, root: list[int]) -> Directory:
    return Directory(store, "d/", root, TINY)


def check(d: Directory, model: dict[int, tuple[int, ...]], start: int) -> None:
    present = sorted(p for p in model if p >= start)
    assert list(d.live(start)) == present
    assert list(d.leased(start)) == [p for p in present if model[p][1]]
    for now in (0, 5, 20):
        assert list(d.due(now, start)) == [p for p in present if model[p][2] <= now]
    for ranges in ([(3, 3)], [(25, 28), (1, 2), (27, 40)], [(9, 8)], [(0, NO_ID)], []):
        assert list(d.overlapping(ranges, start)) == [
            p for p in present
            if any(max(low, model[p][3]) <= min(high, model[p][4]) for low, high in ranges)
        ]  # fmt: skip
    assert d.deadline() == min((line[2] for line in model.values()), default=NEVER)
    places = [(p, i) for p in sorted(model) for i in range(model[p][0])]
    assert [d.find(n) for n in range(len(places))] == places
    with pytest.raises(IndexError, match="fewer live messages"):
        d.find(len(places))
    assert len(d.root) in (0, 6)
    names = ("live", "leased", "deadline", "id_min", "id_max")
    assert d.overview() == {p: dict(zip(names, model[p], strict=True)) for p in sorted(model)}


def run(given_ops: list[Any], always_reload: bool) -> tuple[DictStore, list[int], dict[int, Any]]:
    store, root, model = DictStore(), [], {}
    d = directory(store, root)
    for op, page, line in given_ops:
        if op == "update":
            d.update(page, *line)
            model[page] = line
            if not line[0]:
                del model[page]
        if op == "reload" or always_reload:
            d.flush()
            root = list(d.root)
            d = directory(store, root)
        elif op == "ask":
            check(d, model, start=0)
    check(d, model, start=0)
    check(d, model, start=9)
    d.flush()
    return store, d.root, model


@given(ops)
def test_it_answers_as_a_search_from_end_to_end(given_ops: list[Any]) -> None:
    store, root, model = run(given_ops, always_reload=False)
    check(directory(store, root), model, start=3)


@given(ops)
def test_the_same_content_gives_the_same_bytes(given_ops: list[Any]) -> None:
    store, root, model = run(given_ops, always_reload=False)
    again, root_again, _ = run(given_ops, always_reload=True)
    assert (store.dump(), root) == (again.dump(), root_again)
    fresh = DictStore()
    d = directory(fresh, [])
    for page, line in model.items():
        d.update(page, *line)
    d.flush()
    assert (fresh.dump(), d.root) == (store.dump(), root)


@given(ops)
def test_dropped_it_leaves_no_page(given_ops: list[Any]) -> None:
    store, root, _ = run(given_ops, always_reload=False)
    d = directory(store, root)
    d.update(7, 1, 0, NEVER, 1, 1)
    d.drop()
    d.flush()
    assert (store.pages, d.root) == ({}, [])


@given(st.dictionaries(st.integers(0, 255), lines(), min_size=1))
def test_what_is_not_asked_for_is_not_read(content: dict[int, Any]) -> None:
    """Each answer costs a page per level; 256 pages in chunks of 4 have 4 levels."""
    store = DictStore()
    d = directory(store, [])
    for page, line in content.items():
        d.update(page, *line)
    d.flush()
    live = [page for page, line in content.items() if line[0]]
    counting = CountingStore(store)
    d = Directory(counting, "d/", d.root, TINY)
    d.deadline()
    assert counting.reads == []
    assert next(d.live(), None) == min(live, default=None)
    assert len(counting.reads) <= 4
    if live:
        counting.reset()
        page = max(live)
        d = Directory(counting, "d/", list(d.root), TINY)
        d.update(page, *content[page][:2], 99, *content[page][3:])
        d.flush()
        assert len(counting.reads) <= 4
        assert len(counting.writes) <= 4


@given(ops)
def test_a_sweep_goes_on_while_pages_change(given_ops: list[Any]) -> None:
    """Pages ahead of a sweep may change; those that it has not reached are seen as they are."""
    store, root, model = run(given_ops, always_reload=False)
    d = directory(store, root)
    swept = []
    for page in d.live():
        swept.append(page)
        d.update(page, *ABSENT)
        d.settle()
    assert swept == sorted(model)
    assert list(d.live()) == []
