"""Overlays against a stack of dicts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lakequeue.state.storage import CountingStore, DictStore, Overlay, Store

keys = st.sampled_from("abcd")
ops = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=2)),
        st.tuples(st.just("delete"), keys, st.none()),
        st.tuples(st.sampled_from(["push", "commit", "drop"]), st.none(), st.none()),
    )
)


@given(ops)
def test_an_overlay_is_a_copy_that_is_kept_or_thrown_away(given_ops: list[Any]) -> None:
    stores: list[Store] = [DictStore()]
    models: list[dict[str, bytes]] = [{}]
    for op, key, value in given_ops:
        if op == "put":
            stores[-1].put(key, value)
            models[-1][key] = value
        elif op == "delete":
            stores[-1].delete(key)
            models[-1].pop(key, None)
        elif op == "push":
            stores.append(Overlay(stores[-1]))
            models.append(dict(models[-1]))
        elif len(stores) > 1:
            top, model = stores.pop(), models.pop()
            assert isinstance(top, Overlay)
            if op == "commit":
                top.commit()
                models[-1] = model
            else:
                top.drop()
            assert top.overview() == {}
        for store, model in zip(stores, models, strict=True):
            assert {k: v for k in "abcd" if (v := store.get(k)) is not None} == model


def test_nothing_is_written_before_commit_and_then_in_the_order_of_keys() -> None:
    counting = CountingStore(DictStore({"c": b"3"}))
    overlay = Overlay(counting)
    overlay.put("b", b"2")
    overlay.delete("c")
    overlay.put("a", b"1")
    assert (overlay.get("b"), overlay.get("c"), counting.reads) == (b"2", None, [])
    assert overlay.overview() == {"a": 1, "b": 1, "c": None}
    assert counting.writes == []
    overlay.commit()
    assert counting.writes == ["a", "b", "c"]
    assert counting.get("c") is None
