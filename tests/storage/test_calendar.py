"""The calendar against a dict."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.storage import NEVER, Calendar, CountingStore, DictStore, ValuePages
from storage.tiny import TINY

names = st.sampled_from([f"q{n}" for n in range(12)])
ops = st.lists(st.tuples(names, st.one_of(st.integers(1, 9), st.just(NEVER)), st.booleans()))


def run(given_ops: list[Any], always: bool) -> tuple[DictStore, dict[int, int], dict[str, int]]:
    store, earliest, model = DictStore(), {}, {}
    values = ValuePages(store)
    calendar = Calendar(values, earliest, TINY)
    for name, at, reload in given_ops:
        calendar.set(name, at)
        model[name] = at
        if at == NEVER:
            del model[name]
        if reload or always:
            values.flush()
            values = ValuePages(store)
            calendar = Calendar(values, dict(earliest), TINY)
            earliest = calendar.earliest
        assert calendar.overview() == dict(sorted(model.items()))
        assert calendar.next() == min(model.values(), default=NEVER)
        for now in (0, 3, 9):
            due = [n for at, n in sorted((at, n) for n, at in model.items()) if at <= now]
            for most in (1, 2, 100):
                assert calendar.due(now, most) == due[:most]
    values.flush()
    return store, earliest, model


@given(ops)
def test_it_is_a_dict(given_ops: list[Any]) -> None:
    run(given_ops, always=False)


@given(ops)
def test_the_same_content_gives_the_same_bytes(given_ops: list[Any]) -> None:
    store, earliest, model = run(given_ops, always=False)
    again, _, _ = run(list(given_ops), always=True)
    fresh, early, _ = run([(name, at, False) for name, at in reversed(model.items())], always=False)
    assert store.dump() == again.dump() == fresh.dump()
    assert earliest == early


def test_buckets_in_which_nothing_is_due_are_not_read() -> None:
    store = DictStore()
    values = ValuePages(store)
    calendar = Calendar(values, {}, TINY)
    for n in range(30):
        calendar.set(f"q{n}", 100 + n)
    values.flush()
    counting = CountingStore(store)
    calendar = Calendar(ValuePages(counting), calendar.earliest, TINY)
    assert calendar.due(99, 10) == []
    assert counting.reads == []
    assert calendar.due(100, 10) == ["q0"]
    assert len(counting.reads) == 1
