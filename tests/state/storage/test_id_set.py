"""Ids of cold rows against a plain set."""

from __future__ import annotations

import random

import pytest
from lakequeue.state.storage.id_set import ARRAY_MOST, IdSet
from lakequeue.state.storage.store import DictStore


@pytest.mark.parametrize("seed", range(6))
def test_an_id_set_agrees_with_a_set(seed: int) -> None:
    rnd = random.Random(seed)
    store, model = DictStore(), set[int]()
    ids = IdSet(store, "i/")
    spans = [1 << 17, 1 << 17, 1 << 60]
    for _ in range(30):
        if rnd.random() < 0.55:
            span = rnd.choice(spans)
            new = {rnd.randrange(span) for _ in range(rnd.choice([1, 50, 3000]))} - model
            ids.add(rnd.sample(sorted(new), len(new)))
            model |= new
        elif model:
            gone = rnd.sample(sorted(model), rnd.randrange(len(model)))
            ids.remove(gone)
            model -= set(gone)
        if rnd.random() < 0.3:
            ids = IdSet(store, "i/", ids.state())
        assert len(ids) == len(model)
        smallest = sorted(model)[:3]
        for _ in range(20):
            low = rnd.choice([*smallest, rnd.randrange(rnd.choice(spans))])
            high = low + rnd.choice([0, 0, 1, 100, 1 << 16, 1 << 40])
            assert ids.has_any(low, high) is any(low <= number <= high for number in model)
    ids.remove(model)
    assert ids.state() == []
    assert not store.pages


def test_a_page_depends_only_on_its_contents() -> None:
    """Around the boundary between the two forms."""
    for n in (ARRAY_MOST - 1, ARRAY_MOST, ARRAY_MOST + 1, ARRAY_MOST + 2):
        pages = []
        for more in (0, 10_000):
            store = DictStore()
            ids = IdSet(store, "i/")
            ids.add(range(n + more))
            ids.remove(range(n, n + more))
            state = ids.state()
            pages.append((state, store.dump()))
            assert IdSet(store, "i/", state).has_any(n - 1, n + 100)
        assert pages[0] == pages[1]
